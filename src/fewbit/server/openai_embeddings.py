"""`POST /v1/embeddings`, as OpenAI's clients call it."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..arrays import Floats
from ..llm import Prompt
from ..llm.pooling import quantize_embeddings
from .bodies import Body, JsonResponse, read
from .embedding import embed
from .errors import ApiError

TokenId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]


class EmbeddingsRequest(Body):
    """A text, token ids, or several of them. `user` changes nothing by contract."""

    input: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1, max_length=2048)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    output_dtype: Literal["float", "int8", "uint8", "binary", "ubinary"] | None = None
    prompt_name: Annotated[str, Meta(max_length=256)] | None = None
    instruction: Annotated[str, Meta(max_length=1 << 16)] | None = None  # put before each text
    user: str | None = None

    def texts(self) -> list[Prompt]:
        if isinstance(self.input, str):
            return [self.input]
        kinds = {type(one) for one in self.input}
        if kinds == {int}:
            return [[one for one in self.input if isinstance(one, int)]]
        if len(kinds) != 1:
            raise ApiError(400, "input is a text, a list of texts, token ids, or a list of token ids", "input",
                           "invalid_request")  # fmt: skip
        return [one for one in self.input if not isinstance(one, int)]


class EmbeddingRow(msgspec.Struct):
    index: int
    embedding: list[float | int] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingsUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct):
    data: list[EmbeddingRow]
    model: str
    usage: EmbeddingsUsage
    object: Literal["list"] = "list"


async def embeddings(request: Request) -> Response:
    body = await read(request, EmbeddingsRequest)
    found = await embed(request, body.model, body.texts(), prompt=body.instruction, prompt_name=body.prompt_name)
    kind = body.output_dtype or "float"
    rows = quantize_embeddings(shortened(found.rows, body.dimensions), "float32" if kind == "float" else kind)
    as_text = body.encoding_format == "base64"
    data = [EmbeddingRow(i, as_base64(row) if as_text else row.tolist()) for i, row in enumerate(rows)]
    return JsonResponse(EmbeddingList(data, found.model, EmbeddingsUsage(found.num_tokens, found.num_tokens)))


ROUTES: list[BaseRoute] = [Route("/v1/embeddings", embeddings, methods=["POST"])]


def as_base64(row: npt.NDArray[Any]) -> str:
    """
    >>> import numpy as np
    >>> as_base64(np.ones(1, np.float32))
    'AACAPw=='
    """
    return b64encode(row.astype(row.dtype.newbyteorder("<")).tobytes()).decode()


def shortened(rows: Floats, dimensions: int | None) -> Floats:
    """The first numbers of each vector, of length 1 again.

    >>> import numpy as np
    >>> shortened(np.array([[3.0, 4.0, 5.0]], np.float32), 2).tolist() == np.float32([[0.6, 0.8]]).tolist()
    True
    """
    if dimensions is None or dimensions == rows.shape[1]:
        return rows
    if dimensions > rows.shape[1]:
        raise ApiError(400, f"dimensions must be at most {rows.shape[1]} for this model, got {dimensions}",
                       "dimensions", "invalid_request")  # fmt: skip
    cut = rows[:, :dimensions]
    lengths = np.linalg.norm(cut, axis=1, keepdims=True)
    return np.asarray(cut / np.where(lengths > 0, lengths, 1), np.float32)

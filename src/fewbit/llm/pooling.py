"""Pooling: the hidden rows of a text become one vector, its embedding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..arrays import Floats
from ..engine.adapters import Adapter
from ..engine.engine import Engine
from ..engine.reading import Embedding
from ..errors import DtypeError, RequestError
from ..files.safetensors import read_json

Pooling = Literal["mean", "cls", "last"]  # those that give one vector
POOLINGS = ("none", "mean", "cls", "last")  # numbered so in GGUF files
VECTOR_TYPES = ("float32", "int8", "uint8", "binary", "ubinary")
RANK = 4  # there too: a score for two texts
SMALLEST = np.float32(1e-12)  # a row of zeros stays one


class Pooler:
    """Makes requests for texts, and a vector of what each gave, in the order of the texts.

    Args:
        engine: Makes the requests.
        texts: Token ids of each text.
        pooling: One of `POOLINGS`.
        normalize: Scale vectors to length 1.
        dimensions: Numbers of a vector that are kept, the first ones. None: all.
        adapter: Name of an adapter, or names with weights.
    """

    def __init__(
        self,
        engine: Engine,
        texts: Sequence[Iterable[int]],
        pooling: str,
        normalize: bool,
        dimensions: int | None = None,
        adapter: Adapter = None,
    ) -> None:
        self._pooling, self._normalize, self._dimensions = pooling, normalize, dimensions
        made = [engine.embedding(tokens, last_only=pooling == "last", adapter=adapter) for tokens in texts]
        self._indices = {request: index for index, request in enumerate(made)}
        self._rows: list[Floats | None] = [None] * len(made)
        self.requests = sorted(made, key=lambda request: -len(request.tokens))  # similar lengths fill steps well

    def take(self, request: Embedding) -> None:
        """Pool what a request gave, and let go of it."""
        if request.hidden is None:
            raise RequestError(f"a text was not embedded: {request.finish_reason}")
        rows = shortened(pool(request.hidden, self._pooling), self._dimensions)
        self._rows[self._indices[request]] = normalized(rows) if self._normalize else rows
        request.hidden = None

    def result(self, several: bool) -> Floats | list[Floats]:
        """The vector of the one text, or of several the rows of a matrix; with pooling "none" a list of arrays."""
        rows = [row for row in self._rows if row is not None]
        if not several:
            return rows[0]
        return rows if self._pooling == "none" else np.stack(rows)


def pool(rows: Floats, pooling: str) -> Floats:
    """One vector of the rows of a text's tokens; "none": all of them.

    >>> rows = np.array([[1, 2], [3, 4], [5, 9]], np.float32)
    >>> pool(rows, "mean").tolist(), pool(rows, "cls").tolist(), pool(rows, "last").tolist()
    ([3.0, 5.0], [1.0, 2.0], [5.0, 9.0])
    """
    if pooling == "mean":
        return np.asarray(rows.mean(axis=0, dtype=np.float64), np.float32)
    if pooling == "none":
        return rows
    return np.array(rows[0 if pooling == "cls" else -1])


def shortened(rows: Floats, dimensions: int | None) -> Floats:
    """The first numbers of each vector."""
    if dimensions is not None and dimensions > rows.shape[-1]:
        raise RequestError(f"dimensions must be at most {rows.shape[-1]} for this model, got {dimensions}")
    return rows[..., :dimensions]


def quantize_embeddings(rows: Floats, dtype: str) -> npt.NDArray[Any]:
    """Vectors in 8 bits or 1 bit for each number.

    "int8" and "uint8" scale each vector so that its largest number is 127, which leaves cosines nearly as they are;
    "uint8" adds 128. "ubinary" has a bit for each number, set where it is positive, eight in a byte, the first one
    highest; "binary" is the same minus 128.

    >>> rows = np.array([[0.5, -1, 0.25, 0, 0, 0, 0, 0]], np.float32)
    >>> [quantize_embeddings(rows, dtype).tolist() for dtype in ("int8", "ubinary", "binary")]
    [[[64, -127, 32, 0, 0, 0, 0, 0]], [[160]], [[32]]]

    Args:
        rows: Vectors, as rows of a matrix, or one vector.
        dtype: "float32", "int8", "uint8", "binary" or "ubinary".
    """
    values = np.asarray(rows, np.float32)
    if dtype == "float32":
        return values
    if dtype in ("int8", "uint8"):
        largest = np.maximum(np.abs(values).max(axis=-1, keepdims=True), SMALLEST)
        codes: npt.NDArray[Any] = np.rint(values * (127 / largest)).astype(np.int8)
        return codes if dtype == "int8" else (codes.astype(np.int16) + 128).astype(np.uint8)
    if dtype in ("binary", "ubinary"):
        bits: npt.NDArray[Any] = np.packbits(values > 0, axis=-1)
        return bits if dtype == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    raise RequestError(f"there is no type {dtype!r} of vectors; there are: {', '.join(VECTOR_TYPES)}")


def with_prefix(texts: Sequence[Any], prefix: str, is_default: bool) -> list[Any]:
    """Texts with what is put before each of them. Token ids have it already, unless it was asked for."""
    if not is_default and prefix and not all(isinstance(text, str) for text in texts):
        raise DtypeError("a prompt goes before text, not before token ids")
    return [prefix + text if isinstance(text, str) else text for text in texts]


def normalized(rows: Floats) -> Floats:
    """Rows of length 1.

    >>> normalized(np.array([[0, 3], [0, 0]], np.float32)).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), SMALLEST), np.float32)


def file_pooling(config: Mapping[str, Any], is_encoder: bool) -> str:
    """The pooling that a file names. Defaults to the mean for encoders, and to the last token for other models.

    >>> file_pooling({"pooling_type": 2}, True), file_pooling({}, False)
    ('cls', 'last')
    """
    kind = config.get("pooling_type")
    if isinstance(kind, int) and not isinstance(kind, bool):
        if kind == RANK:
            return "rank"
        if 0 <= kind < len(POOLINGS):
            return POOLINGS[kind]
    return "mean" if is_encoder else "last"


def check_pooling(pooling: str | None, default: str) -> str:
    """The pooling that was requested, or the default.

    >>> check_pooling("max", "mean")
    Traceback (most recent call last):
        ...
    fewbit.errors.RequestError: there is no pooling 'max'; there are: none, mean, cls, last
    """
    if pooling is None:
        if default == "rank":
            raise RequestError("the model is a reranker: it scores two texts and is not made for embeddings")
        return default
    if not isinstance(pooling, str):
        raise DtypeError(f"pooling must be a str, not {type(pooling).__name__}")
    if pooling not in POOLINGS:
        raise RequestError(f"there is no pooling {pooling!r}; there are: {', '.join(POOLINGS)}")
    return pooling


def embedding_prompts(path: Path) -> tuple[Mapping[str, str], str | None]:
    """What sentence-transformers' config says to put before texts: by name, and before all of them."""
    file = path / "config_sentence_transformers.json"
    given = read_json(file) if file.is_file() else {}
    found = given.get("prompts") if isinstance(given, dict) else None
    prompts = {name: text for name, text in found.items() if isinstance(text, str)} if isinstance(found, dict) else {}
    name = given.get("default_prompt_name") if isinstance(given, dict) else None
    return prompts, prompts.get(name) if isinstance(name, str) else None

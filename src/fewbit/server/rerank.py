"""Rerankers and classifiers: `/v1/rerank` as Cohere, Jina and vLLM have it, `/v1/score` and `/v1/classify` as vLLM."""

from __future__ import annotations

from time import time
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
import numpy as np
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..llm.ranking import ranked
from .bodies import Body, JsonResponse, read
from .errors import ApiError
from .labels import Labelled, encode_pairs, encode_texts, label_texts

MAX_TEXTS = 2048
TextOrTexts = str | Annotated[list[str], Meta(min_length=1, max_length=MAX_TEXTS)]


class RerankDocument(Body):
    text: str


class RerankRequest(Body):
    """Sorts documents by how well they answer a query. `texts` is what Hugging Face's servers call them."""

    query: str
    documents: Annotated[list[str | RerankDocument], Meta(max_length=MAX_TEXTS)] | None = None
    texts: Annotated[list[str], Meta(max_length=MAX_TEXTS)] | None = None
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None
    instruction: str | None = None
    truncate: bool | None = None  # None: true
    raw_scores: bool | None = None  # of `texts`: logits
    return_text: bool | None = None  # of `texts`
    priority: int | None = None
    user: str | None = None

    def all_texts(self) -> list[str]:
        given = self.texts if self.documents is None else self.documents
        if not given:
            raise ApiError(400, "documents must hold at least one text", "documents", "invalid_request")
        return [one if isinstance(one, str) else one.text for one in given]


class RerankResult(msgspec.Struct):
    index: int
    relevance_score: float
    document: RerankDocument | msgspec.UnsetType = msgspec.UNSET


class RerankUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class RerankAnswer(msgspec.Struct):
    id: str
    model: str
    results: list[RerankResult]
    usage: RerankUsage
    meta: dict[str, Any]
    object: Literal["list"] = "list"


class RerankedText(msgspec.Struct):
    """A result in the shape of Hugging Face's servers."""

    index: int
    score: float
    text: str | msgspec.UnsetType = msgspec.UNSET


class ScoreRequest(Body):
    """A score for each pair: of one text and each of several, or of each two."""

    text_1: TextOrTexts
    text_2: TextOrTexts
    model: str | None = None
    instruction: str | None = None
    truncate: bool | None = None
    user: str | None = None

    def pairs(self) -> list[tuple[str, str]]:
        first, second = ([one] if isinstance(one, str) else one for one in (self.text_1, self.text_2))
        if len(first) == 1:
            first = first * len(second)
        if len(first) != len(second):
            raise ApiError(400, f"text_1 must be one text or as many as text_2, {len(first)} and {len(second)} given",
                           "text_1", "invalid_request")  # fmt: skip
        return [*zip(first, second, strict=True)]


class TextScore(msgspec.Struct):
    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreAnswer(msgspec.Struct):
    id: str
    created: int
    model: str
    data: list[TextScore]
    usage: RerankUsage
    object: Literal["list"] = "list"


class ClassifyRequest(Body):
    input: TextOrTexts
    model: str | None = None
    truncate: bool | None = None
    user: str | None = None


class TextLabel(msgspec.Struct):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyAnswer(msgspec.Struct):
    id: str
    created: int
    model: str
    data: list[TextLabel]
    labels: list[str]  # what `probs` are of
    usage: RerankUsage
    object: Literal["list"] = "list"


async def rerank(request: Request) -> Response:
    body = await read(request, RerankRequest)
    texts = body.all_texts()
    pairs = [(body.query, text) for text in texts]
    found = await label_texts(
        request, body.model, encode_pairs, pairs, body.instruction, body.truncate is not False, "document"
    )
    best = ranked(texts, found.head, found.logits, body.top_n)
    if body.documents is None:
        return JsonResponse(
            [
                RerankedText(one.index, one.logit if body.raw_scores else one.score,
                             one.text if body.return_text else msgspec.UNSET)
                for one in best
            ]
        )  # fmt: skip
    wants_text = body.return_documents is not False
    results = [
        RerankResult(one.index, one.score, RerankDocument(one.text) if wants_text else msgspec.UNSET) for one in best
    ]
    meta = {"billed_units": {"search_units": 1}, "tokens": {"input_tokens": found.num_tokens}}
    return JsonResponse(RerankAnswer(_new_id("rerank"), found.model, results, _usage(found), meta))


async def score(request: Request) -> Response:
    body = await read(request, ScoreRequest)
    found = await label_texts(
        request, body.model, encode_pairs, body.pairs(), body.instruction, bool(body.truncate), "text"
    )
    values = 1 / (1 + np.exp(-found.head.relevance(found.logits)))
    data = [TextScore(index, value) for index, value in enumerate(values.tolist())]
    return JsonResponse(ScoreAnswer(_new_id("score"), int(time()), found.model, data, _usage(found)))


async def classify(request: Request) -> Response:
    body = await read(request, ClassifyRequest)
    texts = [body.input] if isinstance(body.input, str) else body.input
    found = await label_texts(request, body.model, encode_texts, texts, bool(body.truncate))
    names, rows = found.head.labels, found.head.probabilities(found.logits).tolist()
    data = [
        TextLabel(index, names[max(range(len(row)), key=row.__getitem__)], row, len(row))
        for index, row in enumerate(rows)
    ]
    answer = ClassifyAnswer(_new_id("classify"), int(time()), found.model, data, [*names], _usage(found))
    return JsonResponse(answer)


ROUTES: list[BaseRoute] = [
    *(Route(path, rerank, methods=["POST"]) for path in ("/v1/rerank", "/v2/rerank", "/rerank")),
    *(Route(path, score, methods=["POST"]) for path in ("/v1/score", "/score")),
    *(Route(path, classify, methods=["POST"]) for path in ("/v1/classify", "/classify")),
]


def _usage(found: Labelled) -> RerankUsage:
    return RerankUsage(found.num_tokens, found.num_tokens)


def _new_id(kind: str) -> str:
    return f"{kind}-{uuid4().hex}"

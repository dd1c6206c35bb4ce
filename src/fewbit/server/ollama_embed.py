"""Ollama's `POST /api/embed`, and `/api/embeddings`, which older clients call."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from .bodies import Body, JsonResponse, read
from .embedding import embed
from .ollama import keep
from .ollama_types import KeepAlive, OllamaOptions
from .openai_embeddings import shortened


class OllamaEmbedRequest(Body):
    """Of `options` none changes a vector; those that are refused elsewhere are refused here too."""

    model: str
    input: str | Annotated[list[str], Meta(max_length=2048)]
    truncate: bool = True
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    options: OllamaOptions | None = None
    keep_alive: KeepAlive | None = None


class OllamaEmbeddingsRequest(Body):
    model: str
    prompt: str
    options: OllamaOptions | None = None
    keep_alive: KeepAlive | None = None


class OllamaEmbedded(msgspec.Struct):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbedding(msgspec.Struct):
    embedding: list[float]


async def embed_texts(request: Request) -> Response:
    begun = perf_counter_ns()
    body = await read(request, OllamaEmbedRequest)
    (body.options or OllamaOptions()).check()
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not texts:
        return JsonResponse(OllamaEmbedded(body.model, [], perf_counter_ns() - begun, 0, 0))
    found = await embed(request, body.model, texts, body.truncate)
    keep(request, body.model, body.keep_alive)
    rows = shortened(found.rows, body.dimensions)
    total_ns = perf_counter_ns() - begun
    return JsonResponse(OllamaEmbedded(found.model, rows.tolist(), total_ns, found.load_ns, found.num_tokens))


async def embed_prompt(request: Request) -> Response:
    body = await read(request, OllamaEmbeddingsRequest)
    (body.options or OllamaOptions()).check()
    found = await embed(request, body.model, [body.prompt], truncate=True)
    keep(request, body.model, body.keep_alive)
    return JsonResponse(OllamaEmbedding(found.rows[0].tolist()))


ROUTES: list[BaseRoute] = [
    Route("/api/embed", embed_texts, methods=["POST"]),
    Route("/api/embeddings", embed_prompt, methods=["POST"]),
]

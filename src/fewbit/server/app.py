"""The app: routes, and what stands before them.

To add an API: its handlers in a module of this package, and its routes in `ROUTES`. A handler reads its body with
`bodies.read`, makes a `Job`, calls `runs.begin`, and streams or collects what comes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..errors import FewbitError
from ..files.feedback import FeedbackStore
from . import (
    adapters,
    anthropic,
    changes,
    feedback,
    in_browser,
    llama_server,
    ollama,
    ollama_embed,
    ollama_models,
    openai_batches,
    openai_embeddings,
    openai_files,
    openai_responses,
    page,
    rerank,
)
from .batch.batches import Batches
from .errors import ApiError, from_fewbit
from .files import FileStore
from .guard import Guard, error_response
from .health import health, stats
from .ignored import IgnoredFields
from .learning import Learner
from .metrics import Metrics, metrics
from .openai_chat import chat_completions
from .openai_completions import completions
from .openai_models import get_model, list_models
from .openapi import openapi
from .pool import Pool
from .settings import Settings
from .state import State
from .tokens import detokenize, tokenize, tokenizer_info

ROUTES: list[BaseRoute] = [
    Route("/health", health),
    Route("/stats", stats),
    Route("/metrics", metrics),
    Route("/v1/models", list_models),
    Route("/v1/models/{model:path}", get_model),
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
    Route("/tokenizer_info", tokenizer_info),
    Route("/openapi.json", openapi),
    *changes.ROUTES,
    *adapters.ROUTES,
    *feedback.ROUTES,
    *llama_server.ROUTES,
    *openai_responses.ROUTES,
    *openai_embeddings.ROUTES,
    *rerank.ROUTES,
    *openai_files.ROUTES,
    *openai_batches.ROUTES,
    *anthropic.ROUTES,
    *ollama.ROUTES,
    *ollama_models.ROUTES,
    *ollama_embed.ROUTES,
    *in_browser.ROUTES,
    *page.ROUTES,
]


def make_app(settings: Settings, pool: Pool, routes: Sequence[BaseRoute] = (), *, close_pool: bool = True) -> Starlette:
    """The server as an ASGI app. `routes` come before those that are there. At its end it closes its models."""
    state = State(settings, pool, Metrics(pool))
    middleware = [Middleware(Guard, state=state), Middleware(IgnoredFields)]
    if settings.cors_origins:
        middleware.insert(0, Middleware(
            CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=["*"], allow_headers=["*"]
        ))  # fmt: skip

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        state.pauses.start()
        if state.batches is not None:
            state.batches.start()
        if state.learner is not None:
            await state.learner.start()
        yield
        if state.learner is not None:
            await state.learner.stop()
        state.pauses.stop()
        if state.batches is not None:
            await state.batches.stop()
            state.batches.files.close()
        if close_pool:
            await pool.close()
        if state.feedback is not None:
            state.feedback.close()

    app = Starlette(
        routes=[*routes, *ROUTES],
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={
            ApiError: _api_error,
            FewbitError: _fewbit_error,
            HTTPException: _http_error,
            Exception: _unexpected,
        },
    )
    app.state.fewbit = state
    if settings.feedback is not None:
        state.feedback = FeedbackStore(settings.feedback)
        if settings.learn is not None:
            state.learner = Learner(settings, pool, state.feedback, state.metrics)
    if settings.files_dir is not None:
        state.files = FileStore(Path(settings.files_dir), settings.max_files_bytes, settings.max_files)
        state.batches = Batches(app, state.files)
    return app


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, request.scope)


async def _fewbit_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, FewbitError)
    return await _api_error(request, from_fewbit(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:100]}"
    messages = {404: f"there is no {what}", 405: f"{what}: this method is not allowed"}
    found = ApiError(error.status_code, messages.get(error.status_code, error.detail), code="not_found")
    response = await _api_error(request, found)
    response.headers.update(error.headers or {})
    return response


async def _unexpected(request: Request, error: Exception) -> Response:
    name = request.scope.get("fewbit.request_id", "")
    message = f"something went wrong in the server; its log tells more of request {name}"
    return await _api_error(request, ApiError(500, message, code="internal"))

"""`GET /health`, and `GET /stats`: what the server does now, for `fewbit ps` and the page."""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .bodies import JsonResponse
from .metrics import read
from .pool import ServedModel
from .state import state_of


class Health(msgspec.Struct):
    status: Literal["ok"] = "ok"


class ModelStats(msgspec.Struct):
    """Counts since the model was loaded, and what it does now."""

    model: str
    loaded: bool
    ctx: int = 0  # tokens
    running: int = 0
    waiting: int = 0
    steps: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0  # run, not found in the cache
    pages_total: int = 0
    pages_used: int = 0
    pages_shared: int = 0
    pages_cached: int = 0
    pages_free: int = 0
    prefix_hit_rate: float = 0.0


class Stats(msgspec.Struct):
    uptime_seconds: float
    time: float  # by the server's clock: two answers give rates
    requests: int  # that run or wait
    max_pause_seconds: float  # the longest that the event loop could not do anything
    models: list[ModelStats]


async def health(request: Request) -> Response:
    state_of(request).check_open()
    return JsonResponse(Health())


async def stats(request: Request) -> Response:
    state = state_of(request)
    models = [_stats(entry) for entry in state.pool.allowed()]
    return JsonResponse(Stats(time.time() - state.started, time.time(), state.open_runs, state.pauses.longest, models))


def _stats(entry: ServedModel) -> ModelStats:
    if entry.llm is None:
        return ModelStats(entry.name, False)
    counts = read(entry.llm)
    names = {
        "running": "requests_running", "waiting": "requests_waiting", "steps": "steps",
        "generated_tokens": "generated_tokens", "prompt_tokens": "computed_prompt_tokens",
        "pages_total": "pages_total", "pages_used": "pages_used", "pages_shared": "pages_shared",
        "pages_cached": "pages_cached", "pages_free": "pages_free",
    }  # fmt: skip
    whole = {name: int(counts[f"fewbit_{other}"]) for name, other in names.items()}
    rate = counts["fewbit_prefix_hit_rate"]
    return ModelStats(entry.name, True, entry.llm.ctx, prefix_hit_rate=rate, **whole)

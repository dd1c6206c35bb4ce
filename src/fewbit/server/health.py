"""`GET /health`, and `GET /stats`: what the server does now, for `fewbit ps` and the page."""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .backend import Counts
from .bodies import JsonResponse
from .learning import LearningStats
from .pool import ServedModel
from .state import state_of


class Health(msgspec.Struct):
    status: Literal["ok"] = "ok"


class ReplicaStats(msgspec.Struct):
    replica: str
    running: int
    waiting: int
    queued_tokens: int
    generated_tokens: int
    prefix_hit_rate: float


class ModelStats(msgspec.Struct):
    """Counts since the model was loaded, and what it does now."""

    model: str
    loaded: bool
    ctx: int = 0  # tokens
    running: int = 0
    waiting: int = 0
    steps: int = 0
    generated_tokens: int = 0
    draft_tokens: int = 0  # guessed and verified
    accepted_tokens: int = 0  # of them, those that were right
    prompt_tokens: int = 0  # run, not found in the cache
    pages_total: int = 0
    pages_used: int = 0
    pages_shared: int = 0
    pages_cached: int = 0
    pages_free: int = 0
    prefix_hit_rate: float = 0.0
    replicas: list[ReplicaStats] | msgspec.UnsetType = msgspec.UNSET  # of a model on several machines


class Stats(msgspec.Struct):
    uptime_seconds: float
    time: float  # by the server's clock: two answers give rates
    requests: int  # that run or wait
    max_pause_seconds: float  # the longest that the event loop could not do anything
    models: list[ModelStats]
    learning: LearningStats | msgspec.UnsetType = msgspec.UNSET  # with --learn


async def health(request: Request) -> Response:
    state_of(request).check_open()
    return JsonResponse(Health())


async def stats(request: Request) -> Response:
    state = state_of(request)
    models = [await _stats(entry) for entry in state.pool.allowed()]
    learning = msgspec.UNSET if state.learner is None else state.learner.stats
    return JsonResponse(
        Stats(time.time() - state.started, time.time(), state.open_runs, state.pauses.longest, models, learning)
    )


async def _stats(entry: ServedModel) -> ModelStats:
    if entry.backend is None:
        return ModelStats(entry.name, False)
    found = await entry.backend.counts()
    counts = sum(found.values(), Counts())
    stats = ModelStats(
        entry.name, True, entry.backend.facts.ctx, counts.active, counts.waiting, counts.steps, counts.tokens,
        counts.draft_tokens, counts.accepted_tokens, counts.prompt_tokens, counts.pages_total, counts.pages_used,
        counts.pages_shared, counts.pages_cached, counts.pages_free, counts.hit_rate,
    )  # fmt: skip
    named = [_replica(name, one) for name, one in found.items() if name]
    return msgspec.structs.replace(stats, replicas=named) if named else stats


def _replica(name: str, counts: Counts) -> ReplicaStats:
    return ReplicaStats(
        name, counts.active, counts.waiting, counts.queued_tokens, counts.tokens, round(counts.hit_rate, 4)
    )

"""A backend whose jobs use one of its adapters."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, TypeVar

from ..arrays import Floats
from .backend import Asker, Backend, Counts, ModelFacts
from .jobs import Job, RunEvent

T = TypeVar("T")


class AdaptedBackend(Backend):
    """A backend whose jobs use an adapter.

    Args:
        inner: The backend.
        adapter: The name of one of its adapters.
    """

    def __init__(self, inner: Backend, adapter: str) -> None:
        self.inner, self.adapter = inner, adapter

    @property
    def facts(self) -> ModelFacts:
        return self.inner.facts

    def run(self, job: Job, asker: Asker) -> AsyncGenerator[RunEvent, None]:
        job.options["adapter"] = self.adapter
        return self.inner.run(job, asker)

    async def work(self, asker: Asker, call: Callable[..., T], *given: Any) -> T:
        return await self.inner.work(asker, call, *given)

    async def embed(self, prompts: list[list[int]], pooling: str | None = None, adapter: str | None = None) -> Floats:
        return await self.inner.embed(prompts, pooling, self.adapter)

    async def counts(self) -> Mapping[str, Counts]:
        return await self.inner.counts()

    def close(self) -> None:
        self.inner.close()

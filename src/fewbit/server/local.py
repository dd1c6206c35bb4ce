"""The backend of this process: an LLM beside the handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from ..arrays import Floats
from ..cache.disk import DiskStats
from ..llm import LLM
from ..text.infill import infill_tokens
from .backend import Asker, Backend, Counts, ModelFacts
from .jobs import Job, OutputDelta, RunEvent, Started, run
from .log import log

T = TypeVar("T")


class LocalBackend(Backend):
    """Runs jobs on an LLM.

    Args:
        llm: The model.
        name: What the log calls it.
    """

    def __init__(self, llm: LLM, name: str) -> None:
        self.llm = llm
        self._name, self._queued, self._disk_error = name, 0, ""

    @cached_property
    def facts(self) -> ModelFacts:
        llm, tokenizer = self.llm, self.llm.tokenizer
        return ModelFacts(
            llm.ctx, llm.engine.max_length, llm.loaded.max_seqs, llm.sampling, llm.path,
            chat_template=tokenizer.chat_templates.get("default"), bos_token=tokenizer.bos_token or None,
            eos_token=tokenizer.eos_token or None, vocab_size=tokenizer.vocab_size,
            can_infill=infill_tokens(tokenizer) is not None, sees_images=llm.sees_images,
        )  # fmt: skip

    async def run(self, job: Job, asker: Asker) -> AsyncGenerator[RunEvent, None]:
        left = 0  # tokens of this job that are still to come, at most
        try:
            async with aclosing(run(job, self.llm, asker.in_thread)) as events:
                async for event in events:
                    if isinstance(event, Started):
                        left = self._tokens(job, event)
                        self._queued += left
                    elif isinstance(event, OutputDelta):
                        come = min(left, len(event.tokens))
                        left, self._queued = left - come, self._queued - come
                    yield event
        finally:
            self._queued -= left
            self._report_disk()

    async def work(self, asker: Asker, call: Callable[..., T], *given: Any) -> T:
        return await asker.in_thread(call, self.llm, *given)

    async def embed(self, prompts: list[list[int]], pooling: str | None = None, adapter: str | None = None) -> Floats:
        if pooling == "rank":
            return await self.llm.aclass_logits(prompts)
        return np.asarray(await self.llm.aembed(prompts, adapter=adapter), np.float32)

    @property
    def adapters(self) -> dict[str, str]:
        return self.llm.adapters

    async def load_adapter(self, name: str, path: str | None, replace: bool = False) -> None:
        await asyncio.to_thread(partial(self.llm.load_adapter, name, path, replace=replace))

    async def unload_adapter(self, name: str) -> None:
        await asyncio.to_thread(self.llm.unload_adapter, name)

    async def counts(self) -> dict[str, Counts]:
        return {"": counts_of(self.llm, self._queued)}

    def close(self) -> None:
        self.llm.close()

    def _tokens(self, job: Job, started: Started) -> int:
        """The tokens that a job runs at most: those of its prompts once, and all that it may write."""
        most, length = job.options.get("max_tokens"), self.facts.max_length
        room = [length - len(prompt) if most is None else most for prompt in started.prompts]
        return sum(map(len, started.prompts)) + job.n * sum(room)

    def _report_disk(self) -> None:
        """Log a `--cache-dir` that fails, once until it works again."""
        error = disk_stats(self.llm).error
        if error and not self._disk_error:
            log("cache-dir failed", model=self._name, reason=error)
        self._disk_error = error


def counts_of(llm: LLM, queued_tokens: int = 0) -> Counts:
    """What a model does now, and has done."""
    engine, cache, disk = llm.engine.stats(), llm.engine.cache.stats(), disk_stats(llm)
    return Counts(
        active=engine.active, waiting=engine.waiting, queued_tokens=queued_tokens, steps=engine.steps,
        tokens=engine.tokens, prompt_tokens=engine.prompt_tokens,
        draft_tokens=engine.draft_tokens, accepted_tokens=engine.accepted_tokens, preemptions=engine.preemptions,
        images_encoded=engine.images_encoded, images_reused=engine.images_reused,
        pages_total=cache.total, pages_used=cache.used, pages_shared=cache.shared, pages_cached=cache.cached,
        pages_free=cache.free, lookups=cache.lookups, hits=cache.hits, disk_written=disk.written,
        disk_dropped=disk.dropped, disk_failed=disk.failed, divergence=cache.divergence,
    )  # fmt: skip


def disk_stats(llm: LLM) -> DiskStats:
    """What happened in the folder of `--cache-dir`, if there is one."""
    disk = llm.engine.cache.disk
    return DiskStats() if disk is None else disk.stats()

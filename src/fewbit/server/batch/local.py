"""A job in this process, on one model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from starlette.applications import Starlette

from ...llm import LLM
from ..local import LocalBackend
from ..pool import Pool
from .in_process import Submitter, answer, batch_app
from .job import BatchJob, BatchSummary
from .lines import InputLine, Record
from .runner import in_flight

LINES_PER_SEQ = 2  # so that the engine never waits for the next line


def local_app(llm: LLM, name: str) -> Starlette:
    """An app for the requests of a batch whose only model is called `name`."""
    return batch_app(Pool.of_backends({name: LocalBackend(llm, name)}))


def num_in_flight(llm: LLM) -> int:
    return LINES_PER_SEQ * llm.loaded.max_seqs


def run_local(job: BatchJob, llm: LLM, name: str, progress: Callable[[], object]) -> BatchSummary:
    """Do what remains of a job.

    Args:
        job: The job.
        llm: The model.
        name: What requests call it.
        progress: Called after each line.
    """
    asyncio.run(_run(job, llm, name, progress))
    return job.finish()


async def _run(job: BatchJob, llm: LLM, name: str, progress: Callable[[], object]) -> None:
    app, submitter = local_app(llm, name), Submitter()

    async def answer_line(line: InputLine) -> Record:
        return await answer(app, line, job.repeated, submitter, job.created)

    async with aclosing(in_flight(job.remaining(), answer_line, num_in_flight(llm))) as records:
        async for record in records:
            job.add(record)
            progress()

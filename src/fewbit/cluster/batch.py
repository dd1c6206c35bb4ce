"""Batch jobs on the machines of a Ray cluster, through Ray Data: each worker has the model and answers some lines.

The journal stays with the process that submits the job. Ray Data gives the lines of a worker that died to another one;
a line that is answered twice is kept once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import ray
from ray.data import ActorPoolStrategy, DataContext

from ..errors import ArgumentError, FewbitError
from ..llm import LLM
from ..server.batch.in_process import Submitter, answer
from ..server.batch.job import BatchJob, BatchSummary
from ..server.batch.lines import InputLine, Record
from ..server.batch.local import local_app, num_in_flight
from ..server.batch.runner import in_flight

LINES_PER_TASK = 8  # whose answers come back, and are kept, together
MAX_TASKS = 20_000  # of a job; larger jobs have more lines in each

Rows = dict[str, Any]  # columns by name


@dataclass(frozen=True)
class Workers:
    """Who does a job.

    Args:
        source: What `LLM` takes for the model, on each machine.
        name: What requests call the model.
        loading: Options of `LLM`.
        replicas: Number of workers.
        cpus: CPUs that Ray reserves for each.
        gpus: GPUs that Ray reserves for each.
        max_seqs: Outputs that a worker runs at a time.
    """

    source: str
    name: str
    loading: dict[str, Any] = field(default_factory=dict)
    replicas: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    max_seqs: int = 64


class BatchWorker:
    """A model, and a thread whose event loop keeps the lines of several tasks in flight."""

    def __init__(self, workers: Workers, created: int) -> None:
        self._llm = LLM(workers.source, **workers.loading)
        self._app, self._created = local_app(self._llm, workers.name), created
        self._most = num_in_flight(self._llm)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def __call__(self, rows: Rows) -> Rows:
        """The answers to some lines, in columns as they came."""
        return asyncio.run_coroutine_threadsafe(self._answer(rows), self._loop).result()

    async def _answer(self, rows: Rows) -> Rows:
        lines = [*map(InputLine, *(rows[name].tolist() for name in ("index", "number", "data")))]
        repeats = dict(zip(rows["index"].tolist(), rows["repeats"].tolist(), strict=True))

        async def answer_line(line: InputLine) -> Record:
            first = repeats[line.index]
            repeated = {line.index: first} if first else {}
            return await answer(self._app, line, repeated, Submitter(), self._created)

        async with aclosing(in_flight(lines, answer_line, self._most)) as records:
            return _columns([record async for record in records])


def run_on_cluster(
    job: BatchJob, workers: Workers, address: str | None, progress: Callable[[], object] = lambda: None
) -> BatchSummary:
    """Do what remains of a job.

    Args:
        job: The job.
        workers: Who does it.
        address: The cluster, as `ray.init` takes it; None: processes of this machine alone.
        progress: Called after each line.
    """
    with _connected(address, workers):
        _check_room(workers)
        try:
            for record in _records(job, workers):
                job.add(record)
                progress()
        except ray.exceptions.RayError as error:
            raise FewbitError(f"the cluster stopped the job: {_reason(error)}") from error
    return job.finish()


def _records(job: BatchJob, workers: Workers) -> Iterator[Record]:
    """The answers to all lines that remain, in the order in which they are done."""
    items = [
        {"index": line.index, "number": line.number, "data": line.data, "repeats": job.repeated.get(line.index, 0)}
        for line in job.remaining()
    ]  # fmt: skip
    if not items:
        return
    per_task = max(LINES_PER_TASK, -(-len(items) // MAX_TASKS))
    tasks = max(1, 2 * workers.max_seqs // per_task)  # of a worker at a time
    answers = ray.data.from_items(items, override_num_blocks=-(-len(items) // per_task)).map_batches(
        BatchWorker, fn_constructor_args=(workers, job.created), batch_size=None, num_cpus=workers.cpus,
        num_gpus=workers.gpus, compute=ActorPoolStrategy(
            size=workers.replicas, max_tasks_in_flight_per_actor=2 * tasks, max_concurrent_calls_per_actor=tasks,
            enable_true_multi_threading=True,
        ),
    )  # fmt: skip
    for rows in answers.iter_batches(batch_size=None, batch_format="numpy"):
        yield from map(Record, *(rows[name].tolist() for name in COLUMNS))


COLUMNS = ("index", "status", "prompt_tokens", "completion_tokens", "line")


def _columns(records: list[Record]) -> Rows:
    return {name: [getattr(record, name) for record in records] for name in COLUMNS}


@contextmanager
def _connected(address: str | None, workers: Workers) -> Iterator[None]:
    """Use a cluster: the one that this process is connected to already, another, or one of this machine alone."""
    is_there = ray.is_initialized()
    if not is_there:
        own = {} if address else {"num_cpus": ceil(workers.cpus * workers.replicas), "include_dashboard": False}
        try:
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ArgumentError(f"there is no Ray cluster at {address!r}: {_reason(error)}") from None
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # errors are raised, and told in a sentence
    DataContext.get_current().enable_progress_bars = False
    try:
        yield
    finally:
        if not is_there:
            ray.shutdown()


def _check_room(workers: Workers) -> None:
    """Refuse what the cluster could never start; Ray would wait for ever."""
    room = ray.cluster_resources()
    for name, each in (("CPU", workers.cpus), ("GPU", workers.gpus)):
        if each * workers.replicas > room.get(name, 0.0):
            raise ArgumentError(
                f"{workers.replicas} workers with {each:g} {name}s each are more than the cluster has "
                f"({room.get(name, 0.0):g}); use fewer --replicas or --threads"
            )


def _reason(error: Exception) -> str:
    """The last line of an error of Ray, which holds tracebacks."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__

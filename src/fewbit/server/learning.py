"""`fewbit serve --learn`: votes train the next version of an adapter beside the server, which serves the one in use.

The adapter is a model of its own, `base:learned`, which stands for the model alone while no version is in use. The
index of versions is watched, so that a version made or taken back by another process is served too.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from prometheus_client import Counter, Gauge

from ..errors import FewbitError
from ..files.adapter_versions import INDEX_NAME, AdapterVersions
from ..files.feedback import MIN_RATED, FeedbackStore
from ..llm import LLM
from .log import log
from .metrics import Metrics
from .pool import Pool, ServedModel
from .settings import Settings

ADAPTER_NAME = "learned"
WATCH_SECONDS = 1.0
RETRY_SECONDS = 3600.0  # after training that failed
END_SECONDS = 5.0  # that the process gets at the end


class LearningStats(msgspec.Struct):
    """What is learned from feedback now."""

    model: str  # that requests name to use it
    state: Literal["waiting", "training"] = "waiting"
    version: str | None = None  # in use
    votes: int = 0  # that no version has learned
    step: int = 0  # of the training that runs
    steps: int = 0
    error: str | None = None  # of the last training, or of a version that could not be loaded


class Learner:
    """Trains on votes when there are new ones, and serves the version that is in use.

    Args:
        settings: Of the server: when it learns, and where votes and versions are.
        pool: Its models; the first one learns.
        store: The votes.
        metrics: Where it counts.
    """

    def __init__(self, settings: Settings, pool: Pool, store: FeedbackStore, metrics: Metrics) -> None:
        assert settings.learn is not None
        self.entry = next(iter(pool.entries.values()))
        self.stats = LearningStats(f"{self.entry.name}:{ADAPTER_NAME}")
        self._options, self._store = settings.learn, store
        self._folder = Path(settings.learn.folder)
        self._versions = AdapterVersions(self._folder)
        self._index: tuple[int, int] | None = None  # inode and time of the index that was read last
        self._failed: set[str] = set()  # versions that cannot be loaded
        self._retry_at = 0.0  # after training that failed
        self._watching: asyncio.Task[None] | None = None
        self._training: asyncio.Task[None] | None = None
        pool.on_load = self._attach
        self._runs = Counter(
            "fewbit_learning_runs", "Trainings by how they ended.", ["model", "result"], registry=metrics.registry
        )
        running = Gauge("fewbit_learning_running", "Whether training runs.", ["model"], registry=metrics.registry)
        running.labels(self.entry.name).set_function(lambda: self.stats.state == "training")

    async def start(self) -> None:
        """Serve the version in use, and begin to watch."""
        if self.entry.backend is not None:
            await self._follow()
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """End. Training goes on from its last checkpoint when the server is started again."""
        for task in (self._watching, self._training):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    def _attach(self, entry: ServedModel, llm: LLM) -> None:
        """Give a model that was just loaded its adapter."""
        if entry is self.entry:
            path = AdapterVersions(self._folder).current_path
            llm.load_adapter(ADAPTER_NAME, path)

    async def _watch(self) -> None:
        while True:
            try:
                await self._follow()
                if self._training is None and await self._is_due():
                    self._training = asyncio.create_task(self._train())
            except (FewbitError, OSError) as error:
                self._fail(str(error))
            await asyncio.sleep(WATCH_SECONDS)

    async def _follow(self) -> None:
        """Serve the version that is in use by the index."""
        self._read_index()
        backend, path = self.entry.backend, self._versions.current_path
        source = "" if path is None else str(path)
        if backend is None or source in self._failed:
            return
        try:
            if backend.adapters.get(ADAPTER_NAME) != source:
                await backend.load_adapter(ADAPTER_NAME, source or None, replace=True)
                log("learned version in use", model=self.entry.name, version=self._versions.current or "none")
        except (FewbitError, OSError) as error:
            if self.entry.backend is backend:  # not one that was closed meanwhile
                self._failed.add(source)
                self._fail(f"{source or 'the model alone'} cannot be served: {error}")
            return
        self.stats.version = self._versions.current

    def _read_index(self) -> None:
        try:
            found = os.stat(self._folder / INDEX_NAME)
        except OSError:
            return
        if self._index != (found.st_ino, found.st_mtime_ns):
            self._index = found.st_ino, found.st_mtime_ns
            self._versions = AdapterVersions(self._folder)

    async def _is_due(self) -> bool:
        """Whether there are enough votes, and the last training is long enough ago."""
        since, name = self._versions.time, self.entry.name
        self.stats.votes = await asyncio.to_thread(self._store.num_rated, name, since)
        is_early = time.time() < max(self._retry_at, since + self._options.every_seconds)
        if is_early or self.stats.votes < self._options.after_votes:
            return False
        has_enough = await asyncio.to_thread(self._store.num_rated, name) >= MIN_RATED
        return has_enough and not self._versions.is_training()

    async def _train(self) -> None:
        """Make the next version in a process of its own."""
        self.stats.state, self.stats.error = "training", None
        log("learning begins", model=self.entry.name, votes=self.stats.votes)
        try:
            ended = await self._run_process()
        except OSError as error:
            ended = {"error": str(error)}
        finally:
            self.stats.state, self.stats.step, self.stats.steps = "waiting", 0, 0
            self._training = None
        self._report(ended)

    def _report(self, ended: Mapping[str, Any]) -> None:
        if "elsewhere" in ended:  # another server was faster
            return
        version = ended.get("version")
        result = "failed" if version is None else "better" if version["is_better"] else "worse"
        self._runs.labels(self.entry.name, result).inc()
        if version is None:
            self._retry_at = time.time() + RETRY_SECONDS
            self._fail(str(ended.get("error")))
            return
        log("learning ended", model=self.entry.name, version=version["name"], result=result, votes=version["votes"],
            loss=round(version["loss"], 4), before=round(version["previous_loss"], 4))  # fmt: skip

    async def _run_process(self) -> Mapping[str, Any]:
        """The last line of the process."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fewbit.server.learn_process", stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(self._arguments()).encode() + b"\n")
            ended: Mapping[str, Any] = {}
            async for line in process.stdout:
                ended = json.loads(line)
                self.stats.step, self.stats.steps = ended.get("done", 0), ended.get("total") or 0
            status = await process.wait()
            return ended if {"version", "error", "elsewhere"} & ended.keys() else {"error": _why(status)}
        finally:
            await _end(process)

    def _arguments(self) -> dict[str, Any]:
        """Those of `tune_from_feedback`."""
        path = None if self.entry.backend is None else self.entry.backend.facts.path
        return {
            "model": str(path or self.entry.source),
            "feedback": str(self._store.path),
            "out": str(self._folder),
            "answers_of": self.entry.name,
            "threads": self._options.threads,
            **self._options.training,
        }

    def _fail(self, reason: str) -> None:
        if reason != self.stats.error:
            log("learning failed", model=self.entry.name, reason=reason)
        self.stats.error = reason


def _why(status: int) -> str:
    """Why a process that said nothing ended."""
    if status < 0:
        return f"training was ended by signal {-status}" + ("; was memory short?" if status == -9 else "")
    return f"training ended with status {status}; its message is above in this log"


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()

"""Kernels compiled in processes beside this one: threads that compile wait for each other inside NVRTC.

A process is an interpreter that runs `nvrtc.py`, and ends when this process closes its pipe, at its end too. No module
of the user's is imported there. Where none can be started, kernels are compiled in this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from atexit import register
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock, Thread, current_thread
from typing import NamedTuple

from ..cores import usable_cores
from . import nvrtc

Compile = Callable[[str, list[str]], bytes]
FEW = 2  # kernels that are compiled before a process has started


class Source(NamedTuple):
    """A kernel to compile, and what is done with its machine code before others hear of it."""

    text: str
    options: list[str]
    keep: Callable[[bytes], object] = len


class CompilerProcess:
    """An interpreter that compiles one kernel after another."""

    def __init__(self) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", nvrtc.__file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths}, start_new_session=True,
        )  # fmt: skip

    def compile(self, source: str, options: list[str]) -> bytes:
        """Machine code. Raises OSError or EOFError where the process has ended, ValueError where NVRTC refuses."""
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None
        assert replies is not None
        text = json.dumps([source, *options]).encode()
        requests.write(nvrtc.REQUEST.pack(len(text)) + text)
        requests.flush()
        compiled, count = nvrtc.REPLY.unpack(nvrtc.read_exactly(replies, nvrtc.REPLY.size))
        data = nvrtc.read_exactly(replies, count)
        if not compiled:
            raise ValueError(data.decode(errors="replace"))
        return data

    def close(self) -> None:
        """End the process, whatever it does."""
        with suppress(OSError):
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def can_start() -> bool:
    """Whether this interpreter can be started again: not in a frozen program, nor where another one embeds it."""
    return not getattr(sys, "frozen", False) and "python" in Path(sys.executable or "").name.lower()


class CompilerPool:
    """A queue of kernels and the threads that empty it, each with a process of its own.

    Args:
        alone: Compiles a kernel in this process, for where no other one can.
        threads: Most kernels at a time. Defaults to all usable cores.
    """

    def __init__(self, alone: Compile, threads: int | None = None) -> None:
        self._alone, self._most = alone, threads
        self._lock = Lock()
        self._threads, self._processes = set[Thread](), set[CompilerProcess]()
        self._queue: deque[tuple[Future[bytes], Source]] = deque()
        register(self.close)

    def submit(self, sources: Sequence[Source], urgent: bool = False) -> list[Future[bytes]]:
        """Compile kernels in their order; returns at once. Urgent ones come before all others."""
        futures: list[Future[bytes]] = [Future() for _ in sources]
        with self._lock:
            jobs = list(zip(futures, sources, strict=True))
            self._queue = deque([*jobs, *self._queue] if urgent else [*self._queue, *jobs])
            count = max(0, min((self._most or usable_cores()) - len(self._threads), len(self._queue)))
            run = partial(self._run, len(self._queue) > FEW and can_start())
            started = [Thread(target=run, name="fewbit-compiler", daemon=True) for _ in range(count)]
            self._threads.update(started)
            for thread in started:
                thread.start()
        return futures

    def close(self) -> None:
        """Drop what was not begun, and end the processes. Kernels that this process compiles itself are waited for."""
        with self._lock:
            jobs, self._queue = self._queue, deque()
            threads, processes = list(self._threads), list(self._processes)
            self._processes.clear()
        for future, *_ in jobs:
            future.cancel()
        for process in processes:
            process.close()
        for thread in threads:
            thread.join()

    def _run(self, has_process: bool) -> None:
        """Empty the queue."""
        process = self._start() if has_process else None
        while (job := self._next()) is not None:
            future, source = job
            try:
                code = self._compile(process, source)
                source.keep(code)
                future.set_result(code)
            except Exception as error:
                future.set_exception(error)
        if process is not None:
            with self._lock:
                self._processes.discard(process)
            process.close()

    def _start(self) -> CompilerProcess | None:
        try:
            process = CompilerProcess()
        except (OSError, ValueError):  # the system refuses
            return None
        with self._lock:
            self._processes.add(process)
        return process

    def _compile(self, process: CompilerProcess | None, source: Source) -> bytes:
        if process is not None:
            try:
                return process.compile(source.text, source.options)
            except (OSError, EOFError, ValueError):
                if process not in self._processes:  # it was ended with the pool
                    raise
        return self._alone(source.text, source.options)  # says what is wrong, if it is the source

    def _next(self) -> tuple[Future[bytes], Source] | None:
        """The next kernel that nobody has taken back. None: there is none, and the thread counts no more."""
        with self._lock:
            while self._queue:
                job = self._queue.popleft()
                if job[0].set_running_or_notify_cancel():
                    return job
            self._threads.discard(current_thread())
            return None

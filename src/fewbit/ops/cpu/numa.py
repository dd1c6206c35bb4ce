"""Where a model's threads run and its memory lies: the options `numa` and `pin_threads`.

The threads of the process are one pool, which all of its models share: while a model holds a binding, others may hold
the same one or none.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from threading import RLock

from ... import _native
from ...arrays import Bytes
from ...errors import RequestError
from ..cgroup import ROOT
from ..cores import quotas
from ..topology import chosen_node, memory_nodes, numa_nodes, thread_nodes, usable_cpus, worker_cpus

Wish = tuple[str, bool]  # numa and pin_threads


class Placement:
    """What the options say of threads and memory, checked.

    Args:
        numa: "off", "distribute" or "node:N".
        pin: Whether each thread keeps to a physical core.
        root: Where `sys` and `proc` are.

    >>> Placement("off", False).threads is None
    True
    """

    def __init__(self, numa: str = "off", pin: bool = False, root: Path = ROOT) -> None:
        self.wish = numa, pin
        number = chosen_node(numa)
        self.threads: int | None = None  # the default number, if it is not that of all cores
        self._workers: list[list[int]] = []
        self._memory: list[int] = []
        if numa == "off" and not pin:
            return
        if sys.platform != "linux":
            raise RequestError(f"numa and pin_threads need Linux, this is {sys.platform}; leave them out")
        self._cpus = usable_cpus()
        nodes = numa_nodes(self._cpus, root)
        self._workers = [[*cpus] for cpus in worker_cpus(nodes, numa, pin)]
        self._memory = memory_nodes(nodes, numa)
        if number is not None and "FEWBIT_THREADS" not in os.environ:
            self.threads = max(1, min([len(thread_nodes(nodes, numa)[0].cores), *quotas(root)]))

    @property
    def place(self) -> Callable[[Bytes], None] | None:
        """A function that says where memory comes from that nobody touched yet; None where there is no choice."""
        return self._place if self._memory else None

    def bind(self) -> ThreadBinding | None:
        """Bind the threads of the process until the result is released; None where they may run anywhere."""
        return ThreadBinding(self.wish, self._workers, self._cpus) if self._workers else None

    def _place(self, memory: Bytes) -> None:
        numa, _ = self.wish
        if error := _native.place_memory(memory.reshape(-1), self._memory, numa == "distribute"):
            raise RequestError(
                f"numa={numa!r}: the system does not let this process place memory ({os.strerror(error)}); a container "
                "may need the capability SYS_NICE; or leave numa out"
            )


class ThreadBinding:
    """The threads of the process keep to their CPUs while somebody holds this."""

    def __init__(self, wish: Wish, workers: list[list[int]], cpus: list[int]) -> None:
        holder = object()
        self.release = weakref.finalize(self, _pool.release, holder)
        _pool.hold(holder, wish, workers, cpus)


class _Pool:
    """What the threads of the process are bound to, and for whom."""

    def __init__(self) -> None:
        self._held: Wish | None = None
        self._cpus: list[int] = []  # of all threads without a binding
        self._holders: set[object] = set()
        self._lock = RLock()  # a garbage collection may release one while another is made

    def hold(self, holder: object, wish: Wish, workers: list[list[int]], cpus: list[int]) -> None:
        with self._lock:
            self._holders.add(holder)  # first of all: now nothing ends it
            refusal = ""
            if self._held not in (None, wish):
                refusal = (
                    f"the threads of this process are bound for another model, with {_described(self._held)}; close "
                    f"that one, or load this one with the same or without, not with {_described(wish)}"
                )
            elif self._held is None and (error := _native.bind_threads(workers, cpus)):
                refusal = f"{_described(wish)}: the system does not let threads keep to CPUs ({os.strerror(error)})"
            if refusal:
                self.release(holder)
                raise RequestError(refusal)
            self._held, self._cpus = wish, cpus

    def release(self, holder: object) -> None:
        with self._lock:
            self._holders.discard(holder)
            if not self._holders and self._held is not None:
                self._held = None
                _native.bind_threads([], self._cpus)

    def begin_child(self) -> None:
        """The models of a process do not run in those that it forks. Another thread may have held the lock."""
        self._lock = RLock()
        for holder in [*self._holders]:
            self.release(holder)


def _described(wish: Wish | None) -> str:
    numa, pin = wish or ("off", False)
    return f"numa={numa!r} and pin_threads={pin}"


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.begin_child)

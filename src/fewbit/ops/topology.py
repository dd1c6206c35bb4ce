"""The NUMA nodes of this machine with their cores and memory, and the CPUs that each thread of a pool keeps to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import RequestError
from .cgroup import ROOT, read_table

Cpus = tuple[int, ...]
PLACES = '"off", "distribute", or "node:0" for a node by its number'


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A node, with what this process may use of it.

    Args:
        number: Its number.
        cores: The CPUs of each physical core.
        memory_bytes: Size of its memory; 0 if it has none, or none for this process.
    """

    number: int
    cores: tuple[Cpus, ...]
    memory_bytes: int

    @property
    def cpus(self) -> Cpus:
        return tuple(sorted(cpu for core in self.cores for cpu in core))


def read_list(text: str) -> list[int]:
    """A list of numbers as Linux writes it.

    >>> read_list("0-2,8"), read_list("")
    ([0, 1, 2, 8], [])
    """
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def write_list(numbers: Iterable[int]) -> str:
    """
    >>> write_list([8, 0, 1, 2])
    '0-2,8'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def usable_cpus() -> list[int]:
    """CPUs that this thread may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]


def physical_cores(cpus: Iterable[int], root: Path = ROOT) -> tuple[Cpus, ...]:
    """CPUs by the physical core that they share."""
    found: dict[str, list[int]] = {}
    for cpu in sorted(cpus):
        found.setdefault(_siblings(cpu, root), []).append(cpu)
    return tuple(map(tuple, found.values()))


def numa_nodes(cpus: Iterable[int] | None = None, root: Path = ROOT) -> list[NumaNode]:
    """The nodes that have any of these CPUs, or memory; a single one where the system knows of none.

    Args:
        cpus: CPUs that may be used. Default: those of this thread.
        root: Where `sys` and `proc` are.
    """
    usable = set(usable_cpus() if cpus is None else cpus)
    allowed = _allowed_memory(root)
    found = []
    for folder in sorted(root.glob("sys/devices/system/node/node[0-9]*"), key=_number):
        number, own = _number(folder), usable.intersection(_numbers(folder / "cpulist"))
        nbytes = _memory(folder / "meminfo") if allowed is None or number in allowed else 0
        if own or nbytes:
            found.append(NumaNode(number, physical_cores(own, root), nbytes))
    if any(node.cores for node in found):
        return found
    return [NumaNode(0, physical_cores(usable, root), 1024 * read_table(root / "proc/meminfo").get("MemTotal", 0))]


def chosen_node(numa: str) -> int | None:
    """The node that an option names, None if it names none.

    >>> chosen_node("node:1"), chosen_node("distribute")
    (1, None)
    """
    if numa in ("off", "distribute"):
        return None
    name, _, number = numa.partition(":") if isinstance(numa, str) else ("", "", "")
    if name != "node" or not (number.isascii() and number.isdecimal()):
        raise RequestError(f"numa must be {PLACES}; got {numa!r}")
    return int(number)


def thread_nodes(nodes: Sequence[NumaNode], numa: str) -> list[NumaNode]:
    """The nodes that threads run on."""
    number = chosen_node(numa)
    if number is None:
        return [node for node in nodes if node.cores]
    node = next((node for node in nodes if node.number == number), None)
    if node is None or not node.cores:
        lack = "there is no such node here" if node is None else "this process may use none of its CPUs"
        usable = ", ".join(str(node.number) for node in nodes if node.cores)
        raise RequestError(f"numa={numa!r}: {lack}; nodes with CPUs: {usable}")
    return [node]


def memory_nodes(nodes: Sequence[NumaNode], numa: str) -> list[int]:
    """The nodes that memory is to come from, by number; none where there is no choice."""
    number, having = chosen_node(numa), [node.number for node in nodes if node.memory_bytes]
    if number is not None and number not in having:
        raise RequestError(f"numa={numa!r}: the node has no memory; those that have: {', '.join(map(str, having))}")
    if numa == "off" or len(having) < 2:
        return []
    return having if number is None else [number]


def worker_cpus(nodes: Sequence[NumaNode], numa: str, pin: bool) -> list[Cpus]:
    """The CPUs of each thread of the pool, an entry for each CPU; empty where all threads may run anywhere.

    Cores come first and the second CPUs of cores after all of them, so that so many threads have cores of their own.
    With "distribute" nodes take turns.

    >>> two = [NumaNode(0, ((0, 4), (1, 5)), 1), NumaNode(1, ((2, 6), (3, 7)), 1)]
    >>> worker_cpus(two, "distribute", True)
    [(0,), (2,), (1,), (3,), (4,), (6,), (5,), (7,)]
    >>> worker_cpus(two, "node:1", True), worker_cpus(two, "node:1", False)[0]
    ([(2,), (3,), (6,), (7,)], (2, 3, 6, 7))
    """
    chosen = thread_nodes(nodes, numa)
    everywhere = numa == "off" or len([node for node in nodes if node.cores]) == 1
    if everywhere and not pin:
        return []
    found = []
    for at, node in enumerate(chosen):
        for index, core in enumerate(node.cores):
            turn = (index, at) if numa == "distribute" else (at, index)
            found += [((level, *turn), (cpu,) if pin else node.cpus) for level, cpu in enumerate(core)]
    return [cpus for _, cpus in sorted(found)]


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("node"))


def _siblings(cpu: int, root: Path) -> str:
    """CPUs that share a core with this one."""
    try:
        return (root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def _numbers(path: Path) -> list[int]:
    try:
        return read_list(path.read_text())
    except (OSError, ValueError):
        return []


def _memory(meminfo: Path) -> int:
    """Bytes in a line such as `Node 0 MemTotal: 1024 kB`."""
    try:
        lines = [line.split() for line in meminfo.read_text().splitlines()]
        return next((1024 * int(line[3]) for line in lines if line[2:3] == ["MemTotal:"]), 0)
    except (OSError, ValueError, IndexError):
        return 0


def _allowed_memory(root: Path) -> list[int] | None:
    """Nodes whose memory this process may use; None if that is unknown."""
    try:
        lines = (root / "proc/self/status").read_text().splitlines()
        return next(
            (read_list(line.partition(":")[2]) for line in lines if line.startswith("Mems_allowed_list:")), None
        )
    except (OSError, ValueError):
        return None

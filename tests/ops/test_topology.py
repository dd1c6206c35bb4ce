"""Nodes, their cores, and the CPUs of each thread, read from folders that look like those of Linux."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import RequestError
from fewbit.ops.topology import (
    NumaNode,
    memory_nodes,
    numa_nodes,
    physical_cores,
    read_list,
    thread_nodes,
    usable_cpus,
    worker_cpus,
)

GB = 1 << 30
Tree = Mapping[int, tuple[str, int]]  # CPUs and bytes of memory, by node


def write_tree(root: Path, nodes: Tree, siblings: Sequence[str] = (), allowed: str = "") -> Path:
    """Folders for nodes, for CPUs that share cores, and for what a process may use."""
    files = {"proc/meminfo": f"MemTotal: {8 * GB // 1024} kB"}
    files |= {"proc/self/status": f"Name:\tx\nMems_allowed_list:\t{allowed}"} if allowed else {}
    for number, (cpus, nbytes) in nodes.items():
        folder = f"sys/devices/system/node/node{number}"
        files |= {f"{folder}/cpulist": cpus, f"{folder}/meminfo": f"\nNode {number} MemTotal:    {nbytes // 1024} kB"}
    for text in siblings:
        files |= {f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": text for cpu in read_list(text)}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


TWO: Tree = {0: ("0-1,4-5", 4 * GB), 1: ("2-3,6-7", 2 * GB)}
TWO_SIBLINGS = ["0,4", "1,5", "2,6", "3,7"]
EIGHT: Tree = {node: (f"{4 * node}-{4 * node + 3}", GB) for node in range(8)}


def test_two_nodes_with_two_threads_a_core(tmp_path: Path) -> None:
    root = write_tree(tmp_path, TWO, TWO_SIBLINGS)
    nodes = numa_nodes(range(8), root)
    assert nodes == [NumaNode(0, ((0, 4), (1, 5)), 4 * GB), NumaNode(1, ((2, 6), (3, 7)), 2 * GB)]
    assert worker_cpus(nodes, "off", False) == []
    assert worker_cpus(nodes, "off", True) == [(0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,)]
    assert worker_cpus(nodes, "distribute", False)[:3] == [(0, 1, 4, 5), (2, 3, 6, 7), (0, 1, 4, 5)]
    assert worker_cpus(nodes, "node:1", True) == [(2,), (3,), (6,), (7,)]
    assert memory_nodes(nodes, "distribute") == [0, 1]
    assert (memory_nodes(nodes, "node:1"), memory_nodes(nodes, "off")) == ([1], [])


def test_eight_nodes(tmp_path: Path) -> None:
    nodes = numa_nodes(range(32), write_tree(tmp_path, EIGHT))
    assert worker_cpus(nodes, "distribute", True)[:10] == [*((4 * n,) for n in range(8)), (1,), (5,)]
    assert worker_cpus(nodes, "node:7", False) == [(28, 29, 30, 31)] * 4
    assert memory_nodes(nodes, "distribute") == list(range(8))


def test_a_process_keeps_within_its_cpus_and_nodes(tmp_path: Path) -> None:
    nodes = numa_nodes([2, 9, 10, 13], write_tree(tmp_path, EIGHT, allowed="2-3"))
    assert nodes == [
        NumaNode(0, ((2,),), 0), NumaNode(2, ((9,), (10,)), GB), NumaNode(3, ((13,),), GB)
    ]  # fmt: skip
    assert worker_cpus(nodes, "distribute", True) == [(2,), (9,), (13,), (10,)]
    assert memory_nodes(nodes, "distribute") == [2, 3]
    with pytest.raises(RequestError, match=r"numa='node:0': the node has no memory; those that have: 2, 3"):
        memory_nodes(nodes, "node:0")


def test_nodes_without_memory_and_without_cpus(tmp_path: Path) -> None:
    nodes = numa_nodes(range(4), write_tree(tmp_path, {0: ("0-1", GB), 1: ("2-3", 0), 2: ("", GB), 3: ("", 0)}))
    assert [(node.number, node.cpus, node.memory_bytes) for node in nodes] == [
        (0, (0, 1), GB), (1, (2, 3), 0), (2, (), GB)
    ]  # fmt: skip
    assert worker_cpus(nodes, "distribute", True) == [(0,), (2,), (1,), (3,)]
    assert memory_nodes(nodes, "distribute") == [0, 2]
    message = r"numa='node:2': this process may use none of its CPUs; nodes with CPUs: 0, 1"
    with pytest.raises(RequestError, match=message):
        worker_cpus(nodes, "node:2", False)


@pytest.mark.parametrize("numa", ["off", "distribute", "node:0"])
def test_on_one_node_nothing_is_placed(tmp_path: Path, numa: str) -> None:
    for tree in ({}, {0: ("0-3", GB)}):
        nodes = numa_nodes(range(4), write_tree(tmp_path, tree))
        assert [node.number for node in nodes] == [0]
        assert worker_cpus(nodes, numa, False) == []
        assert worker_cpus(nodes, numa, True) == [(0,), (1,), (2,), (3,)]
        assert memory_nodes(nodes, numa) == []


@pytest.mark.parametrize("numa", ["all", "node", "node:", "node:-1", "node:x", "isolate", "", 1])
def test_other_words_are_refused(numa: str) -> None:
    with pytest.raises(RequestError, match=f'numa must be "off", "distribute", or "node:0" .* got {numa!r}'):
        thread_nodes([], numa)


def test_a_node_that_is_not_there(tmp_path: Path) -> None:
    nodes = numa_nodes(range(8), write_tree(tmp_path, TWO))
    with pytest.raises(RequestError, match=r"numa='node:2': there is no such node here; nodes with CPUs: 0, 1"):
        thread_nodes(nodes, "node:2")


def test_this_machine() -> None:
    cpus = [cpu for node in numa_nodes() for cpu in node.cpus]
    assert sorted(cpus) == usable_cpus()


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=4).filter(any),
    st.sampled_from(["off", "distribute"]),
)
def test_each_cpu_is_one_threads_own(shape: list[list[int]], numa: str) -> None:
    """Cores of some CPUs each, in nodes: first one thread for each core, and then the others."""
    numbers = iter(range(100))
    nodes = [
        NumaNode(n, tuple(tuple(next(numbers) for _ in range(size)) for size in sizes if size), 1)
        for n, sizes in enumerate(shape)
    ]
    cores = [core for node in nodes for core in node.cores]
    if not cores:
        return
    found = [cpu for (cpu,) in worker_cpus(nodes, numa, True)]
    assert sorted(found) == sorted(cpu for core in cores for cpu in core)
    assert {*found[: len(cores)]} == {core[0] for core in cores}
    bound = worker_cpus(nodes, numa, False)
    assert len(bound) in (0, len(found))
    assert set(bound) <= {node.cpus for node in nodes}


def test_cores_of_cpus(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {}, TWO_SIBLINGS)
    assert physical_cores([0, 1, 4, 6], root) == ((0, 4), (1,), (6,))
    assert physical_cores([9], root) == ((9,),)
    assert read_list("0-1,4\n") == [0, 1, 4]

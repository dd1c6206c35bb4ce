"""Threads that keep to their CPUs, and memory on its nodes, as the system tells of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit import _native, devices
from fewbit.arrays import Arena, Bytes
from fewbit.cache.layout import make_layout
from fewbit.cache.store import HostStore, zeros
from fewbit.devices import cpu
from fewbit.errors import RequestError
from fewbit.load_options import LoadOptions
from fewbit.ops.cpu.numa import Placement
from fewbit.ops.specs import AttentionSpec, RecurrentSpec
from fewbit.ops.topology import usable_cpus

from ..cli.tiny import write_tiny
from .test_topology import GB, write_tree

linux = pytest.mark.skipif(sys.platform != "linux", reason="threads and memory are bound on Linux only")
several = pytest.mark.skipif(len(usable_cpus()) < 2, reason="only one CPU")

BEGIN = """
import json, os, sys, threading
import numpy as np
import fewbit as fb
from fewbit.ops.cpu.numa import Placement

others = set(os.listdir("/proc/self/task"))
w, x = fb.quantize(np.ones((4096, 512), np.float32), "q8_0", threads=1), np.ones((1, 512), np.float32)
cpus = lambda thread=0: sorted(os.sched_getaffinity(int(thread)))
tasks = lambda: [task for task in os.listdir("/proc/self/task") if task not in others]

def work(count=2):
    return [fb.linear(x, w, threads=count) for _ in range(20)][-1]

def settled(check, count=2):
    "Workers follow with the next piece of work that they get."
    for _ in range(500):
        work(count)
        if tasks() and check([cpus(task) for task in tasks()]):
            break
    return [cpus(task) for task in tasks()]
"""


def run(code: str, **options: Any) -> Any:
    """What a fresh process prints as JSON."""
    done = subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@linux
@several
def test_threads_keep_to_cores_while_a_model_asks_for_it() -> None:
    """The worker beside the caller has the second core; the caller has all of its own again after each call."""
    second = usable_cpus()[1]
    free, bound, caller, after = run("""
free = settled(lambda found: True)
binding = Placement("off", True).bind()
bound = settled(lambda found: all(len(one) == 1 for one in found))
caller = cpus()
binding.release()
print(json.dumps([free, bound, caller, settled(lambda found: all(len(one) > 1 for one in found))]))
""")
    assert (free, after) == ([usable_cpus()], [usable_cpus()])
    assert bound == [[second]]
    assert caller == usable_cpus()


@linux
@several
def test_the_caller_is_the_first_worker_during_a_call() -> None:
    seen, after = run("""
binding, caller, seen, ends = Placement("off", True).bind(), threading.get_native_id(), set(), threading.Event()

def watch():
    while not ends.is_set():
        seen.add(tuple(cpus(caller)))

watcher = threading.Thread(target=watch)
watcher.start()
large = fb.quantize(np.ones((1 << 14, 2048), np.float32), "q8_0", threads=1)
for _ in range(200):
    fb.linear(np.ones((8, 2048), np.float32), large, threads=1)
    if len(seen) > 1:
        break
ends.set()
watcher.join()
print(json.dumps([sorted(seen), cpus()]))
""")
    assert [usable_cpus()[0]] in seen
    assert after == usable_cpus()


@linux
@several
def test_a_process_keeps_within_the_cpus_that_it_was_given() -> None:
    last = usable_cpus()[-1]
    bound = run(
        'binding = Placement("off", True).bind()\nprint(json.dumps(settled(lambda found: True, 3)))',
        preexec_fn=lambda: os.sched_setaffinity(0, {last}),
    )
    assert {tuple(one) for one in bound} == {(last,)}


@linux
@several
def test_a_forked_child_is_free_and_may_bind_others() -> None:
    """Models belong to their process, and so does what they asked for."""
    free, bound, caller, same = run("""
binding, expected = Placement("off", True).bind(), work()
into, out = os.pipe()
child = os.fork()
if child == 0:
    others = set(os.listdir("/proc/self/task"))
    free = settled(lambda found: True)
    own = Placement("off", True)
    own.wish = "distribute", True
    held = own.bind()
    bound = settled(lambda found: all(len(one) == 1 for one in found))
    os.write(out, json.dumps([free, bound, cpus(), bool(np.array_equal(work(), expected))]).encode())
    os._exit(0)
os.waitpid(child, 0)
print(os.read(into, 1000).decode())
""")
    assert (free, bound) == ([usable_cpus()], [[usable_cpus()[1]]])
    assert (caller, same) == (usable_cpus(), True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "model.gguf")


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This machine, as if its CPUs belonged to two nodes."""
    if _native.place_memory(zeros((1 << 20,)), [0], True):
        pytest.skip("this container may not place memory")
    cpus = usable_cpus()
    halves = [",".join(map(str, half)) for half in (cpus[: len(cpus) // 2], cpus[len(cpus) // 2 :])]
    root = write_tree(tmp_path / "root", {0: (halves[0], GB), 1: (halves[1], GB)})
    monkeypatch.setattr(cpu, "Placement", partial(Placement, root=root))
    return root


def text(path: Path, **options: Any) -> tuple[str, np.ndarray]:
    with fb.LLM(path, ctx=128, threads=2, **options) as llm:
        tokens = [*range(40)]
        return llm.generate(tokens, max_tokens=8, temperature=0).text, llm.score(tokens)


@linux
@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("numa", ["off", "distribute", "node:0"])
def test_results_are_the_same_bits(path: Path, two_nodes: Path, numa: str, pin: bool) -> None:
    expected, scores = text(path)
    found, own = text(path, numa=numa, pin_threads=pin)
    assert found == expected
    np.testing.assert_array_equal(own, scores)


@linux
def test_models_of_a_process_agree(path: Path) -> None:
    with fb.LLM(path, ctx=64, pin_threads=True) as first, fb.LLM(path, ctx=64, pin_threads=True) as second:
        assert first.generate([1, 2], max_tokens=2, temperature=0) is not None
        with fb.LLM(path, ctx=64) as third:  # without a wish
            assert third.generate([1, 2], max_tokens=2, temperature=0) is not None
        assert second.generate([1, 2], max_tokens=2, temperature=0) is not None
    other = Placement("off", True)
    other.wish = ("distribute", True)
    held = Placement("off", True).bind()
    assert held is not None
    message = r"for another model, with numa='off' and pin_threads=True; .* not with numa='distribute' and pin_threads"
    with pytest.raises(RequestError, match=message):
        other.bind()
    held.release()
    held.release()  # once
    free = other.bind()
    assert free is not None
    del free  # ends it too
    again = Placement("off", True).bind()
    assert again is not None
    again.release()


@linux
def test_default_threads_are_those_of_the_node(two_nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = devices.get("cpu", LoadOptions(numa="node:1"))
    assert device.threads == len(usable_cpus()) - len(usable_cpus()) // 2 or device.threads == 1
    assert devices.get("cpu", LoadOptions(numa="node:1", threads=3)).threads == 3
    monkeypatch.setenv("FEWBIT_THREADS", "5")
    assert Placement("node:1", root=two_nodes).threads is None


def policy_of(memory: Bytes) -> str:
    """What the system says of the memory at an address."""
    begin = -(-memory.ctypes.data // os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PAGE_SIZE")
    lines = (line.split() for line in Path("/proc/self/numa_maps").read_text().splitlines())
    known = [(int(line[0], 16), line[1]) for line in lines]
    return max(one for one in known if one[0] <= begin)[1]


needs_maps = pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="the system has no numa_maps")


@linux
@needs_maps
@pytest.mark.parametrize(("interleave", "policy"), [(True, "interleave:0"), (False, "prefer:0")])
def test_memory_is_placed(interleave: bool, policy: str) -> None:
    memory = zeros((1 << 22,))
    if _native.place_memory(memory, [0], interleave):
        pytest.skip("this container may not place memory")
    assert policy_of(memory).startswith(policy.removesuffix(":0"))
    assert memory.sum() == 0


def test_all_large_memory_of_a_model_is_placed() -> None:
    """Weights that are reordered, K, V and states; each before anybody touches it."""
    seen: list[int] = []
    arena = Arena(1 << 20, lambda memory: seen.append(memory.nbytes))
    assert seen == [1 << 20]
    arena.take(1 << 21)
    assert seen == [1 << 20, 1 << 21]
    seen.clear()
    layout = make_layout([AttentionSpec(2, 64, 32), RecurrentSpec(100)], "q8_0")
    store = HostStore(layout, (4, 3), None, lambda memory: seen.append(memory.nbytes))
    assert sum(seen) == store.nbytes
    assert len(seen) == 3


@linux
def test_weights_that_are_not_reordered_are_copied(path: Path, two_nodes: Path) -> None:
    device = devices.get("cpu", LoadOptions(numa="distribute"))
    w = fb.quantize(np.ones((3, 64), np.float32), "q8_0")  # too narrow
    pack = device.pack("interleaved16", 1 << 20)
    assert pack is not None
    assert pack(w) == w
    assert pack(w) is not w
    plain = devices.get("cpu").pack("interleaved16", 1 << 20)
    assert plain is not None
    assert plain(w) is w


@linux
def test_a_node_whose_memory_the_system_refuses(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {0: (",".join(map(str, usable_cpus())), GB), 900: ("", GB)})
    placement = Placement("distribute", root=root)
    placement._memory = [900]
    assert placement.place is not None
    with pytest.raises(RequestError, match=r"numa='distribute': the system does not let this process place memory"):
        placement.place(zeros((1 << 20,)))


def test_elsewhere_than_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert Placement().bind() is None
    for options in ({"pin": True}, {"numa": "distribute"}):
        with pytest.raises(RequestError, match="numa and pin_threads need Linux, this is darwin"):
            Placement(**options)  # type: ignore[arg-type]


def test_devices_without_threads_of_their_own(path: Path) -> None:
    with pytest.raises(RequestError, match=r"pin_threads and numa are for what runs on the CPU, .* runs on 'numpy'"):
        fb.LLM(path, device="numpy", pin_threads=True)
    with pytest.raises(RequestError, match="numa must be"):
        LoadOptions(numa="everywhere")


@pytest.mark.parametrize("cpus", [[], [-1], [1 << 16]])
def test_numbers_are_checked_at_the_boundary(cpus: list[int]) -> None:
    with pytest.raises(ValueError, match=r"at least one CPU|CPUs have numbers from 0 to 65535"):
        _native.bind_threads([cpus], [0])
    with pytest.raises(ValueError, match=r"at least one node|nodes have numbers from 0 to 65535"):
        _native.place_memory(np.zeros(8, np.uint8), cpus, True)

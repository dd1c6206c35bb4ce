"""A second device, known to nobody but the registry: the whole of fewbit runs on it, with launch and fetch apart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import fewbit as fb
from fewbit import devices
from fewbit.arrays import Floats
from fewbit.cache.layout import Layout
from fewbit.cache.store import HostStore
from fewbit.devices.batch import Batch, Handle, Results
from fewbit.devices.numpy import NumpyDevice, NumpyExecutor
from fewbit.errors import FewbitError, OutOfMemory
from fewbit.load_options import LoadOptions
from fewbit.ops.graph import Graph
from fewbit.tensor import QuantTensor

from ..cli.tiny import write_tiny

BEADS = 1_400_000  # bytes
PROMPTS = ["Once upon a time", "Once upon a hill", "x"]


class LaterHandle:
    """A step that is running somewhere else."""

    def __init__(self, future: Future[Handle]) -> None:
        self._future = future

    def fetch(self) -> Results:
        return self._future.result().fetch()

    def values(self) -> Floats:
        return self._future.result().values()


class LaterExecutor(NumpyExecutor):
    """Runs steps in a thread of its own: `launch` returns before they are done."""

    def __init__(self, graph: Graph, store: HostStore, vocab: int) -> None:
        super().__init__(graph, store, vocab)
        self.threads: set[str] = set()
        self._pool = ThreadPoolExecutor(1, "later")

    def launch(self, batch: Batch) -> LaterHandle:  # type: ignore[override]
        return LaterHandle(self._pool.submit(self._run, batch))

    def _run(self, batch: Batch) -> Handle:
        self.threads.add(threading.current_thread().name)
        return super().launch(batch)


class LaterStore(HostStore):
    """A store of the device's own."""

    made = 0

    def __init__(self, layout: Layout, pages: Sequence[int]) -> None:
        super().__init__(layout, pages)
        LaterStore.made += 1


class LaterDevice(NumpyDevice):
    name = "later"

    def make_store(self, layout: Layout, pages: Sequence[int]) -> LaterStore:
        return LaterStore(layout, pages)

    def make_executor(self, graph: Graph, store: HostStore, vocab: int) -> LaterExecutor:
        return LaterExecutor(graph, store, vocab)


@pytest.fixture
def registered() -> Iterator[None]:
    devices.register("later", lambda options: LaterDevice())
    yield
    devices.unregister("later")


def test_a_model_runs_on_a_registered_device(registered: None, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "model.gguf")
    with fb.LLM(path, device="later", kv="f32") as later, fb.LLM(path, device="numpy", kv="f32") as plain:
        found = [llm.generate(PROMPTS, max_tokens=12, n=2, seed=3) for llm in (later, plain)]
        tokens = [[one.tokens for first in outputs for one in first.outputs] for outputs in found]
        assert tokens[0] == tokens[1]
        assert "".join(later.stream("Once", max_tokens=8, seed=1)) == plain.generate("Once", max_tokens=8, seed=1).text
        assert (later.score([1, 2, 3, 4]) == plain.score([1, 2, 3, 4])).all()
        executor = later.loaded.executor
        assert isinstance(executor, LaterExecutor)
        assert executor.threads == {"later_0"}
        assert isinstance(later.loaded.cache.store, LaterStore)
        assert later.loaded.cache.stats().used == 0


class Abacus(devices.Device):
    """The device of a stranger: the protocol alone, around NumPy's executor, with a copy of the weights."""

    name = "abacus"
    memory_kind = "beads"
    alternative = 'device="cpu"'
    copies_weights = True
    reserve_bytes = 0
    numerics = "decimal"
    max_batched_tokens = 24

    def __init__(self, options: LoadOptions, beads: int) -> None:
        self.options, self.beads = options, beads
        self.packed = 0

    def memory_bytes(self, file_bytes: int, layout: str) -> int:
        return self.beads

    def pack(self, layout: str, nbytes: int) -> Callable[[QuantTensor], QuantTensor]:
        def copy(w: QuantTensor) -> QuantTensor:
            self.packed += w.nbytes
            return QuantTensor(w.stored.copy(), w.shape, w.format)

        return copy

    def make_store(self, layout: Layout, pages: Sequence[int]) -> HostStore:
        return HostStore(layout, pages)

    def make_executor(self, graph: Graph, store: HostStore, vocab: int) -> NumpyExecutor:
        return NumpyExecutor(graph, store, vocab, self.max_batched_tokens)


@pytest.fixture
def abacus() -> Iterator[list[Abacus]]:
    made: list[Abacus] = []

    def make(options: LoadOptions) -> Abacus:
        made.append(Abacus(options, BEADS))
        return made[-1]

    devices.register("abacus", make)
    yield made
    devices.unregister("abacus")


def test_a_device_that_has_the_protocol_alone(abacus: list[Abacus], tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "model.gguf")
    with fb.LLM(path, "abacus", kv="f32", ctx=128, cache_dir=tmp_path) as llm, fb.LLM(path, "numpy", kv="f32") as plain:
        assert (abacus[-1].options.device, abacus[-1].options.ctx) == ("abacus", 128)
        assert abacus[-1].packed
        assert llm.loaded.maps == ()
        assert llm.loaded.executor.max_batched_tokens == 24
        assert llm.loaded.cache.store.nbytes <= BEADS
        assert '"decimal"' in llm.loaded.cache.disk.identity  # type: ignore[union-attr]
        found = [one.generate(PROMPTS, max_tokens=12, seed=3) for one in (llm, plain)]
        assert [one.tokens for one in found[0]] == [one.tokens for one in found[1]]
        assert llm.chat([{"role": "user", "content": "hi"}], max_tokens=4).tokens
    with pytest.raises(OutOfMemory, match=r'needs .* of beads, and 1 MB is available.*or device="cpu"$'):
        fb.LLM(path, "abacus", kv="f32", ctx=65536)
    with pytest.raises(FewbitError, match="device 'abacus' reads weights as they are; leave repack out"):
        fb.LLM(path, "abacus", repack=True)
    with pytest.raises(FewbitError, match="gpu_layers is for devices 'cuda' and 'webgpu', not for 'abacus'"):
        fb.LLM(path, "abacus", gpu_layers=1)


def test_a_device_that_nobody_knows() -> None:
    with pytest.raises(FewbitError, match="there is no device 'abacus'; there are: cpu, cuda, numpy, webgpu"):
        devices.get("abacus")


def test_devices_refuse_what_they_do_not_have() -> None:
    with pytest.raises(FewbitError, match="no threads to set"):
        devices.get("numpy", LoadOptions(threads=2))
    with pytest.raises(FewbitError, match="takes activations as they are"):
        devices.get("numpy", LoadOptions(activations="int8"))

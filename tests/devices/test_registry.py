"""A second device, known to nobody but the registry: the whole of fewbit runs on it, with launch and fetch apart."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
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
from fewbit.errors import FewbitError
from fewbit.ops.graph import Graph

from ..cli.tiny import write_tiny

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


def test_a_device_that_nobody_knows() -> None:
    with pytest.raises(FewbitError, match="there is no device 'abacus'; there are: cpu, cuda, numpy"):
        devices.get("abacus")


def test_devices_refuse_what_they_do_not_have() -> None:
    with pytest.raises(FewbitError, match="no threads to set"):
        devices.get("numpy", devices.DeviceOptions(threads=2))
    with pytest.raises(FewbitError, match="takes activations as they are"):
        devices.get("numpy", devices.DeviceOptions(activations="int8"))

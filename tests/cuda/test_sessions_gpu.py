"""Several users of one GPU in a process: models in threads of their own, others loading, products beside them."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit import devices
from fewbit.arrays import Floats
from fewbit.devices.cuda import CudaDevice
from fewbit.devices.cuda_executor import CudaExecutor
from fewbit.errors import DeviceError
from fewbit.formats import get
from fewbit.models import open_model
from fewbit.ops import cuda
from fewbit.ops.cuda.kernels_products import begin_rows

from ..cli.tiny import write_tiny
from ..loading import load
from .cases import make

pytestmark = pytest.mark.cuda
IS_EMULATED = bool(os.environ.get("FEWBIT_EMULATE_CUDA"))
REQUESTS = 4 if IS_EMULATED else 250  # of each model
MODEL: dict[str, Any] = {"device": "cuda", "kv": "f16", "max_batched_tokens": 64, "max_seqs": 8, "ctx": 128}
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 3 if IS_EMULATED else 12}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Models of one shape, with different weights."""
    folder = tmp_path_factory.mktemp("models")
    return [write_tiny(folder / f"{seed}.gguf", seed=seed, format="q8_0") for seed in range(3)]


def open_llm(path: Path) -> fb.LLM:
    return fb.LLM(path, batch_invariant=True, cache_bytes=1 << 22, **MODEL)


def prompts(seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, rng.integers(1, 40)).tolist() for _ in range(REQUESTS)]


def ask(llm: fb.LLM, seed: int) -> list[list[int]]:
    """One after another, then all again at once."""
    given = prompts(seed)
    alone = [list(llm.generate(prompt, **GREEDY).tokens) for prompt in given]
    return alone + [list(output.tokens) for output in llm.generate(given, **GREEDY)]


class Background:
    """Does something again and again in a thread, until it is left; errors come out there."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._stop, self._error = work, Event(), list[BaseException]()
        self._thread = Thread(target=self._run)
        self.count = 0

    def _run(self) -> None:
        try:
            while not self._stop.is_set() or not self.count:
                self._work()
                self.count += 1
        except BaseException as error:
            self._error.append(error)

    def __enter__(self) -> Background:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error:
            raise self._error[0]


def test_two_models_a_third_and_products_beside_them(paths: list[Path]) -> None:
    """Each gives what it gives alone."""
    expected = []
    for seed, path in enumerate(paths[:2]):
        with open_llm(path) as llm:
            expected.append(ask(llm, seed))
    assert expected[0] != expected[1]
    with open_llm(paths[2]) as third:
        first_of_third = list(third.generate("Once", **GREEDY).tokens)

    def open_and_close() -> None:
        with open_llm(paths[2]) as llm:
            assert list(llm.generate("Once", **GREEDY).tokens) == first_of_third
        gc.collect()

    w, product, x = weights_and_product()

    def multiply() -> None:
        assert np.array_equal(fb.linear(x, w).numpy(), product)
        assert np.array_equal(fb.linear(x[:1], w).numpy(), product_of_one)

    product_of_one = fb.linear(x[:1], w).numpy()
    models = open_llm(paths[0]), open_llm(paths[1])
    with ThreadPoolExecutor(2) as pool, Background(open_and_close), Background(multiply) as products:
        found = list(pool.map(ask, models, (0, 1)))
    for llm in models:
        llm.close()
    assert products.count
    assert found == expected


def weights_and_product() -> tuple[Any, Floats, Floats]:
    w, _ = make(get("q4_k"), 96, 512)
    sent, x = w.to("cuda"), np.random.default_rng(0).standard_normal((5, 512), np.float32)
    return sent, fb.linear(x, sent).numpy(), x


def test_two_threads_multiply_at_once() -> None:
    """Of different sizes, into f32 and f16: they take the same scratch memory in turns."""
    jobs, device = [], cuda.shared_session()
    sizes = (96, 512, 5, "f32"), (40, 1024, 70, "f16"), (64, 256, 1, "bf16"), (200, 768, 20, "f16")
    for n, k, tokens, dtype in sizes:
        w, _ = make(get("q4_k"), n, k)
        x = np.random.default_rng(n).standard_normal((tokens, k), np.float32)
        sent = w.to("cuda")

        def multiply(sent: Any = sent, x: Floats = x, n: int = n, dtype: str = dtype) -> Floats:
            return fb.linear(x, sent, device.empty((len(x), n), dtype)).numpy()

        jobs.append((multiply, multiply()))
    with ThreadPoolExecutor(len(jobs)) as pool:
        for _ in range(3 if IS_EMULATED else 200):
            for found, (_, expected) in zip(pool.map(lambda job: job[0](), jobs), jobs, strict=True):
                assert np.array_equal(found, expected)


def test_weights_go_to_the_gpu_from_several_threads() -> None:
    every = [make(get("q8_0"), 64, 256) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        sent = list(pool.map(lambda pair: pair[0].to("cuda").dequantize().numpy(), every))
    for found, (_, values) in zip(sent, every, strict=True):
        assert np.array_equal(found, values.astype(np.float32))


def executor_of(path: Path) -> CudaExecutor:
    found = load(open_model(path), cache_bytes=1 << 20, **MODEL).executor
    assert isinstance(found, CudaExecutor)
    return found


def test_executors_have_sessions_of_their_own(paths: list[Path]) -> None:
    first, second, shared = executor_of(paths[0]).device, executor_of(paths[0]).device, cuda.shared_session()
    for a, b in ((first, second), (first, shared), (second, shared)):
        assert a is not b
        assert a.gpu is b.gpu
        assert a.stream is not b.stream
        assert a.blas is not b.blas
        assert a.lock is not b.lock
        name, size = "a name", 64
        assert a.scratch(name, size) != b.scratch(name, size)
    if not IS_EMULATED:
        assert len({int(one.stream.handle) for one in (first, second, shared)}) == 3
        assert first.gpu._handles is second.gpu._handles  # kernels are loaded once


def test_all_of_a_model_is_in_its_session(paths: list[Path]) -> None:
    executor = executor_of(paths[0])
    session = executor.device
    assert executor.store.device is session
    assert executor.weights.device is session
    assert executor.sampler is not None
    assert executor.sampler.device is session
    assert session is not cuda.shared_session()


def test_a_session_goes_with_its_model(paths: list[Path]) -> None:
    llm = open_llm(paths[0])
    llm.generate("Once", **GREEDY)
    session = weakref.ref(llm.loaded.executor.device)
    llm.close()
    del llm
    gc.collect()
    assert session() is None


def test_the_library_opens_one_session_however_many_threads_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    device = cuda.gpu()
    monkeypatch.delitem(device.__dict__, "shared", raising=False)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: cuda.shared_session(), range(64)))
    assert len(set(map(id, found))) == 1


@pytest.fixture
def session() -> cuda.Session:
    device = devices.get("cuda")
    assert isinstance(device, CudaDevice)
    return device.device


def test_a_capture_that_fails_leaves_the_stream_usable(session: cuda.Session) -> None:
    held, i = session.array(np.ones(4, np.float32)), np.int32

    def clear() -> None:
        session.launch(begin_rows(), 1, 256, held.pointer, i(4), 0, 0, i(0), i(4))

    def failing() -> None:
        clear()
        raise ValueError("no")

    clear()
    session.upload(np.ones(4, np.float32), held.pointer)
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            session.capture(failing)
    assert np.array_equal(held.numpy(), np.ones(4, np.float32))  # nothing of it was run
    clear()
    assert not held.numpy().any()


@pytest.mark.skipif(IS_EMULATED, reason="the emulator has no driver")
def test_graphs_are_destroyed_with_who_has_them(session: cuda.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    made, graphs = list[Any](), list[Any]()
    driver = session._driver
    for name, kept in (("cuGraphExecDestroy", made), ("cuGraphDestroy", graphs)):
        real = getattr(driver, name)

        def destroy(handle: Any, real: Any = real, kept: list[Any] = kept) -> Any:
            kept.append(real(handle))
            return kept[-1]

        monkeypatch.setattr(driver, name, destroy)
    held = session.array(np.zeros(4, np.float32))
    graph = session.capture(lambda: session.fill(held.pointer, 0xFF, held.nbytes))
    assert graph is not None
    assert len(graphs) == 1
    graph.launch()
    assert np.isnan(held.numpy()).all()
    assert not made
    del graph
    gc.collect()
    assert [int(status) for (status,) in made] == [0]
    with pytest.raises(DeviceError, match="cannot be allocated while a graph is captured"):
        session.capture(lambda: session.empty((4,)) and None)
    assert [int(status) for (status,) in graphs] == [0, 0]


def test_the_device_of_an_array_is_named(session: cuda.Session) -> None:
    array = session.array(np.arange(4, dtype=np.float32))
    assert array.__dlpack_device__() == (2, session.ordinal)
    assert session.ordinal_of(array.__cuda_array_interface__["data"][0]) == session.ordinal
    with pytest.raises(BufferError, match="given out as it is"):
        array.__dlpack__(dl_device=(1, 0))
    with pytest.raises(BufferError, match="given out as it is"):
        array.__dlpack__(copy=True)

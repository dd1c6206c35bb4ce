"""Arrays of others as inputs, and ours given out: who keeps memory, and until when."""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.errors import LayoutError
from fewbit.formats import get
from fewbit.ops import cuda
from fewbit.ops.cuda import session as sessions

from .cases import make
from .row_cases import floats

pytestmark = pytest.mark.cuda
IS_EMULATED = bool(os.environ.get("FEWBIT_EMULATE_CUDA"))
TEMPORARIES = 200


class Foreign:
    """An array of another package, which frees it as soon as nobody has it."""

    def __init__(self, array: cuda.DeviceArray) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._array.__cuda_array_interface__


class LateMark:
    """An event that has not passed until somebody waits for it."""

    def __init__(self) -> None:
        self.is_done = False

    def sync(self) -> None:
        self.is_done = True


def test_dlpack_inputs_stay_until_the_gpu_has_read_them(device: cuda.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    marks: list[LateMark] = []
    device._kept.clear()
    w, _ = make(get("q4_0"), 24, 64)
    sent = w.to("cuda")
    monkeypatch.setattr(device, "mark", lambda: marks.append(LateMark()) or marks[-1])

    def multiply() -> weakref.ref[Foreign]:
        x = Foreign(device.array(floats(3, 64)))
        fb.linear(x, sent)
        return weakref.ref(x)

    first, second = multiply(), multiply()
    gc.collect()
    assert first() is not None
    assert second() is not None
    marks[0].is_done = True
    third = multiply()
    gc.collect()
    assert first() is None
    assert third() is not None
    monkeypatch.setattr(sessions, "MAX_KEPT", 2 * 3 * 64 * 4)  # two of them: the host waits for the oldest
    multiply()
    gc.collect()
    assert second() is None
    assert third() is not None
    device._kept.clear()


@pytest.mark.parametrize(("stream", "waited"), [(4096, 4096), (None, 1), (-1, 1), (1, 1), (2, 1)])
def test_dlpack_results_are_freed_behind_the_stream_that_read_them(
    device: cuda.Session, monkeypatch: pytest.MonkeyPatch, stream: int | None, waited: int
) -> None:
    order: list[Any] = []
    monkeypatch.setattr(device, "wait_for", order.append)
    monkeypatch.setattr(device, "let_wait", lambda stream: None)
    array = device.array(floats(4))
    capsule = array.__dlpack__(stream=stream)
    del array
    assert not order
    del capsule
    gc.collect()
    assert order == [waited]


def test_results_seen_through_the_array_interface_are_freed_behind_the_default_stream(
    device: cuda.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[Any] = []
    array = device.array(floats(4))
    monkeypatch.setattr(device, "wait_for", order.append)
    pointer = array.__cuda_array_interface__["data"][0]
    assert array.__cuda_array_interface__["data"][0] == pointer == array.pointer
    del array
    gc.collect()
    assert order == [1]


def test_arrays_of_another_gpu_are_refused(device: cuda.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    w, _ = make(get("q4_0"), 8, 64)
    sent, x = w.to("cuda"), Foreign(device.array(floats(2, 64)))
    monkeypatch.setattr(device.gpu, "ordinal_of", lambda pointer: 3)
    with pytest.raises(LayoutError, match="x is on cuda:3, the weights are on cuda:0"):
        fb.linear(x, sent)


@pytest.mark.skipif(IS_EMULATED, reason="torch sees no emulated GPU")
def test_dlpack_temporaries_of_torch_under_memory_pressure(device: cuda.Session) -> None:
    """Inputs that torch makes, drops and overwrites at once; results that it reads while we make others."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no GPU")
    w, values = make(get("q8_0"), 512, 4096)
    sent, rng = w.to("cuda"), np.random.default_rng(0)
    rows = rng.standard_normal((8, 4096), np.float32)
    weight = torch.tensor(values.astype(np.float32), device="cuda")
    base, results, sums = torch.tensor(rows, device="cuda"), [], []
    expected = [(base * (i + 1)) @ weight.T for i in range(8)]
    tokens = 2048  # so many that a product takes longer than its launch
    for i in range(TEMPORARIES):
        x = (base * (i % 8 + 1)).repeat(tokens // 8, 1)  # 32 MiB
        y = torch.from_dlpack(fb.linear(x, sent))
        del x
        poison = torch.full((tokens, 4096), float("nan"), device="cuda")  # where x was, if torch has it back
        sums.append(y.sum())
        results.append(y[:8].clone())
        del y, poison
    torch.cuda.synchronize()
    for i, found in enumerate(results):
        error = (found - expected[i % 8]).norm() / expected[i % 8].norm()
        assert float(error) < 1e-2, i
    assert all(np.isfinite(float(one)) for one in sums)


@pytest.mark.skipif(IS_EMULATED, reason="torch sees no emulated GPU")
def test_dlpack_results_on_another_stream_of_torch(device: cuda.Session) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no GPU")
    w, _ = make(get("q8_0"), 4096, 1024)
    sent, stream = w.to("cuda"), torch.cuda.Stream()
    x = np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32)
    expected, found = fb.linear(x, sent).numpy().astype(np.float64).sum(), []
    with torch.cuda.stream(stream):
        for _ in range(TEMPORARIES):
            y = torch.from_dlpack(fb.linear(x, sent))
            for _ in range(4):
                y = y * 1  # work that reads it late
            found.append(y.double().sum())
            del y
    torch.cuda.synchronize()
    assert np.allclose([float(one) for one in found], expected, rtol=1e-6, atol=1e-3)

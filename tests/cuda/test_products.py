"""Which kernels products launch, with which arguments; no GPU is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.errors import ArgumentError
from fewbit.formats import get
from fewbit.ops.cuda import products
from fewbit.ops.cuda.fused import Fused
from fewbit.ops.cuda.products import make_form, multiply, multiply_gated
from fewbit.ops.cuda.values import Launcher, Rows
from fewbit.tensor import QuantTensor

from .fake import FakeGpu

TOKENS = (1, 2, 8, 16, 17, 33, 64, 65, 200, 256, 257, 8192)


class Sender:
    """Sends nothing."""

    def __init__(self) -> None:
        self.sent = 0

    def send(self, rows: Any, take: Any) -> None:
        self.sent += rows.size
        if rows.size:
            take(1, 0, len(rows))

    def wait(self) -> None:
        pass


def empty(name: str, n: int, k: int) -> QuantTensor:
    fmt = get(name)
    return QuantTensor(np.zeros(n * fmt.row_bytes(k), np.uint8), (n, k), fmt)


def fused(device: Any, *names: str, n: int = 100, k: int = 4096, gate: str | None = None) -> Fused:
    sender: Any = Sender()
    weights = [empty(name, n, k) for name in names]
    if gate:
        made = Fused.gated(device, weights[0], weights[1], gate, sender)
    else:
        made = Fused.make(device, weights, uploader=sender)
    assert sender.sent == sum(empty(name, n, k).nbytes for name in names)
    device.launches.clear()
    return made


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("names", [("q4_k",), ("q4_k", "q4_k", "q6_k"), ("q4_k", "q6_k", "q8_0"), ("iq2_xs", "q4_k")])
@pytest.mark.parametrize("invariant", [False, True])
def test_launches(names: tuple[str, ...], tokens: int, invariant: bool) -> None:
    device: Any = FakeGpu()
    w, run = fused(device, *names), Launcher(device, device.stream)
    form = make_form(run, Rows(16, 4096, 4096), tokens, (32, 1e-5), int16=True, invariant=invariant)
    out, other = Rows(64, w.width, w.width), Rows(256, w.width, w.width)
    multiply(run, w, form, tokens, out, bias=128, residual=other, invariant=invariant)
    if invariant or tokens <= 4:
        assert not device.products
    if tokens > 256 and not invariant:
        assert len(device.products) == 1  # one product for all of them
    if len(set(names)) < 3 and "iq2_xs" not in names and tokens <= 256:
        assert len(device.launches) == 2  # the form, and one product
        assert device.names[1].startswith("panel") == (tokens >= 33 and not invariant)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("names", [("q4_k", "q4_k"), ("q4_k", "q6_k"), ("iq3_s", "iq3_s")])
def test_launches_of_gates(names: tuple[str, ...], tokens: int) -> None:
    device: Any = FakeGpu(80)
    w, run = fused(device, *names, gate="silu"), Launcher(device, device.stream)
    form = make_form(run, Rows(16, 4096, 4096), tokens)
    after = multiply_gated(run, w, form, tokens, Rows(64, 100, 112))
    assert (after is None) == (tokens <= 256)
    if names[0] == names[1] == "q4_k":
        gated = sum("gate_rows" in name for name in device.names)
        assert gated == (tokens > 256)
        assert len(device.launches) == (2 if tokens <= 256 else 3)


@pytest.mark.parametrize(("tokens", "kernel"), [(40, "skinny_shared_"), (64, "skinny_shared_"), (65, "decode_tiles_")])
def test_launches_where_panels_are_wrong(tokens: int, kernel: str) -> None:
    device: Any = FakeGpu()
    device.takes_panels = False
    w, run = fused(device, "q4_k"), Launcher(device, device.stream)
    multiply(run, w, make_form(run, Rows(16, 4096, 4096), tokens), tokens, Rows(64, w.width, w.width))
    assert device.names[1].startswith(kernel)
    assert len(device.products) == (tokens > 64)


@pytest.mark.parametrize(("arch", "tokens", "n", "expected"), [
    (90, 128, 28672, "16_16_3_1_1"), (90, 128, 4096, "16_16_3_6_1"), (90, 256, 4096, "16_16_3_3_1"),
    (90, 64, 28672, "8_8_2_1_1"), (80, 128, 28672, "8_16_2_1_0"), (120, 40, 4096, "8_6_3_6_0"),
])  # fmt: skip
def test_shapes_of_panels(arch: int, tokens: int, n: int, expected: str) -> None:
    """Warps, token tiles, stages, blocks that share k, and whether it has wgmma."""
    device: Any = FakeGpu(arch)
    w, run = fused(device, "q4_k", n=n), Launcher(device, device.stream)
    multiply(run, w, make_form(run, Rows(16, 4096, 4096), tokens), tokens, Rows(64, w.width, w.width))
    assert device.names[1].endswith(f"_32_{expected}")


@pytest.mark.parametrize("tokens", [1, 9, 32, 200])
def test_forms_that_others_write(tokens: int) -> None:
    device: Any = FakeGpu()
    w, run = fused(device, "q4_k"), Launcher(device, device.stream)
    form = products.empty_form(run, 4096, tokens)
    assert form is not None
    multiply(run, w, form, tokens, Rows(64, w.width, w.width))
    assert len(device.launches) == 1
    assert (form.tiles, form.scales == 0) == {1: (0, False), 9: (2, True), 32: (4, True), 200: (32, True)}[tokens]
    assert products.empty_form(run, 4096, 257) is None
    files = fused(device, "iq2_xs")
    with pytest.raises(ArgumentError, match="serves no formats"):
        multiply(run, files, form, tokens, Rows(64, w.width, w.width))


def test_parts_lie_beside_each_other() -> None:
    device: Any = FakeGpu()
    sender: Any = Sender()
    sizes = (("q4_k", 100), ("q6_k", 33), ("q4_k", 40), ("iq2_xs", 17))
    made = Fused.make(device, [empty(name, n, 256) for name, n in sizes], uploader=sender)
    assert (made.offsets, made.sizes) == ((0, 160, 112, 208), (100, 33, 40, 17))
    assert [t.shape[0] for t in made.tensors] == [160, 33, 17]
    assert made.firsts == (0, 160, 208)
    places = [tuple(map(int, args[8:11])) for *_, args in device.launches[:3]]
    assert places == [(0, 0, 1), (0, 14, 1), (0, 0, 1)]
    assert device.names[3:] == ["find_largest_iq2_xs"]


def test_gates_take_turns() -> None:
    device: Any = FakeGpu()
    sender: Any = Sender()
    made = Fused.gated(device, empty("q4_k", 37, 256), empty("q4_k", 37, 256), "silu", sender)
    assert made.is_interleaved
    assert (made.width, made.tensors[0].shape) == (37, (80, 256))
    to = [tuple(map(int, args[8:11])) for *_, args in device.launches]
    assert to == [(0, 0, 2), (0, 1, 2)]


def test_linear_goes_where_the_weights_are() -> None:
    class There:
        def linear(self, x: Any, out: Any, **options: Any) -> Any:
            return x, out, options

    w: Any = There()
    given = fb.linear(1, w, activations="f16")
    assert given == (1, None, {"bias": None, "residual": None, "activations": "f16"})
    with pytest.raises(ArgumentError, match="threads and exact"):
        fb.linear(1, w, threads=1)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "", None])
def test_a_device_that_is_none(device: Any) -> None:
    with pytest.raises(ArgumentError, match="device must be"):
        empty("q4_0", 1, 32).to(device)

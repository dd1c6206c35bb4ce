"""What is rare and must not be wrong: NaN, very large values, very many rows, products that must not be rounded."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.formats import get
from fewbit.formats.decode import decode
from fewbit.ops import cuda
from fewbit.ops.cuda import experts, row_maths
from fewbit.ops.cuda.attention import RopeTable
from fewbit.ops.cuda.kernels import Entry
from fewbit.ops.cuda.products import make_form, multiply
from fewbit.ops.cuda.stack import Stack
from fewbit.ops.cuda.values import Launcher, Rows
from fewbit.ops.cuda.weights import Weights
from fewbit.ops.specs import Routing

from .cases import make, relative_error
from .fake import FakeGpu
from .row_cases import floats, plain_step
from .test_attention_gpu import CASES, Case, World
from .test_experts_gpu import sent as send
from .test_experts_gpu import stack

IS_EMULATED = bool(os.environ.get("FEWBIT_EMULATE_CUDA"))
MANY = 70_000  # rows: more than a grid has blocks in its second dimension


# NaN


@pytest.mark.cuda
@pytest.mark.parametrize("fmt", ["q4_k", "q8_0", "f16"])
@pytest.mark.parametrize("tokens", [1, 3, 20, 70])
def test_nan_spoils_its_row_and_no_other(device: cuda.Session, fmt: str, tokens: int) -> None:
    w, _ = make(get(fmt), 24, 512)
    sent, x = w.to("cuda"), floats(tokens, 512)
    for place in (0, 37, 511):
        given = x.copy()
        given[tokens // 2, place] = np.nan
        for activations in ("int8", "int16", "f16") if tokens == 1 else (None,):
            is_nan = np.isnan(fb.linear(given, sent, activations=activations).numpy())
            assert is_nan[tokens // 2].all()
            assert is_nan.sum() == 24


@pytest.mark.cuda
@pytest.mark.parametrize("tokens", [1, 3, 20])
def test_nan_goes_through_experts(device: cuda.Session, tokens: int) -> None:
    case, x, scores = plain_step(device, tokens), floats(tokens, 256), floats(tokens, 8)
    x[-1, 77] = np.nan
    routing, layers = Routing(top_k=2), [stack("q8_0", 8, *shape) for shape in ((64, 256), (64, 256), (256, 64))]
    gate, up, down = (send(w) for w in layers)
    assert up is not None
    assert down is not None
    layer = experts.Layer(up, down, routing, gate, "silu")
    out = device.array(np.zeros((tokens, 256), np.float32))
    rows = Rows(out.pointer, 256, 256)
    experts.experts(case.launcher(), case.step, rows, case.rows(x), case.rows(scores), tokens=tokens, layer=layer)
    is_nan = np.isnan(out.numpy())
    assert is_nan[-1].all()
    assert is_nan.sum() == 256


# Large values


@pytest.mark.cuda
@pytest.mark.parametrize("case", [CASES[0], CASES[2]], ids=str)
def test_queries_beyond_f16_stay_finite(device: cuda.Session, case: Case) -> None:
    world = World(device, case)
    world.values[0] *= np.float32(1e6)
    found = world.attend()
    assert np.isfinite(found).all()
    largest = max(float(abs(world.values[2]).max()), 6.0)
    assert float(abs(found).max()) <= 1.1 * largest


@pytest.mark.cuda
def test_keys_and_values_beyond_f16_are_kept_as_the_largest(device: cuda.Session) -> None:
    world = World(device, Case("f16", "f16", 64, 64, 2, 4))
    world.values[1:] = [x * np.float32(1e6) for x in world.values[1:]]
    found = world.attend()
    assert np.isfinite(found).all()
    assert float(abs(found).max()) > 1e4


@pytest.mark.cuda
@pytest.mark.parametrize(("fmt", "most"), [("q8_0", 127 * 65504), ("q4_0", 8 * 65504)])
def test_scales_beyond_f16_are_kept_as_the_largest(device: cuda.Session, fmt: str, most: float) -> None:
    """Values that are too large become the largest of the format; those beside them keep their places."""
    world = World(device, Case(fmt, fmt, 64, 64, 1, 1, lengths=(40,)))
    for values in world.values[1:]:
        values[:] = 0
        values[-1, 3], values[-1, 37] = 1e9, most / 2
    world.attend()
    slot = int(world.slots[-1])
    for rows, format in zip(world.store.read(0, slot // 32, 32), world.formats, strict=True):
        kept = decode(format, rows[slot % 32, 0][None], 64)[0]
        assert np.isfinite(kept).all()
    assert abs(kept[3]) == pytest.approx(most, rel=0.13)  # of V: K may be rotated
    assert kept[37] == pytest.approx(most / 2, rel=0.13)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_products_of_no_values_are_what_is_added(device: cuda.Session, dtype: str) -> None:
    w = fb.QuantTensor(np.zeros(0, np.uint8), (8, 0), get("q8_0")).to("cuda")
    x, bias, residual = floats(3, 0), floats(8), floats(3, 8)
    every: list[dict[str, Any]] = [{}, {"bias": bias}, {"residual": residual}, {"bias": bias, "residual": residual}]
    for given in every:
        out = device.empty((3, 8), dtype)
        device.fill(out.pointer, 0xFF, out.nbytes)
        found = fb.linear(x, w, out, **given).numpy().astype(np.float32)
        expected = np.zeros((3, 8)) + given.get("bias", 0) + given.get("residual", 0)
        assert np.allclose(found, expected, rtol=1e-2 if dtype == "bf16" else 1e-6)


# Many rows


@pytest.mark.cuda
@pytest.mark.parametrize("fmt", ["q8_0", "f16"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_rows_70000(device: cuda.Session, fmt: str, dtype: str) -> None:
    rows = 300 if IS_EMULATED else MANY
    w, values = make(get(fmt), 8, 64)
    x, bias, residual = floats(rows, 64), floats(8), floats(rows, 8)
    out = device.empty((rows, 8), dtype)
    device.fill(out.pointer, 0xFF, out.nbytes)
    found = fb.linear(x, w.to("cuda"), out, bias=bias, residual=residual).numpy().astype(np.float32)
    expected = x.astype(np.float64) @ values.T + bias + residual
    assert relative_error(found, expected) < 2e-2
    assert relative_error(found[-10:], expected[-10:]) < 2e-2


def test_rows_70000_fit_the_grid_of_every_operation() -> None:
    """`FakeGpu` refuses a grid that is too large."""
    device: Any = FakeGpu()
    run, tokens = Launcher(device, device.stream), MANY
    step, rows, heads = plain_inputs(), Rows(1 << 20, 64, 64), {"tokens": MANY, "heads": 2}
    table = RopeTable(1 << 20, 8, True, 128, None)
    row_maths.norm(run, step, rows, rows, weight=1 << 20, eps=1e-5, **heads)
    row_maths.gate(run, step, rows, rows, rows, tokens=tokens)
    row_maths.add(run, step, rows, rows, rows, tokens=tokens)
    row_maths.columns(run, step, Rows(1 << 20, 32, 32), rows, start=0, width=16, **heads)
    row_maths.join(run, step, Rows(1 << 20, 128, 128), rows, rows, **heads)
    row_maths.gather(run, step, rows, rows, tokens=tokens)
    row_maths.rope(run, step, rows, rows, rope=table, **heads)
    for fmt in ("q8_0", "f16"):
        w = cuda.CudaTensor(device, get(fmt), (48, 64))
        row_maths.embed(run, step, rows, tokens=tokens, table=w)
        row_maths.linear_heads(run, step, Rows(1 << 20, 48, 48), rows, tokens=tokens, w=Stack(w, 1, 48, 48))
    plain = cuda.CudaTensor(device, get("f16"), (262_144, 64))  # rows of weights may be as many
    for count, invariant in ((4, False), (2000, True)):
        form = make_form(run, rows, count, invariant=invariant)
        multiply(run, plain, form, count, Rows(1 << 20, 262_144, 262_144), invariant=invariant)
    assert all(isinstance(entry, Entry) for entry, *_ in device.launches)
    assert len(device.launches) > 12


def plain_inputs() -> Any:
    return SimpleNamespace(tokens=1 << 20, previous=0, positions=1 << 20, logits_indices=1 << 20)


# Products that are not rounded


@pytest.mark.cuda
@pytest.mark.parametrize("fmt", ["f32", "bf16", "q8_0"])
@pytest.mark.parametrize("tokens", [1, 4, 5, 70])
def test_experts_are_scored_in_f32(device: cuda.Session, fmt: str, tokens: int) -> None:
    """The matrix of a router, beside one of another kind; of every kind, with a norm and a bias."""
    (w, values), (other, other_values) = make(get(fmt), 12, 96), make(get("q8_0"), 40, 96)
    bias, x, weight = floats(12), floats(tokens, 96), floats(96)
    normed = x / np.sqrt(np.square(x.astype(np.float64)).mean(axis=1, keepdims=True) + 1e-5) * weight
    fused = Weights(device).fused([(other, None), (w, bias)], [1])
    assert [t.is_exact for t in fused.tensors] == [False, True]
    given, norm, out = device.array(x), device.array(weight), device.empty((tokens, fused.width))
    for invariant in (False, True):
        run = Launcher(device, device.stream)
        form = make_form(run, Rows(given.pointer, 96, 96), tokens, (norm.pointer, 1e-5), invariant=invariant)
        rows = Rows(out.pointer, fused.width, fused.width)
        multiply(run, fused, form, tokens, rows, fused.bias, invariant=invariant)
        found, first = out.numpy(), fused.offsets[1]
        assert relative_error(found[:, first : first + 12], normed @ values.T + bias) < 2e-6
        assert relative_error(found[:, :40], normed @ other_values.T) < 3e-2

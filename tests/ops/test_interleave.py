"""Matrices whose rows are interleaved, against NumPy and against the same rows one after the other."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fewbit as fb
from fewbit import _native
from fewbit.arrays import Floats
from fewbit.formats import K_BLOCK, Format, get
from fewbit.formats.decode import decode
from fewbit.interleave import ROWS, deinterleave, interleave, k_block_bytes
from fewbit.ops import cpu

from ..samples import random_rows
from .products import check, inputs, tensor

NAMES = (
    "q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k q8_k iq4_nl iq4_xs mxfp4 nvfp4 tq2_0 "
    "int8 int8:per=tensor int4 int4:block=64 int4:block=256 int4:block=512 int4_group int4_group:group=128"
)
FORMATS = [get(name) for name in NAMES.split()]


def multiple(fmt: Format) -> int:
    """What values of an interleaved row are a multiple of: as many as fill fours of bytes."""
    if fmt.placement == "row":
        return K_BLOCK
    return next((k for k in (32, 64, 128) if k % fmt.block == 0 and fmt.row_bytes(k) % 4 == 0), K_BLOCK)


SHAPES = ((16, 256), (37, 512), (160, 768), (7, 256))
RAGGED = [
    (fmt, n, k)
    for fmt in FORMATS
    for n, k in ((16, multiple(fmt)), (37, 256 + multiple(fmt)), (160, 768 - multiple(fmt)))
    if k % K_BLOCK
]
CASES = [*((fmt, n, k) for fmt in FORMATS for n, k in SHAPES), *RAGGED]
BATCHES = (1, 2, 3, 4, 5, 8, 9, 12, 16, 17, 40, 70)  # every kernel


def interleaved(w: fb.QuantTensor) -> fb.QuantTensor:
    """By NumPy, so that every instruction set has to read it."""
    data = interleave(w.stored, w.rows, k_block_bytes(w.format, w.shape[-1]))
    return fb.QuantTensor(data, w.shape, w.format, "interleaved16")


def matrix(fmt: Format, n: int, k: int) -> tuple[fb.QuantTensor, Floats]:
    data = random_rows(fmt, n, k, seed=n + k)
    return tensor(fmt, data, k), decode(fmt, data, k)


@pytest.mark.parametrize("activations", [None, "exact", "int16"])
@pytest.mark.parametrize(("fmt", "n", "k"), CASES, ids=str)
def test_products(fmt: Format, n: int, k: int, activations: str | None, isa: str) -> None:
    w, decoded = matrix(fmt, n, k)
    mixed = interleaved(w)
    for m in (1, 2, 3, 8, 40) if activations == "int16" else BATCHES:
        x = inputs(m, k, seed=m)
        taken = cpu.inputs_of(fmt, k, m, "interleaved16", activations)
        one = fb.linear(x, mixed, activations=activations, threads=1)
        check(one, x, decoded, taken)
        for threads in (2, 3):
            other = fb.linear(x, mixed, activations=activations, threads=threads)
            assert np.array_equal(other, one), f"batch {m}, {isa}"
        if taken in ("f32", "bf16") and cpu.inputs_of(fmt, k, m, "rows", activations) == taken:
            # the same numbers in the same order
            assert np.array_equal(fb.linear(x, w, activations=activations), one), f"batch {m}, {isa}"


@pytest.mark.parametrize(("fmt", "n", "k"), CASES, ids=str)
def test_moves(fmt: Format, n: int, k: int, isa: str) -> None:
    w, decoded = matrix(fmt, n, k)
    mixed = interleaved(w)
    for back, before, after in ((False, w.stored, mixed.stored), (True, mixed.stored, w.stored)):
        out = np.empty_like(before)
        _native.interleave(cpu.number(fmt), fmt.group, before, n, k, back, out, 2)
        assert np.array_equal(out, after)
    assert mixed == w
    assert mixed.to_bytes() == w.to_bytes()
    assert np.array_equal(mixed.dequantize(), decoded)
    again = pickle.loads(pickle.dumps(mixed))
    assert again == w
    assert again.layout == "rows"


@given(st.sampled_from(FORMATS), st.integers(1, 70), st.integers(1, 1024), st.integers(1, 40), st.integers(1, 4))
def test_any_shape(fmt: Format, n: int, length: int, m: int, threads: int) -> None:
    k = max(1, length // multiple(fmt)) * multiple(fmt)
    w, decoded = matrix(fmt, n, k)
    x = inputs(m, k)
    taken = cpu.inputs_of(fmt, k, m, "interleaved16")
    check(fb.linear(x, interleaved(w), threads=threads), x, decoded, taken)


@given(st.integers(0, 50), st.integers(1, 5), st.integers(1, 20))
def test_numpy_moves_there_and_back(rows: int, count: int, size: int) -> None:
    data = np.random.default_rng(rows).integers(0, 256, rows * count * size, dtype=np.uint8)
    mixed = interleave(data, rows, size)
    assert np.array_equal(deinterleave(mixed, rows, size), data)
    assert np.array_equal(np.sort(mixed), np.sort(data))


def test_many_products_and_gates(isa: str) -> None:
    k = 512
    some = [matrix(get(name), n, k)[0] for name, n in (("q4_0", 48), ("q4_k", 33), ("q6_k", 16), ("q8_0", 64))]
    mixed = [interleaved(w) if w.format in FORMATS else w for w in some]
    for m, activations in ((1, "int8"), (6, "int8"), (20, "int8"), (1, "int16"), (6, "int16")):
        x = inputs(m, k)
        residual, bias = inputs(m, 48, seed=3), inputs(1, 48, seed=4)[0]
        more: dict[str, Any] = {"biases": [bias, None, None, None], "residuals": [residual, None, None, None]}
        outs, plain = (fb.linear_many(x, weights, **more, activations=activations) for weights in (mixed, some))
        for got, wanted in zip(outs, plain, strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-5 * abs(wanted).max())
        gate, up = matrix(get("q4_0"), 48, k)[0], matrix(get("q5_1"), 48, k)[0]
        wanted = fb.linear_gated(x, gate, up, activations=activations)
        for pair in ((interleaved(gate), up), (gate, interleaved(up)), (interleaved(gate), interleaved(up))):
            got = fb.linear_gated(x, *pair, activations=activations)
            np.testing.assert_allclose(got, wanted, atol=1e-5 * abs(wanted).max())


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_repack(fmt: Format) -> None:
    w, _ = matrix(fmt, 40, 512)
    mixed = fb.repack(w)
    assert mixed == w
    assert mixed.nbytes == w.nbytes
    assert mixed.stored.ctypes.data % 64 == 0 or mixed.layout == "rows"
    assert mixed.layout == ("rows" if cpu.isa() == "scalar" else "interleaved16")
    assert fb.repack(mixed) is mixed
    short, _ = matrix(fmt, 40, multiple(fmt))
    assert fb.repack(short) == short


@pytest.mark.parametrize(
    ("name", "n", "k"),
    [
        ("q4_0", 15, 256),
        ("q4_0", 64, 288),
        ("f16", 64, 256),
        ("int4:block=96", 64, 768),
        ("int4_group:zero=true", 64, 256),
        ("iq2_xs", 64, 256),
        ("tq1_0", 64, 256),
    ],
)
def test_repack_leaves_what_it_cannot_make_faster(name: str, n: int, k: int) -> None:
    fmt = get(name)
    w = tensor(fmt, random_rows(fmt, n, k), k)
    assert fb.repack(w) is w


def test_native_code_checks_what_it_is_told() -> None:
    w, _ = matrix(get("q4_0"), 32, 512)
    number, out = cpu.number(w.format), np.empty((1, 32), np.float32)
    with pytest.raises(ValueError, match="a multiple of 64: got 32"):
        _native.linear(number, 32, w.stored[: 32 * 288 // 32 * 18], 32, True, inputs(1, 288), out, 1, None)
    with pytest.raises(ValueError, match="bytes of the matrix"):
        _native.linear(number, 32, w.stored[:-18], 32, True, inputs(1, 512), out, 1, None)
    with pytest.raises(ValueError, match="are never interleaved"):
        _native.linear(
            cpu.number(get("iq2_xs")), 256, np.zeros(32 * 148, np.uint8), 32, True, inputs(1, 512), out, 1, None
        )
    data = np.zeros(32 * get("int4:block=96").row_bytes(512), np.uint8)
    with pytest.raises(ValueError, match="every 96 are never interleaved"):
        _native.linear(cpu.number(get("int4")), 96, data, 32, True, inputs(1, 512), out, 1, None)
    with pytest.raises(ValueError, match="bytes of the result"):
        _native.interleave(number, 32, w.stored, 32, 512, False, np.empty(5, np.uint8), 1)
    with pytest.raises(ValueError, match="in place"):
        _native.interleave(number, 32, w.stored, 32, 512, False, w.stored, 1)


def test_embeddings_are_read_row_by_row() -> None:
    plan = cpu.Plan()
    out = plan.buffer(512, False, 0)
    with pytest.raises(ValueError, match="row by row"):
        plan.embed(cpu.packed(interleaved(matrix(get("q4_0"), 32, 512)[0])), out, 1.0)


def test_sixteen_rows_are_the_lanes_of_a_vector() -> None:
    fmt = get("q8_0")
    w, _ = matrix(fmt, 32, 256)
    lines = interleaved(w).stored.reshape(2, -1, ROWS, 4)
    assert np.array_equal(lines, w.stored.reshape(2, ROWS, -1, 4).swapaxes(1, 2))


def test_two_bytes_are_left_of_a_k_block() -> None:
    fmt = get("q6_k")
    w, _ = matrix(fmt, 16, 512)
    blocks = interleaved(w).stored.reshape(2, 16 * 210)
    rows = w.stored.reshape(ROWS, 2, 210).swapaxes(0, 1)
    assert np.array_equal(
        blocks[:, : 16 * 208].reshape(2, 52, ROWS, 4), rows[..., :208].reshape(2, ROWS, 52, 4).swapaxes(1, 2)
    )
    assert np.array_equal(blocks[:, 16 * 208 :].reshape(2, ROWS, 2), rows[..., 208:])

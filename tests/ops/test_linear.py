"""The one matrix of tests: format x shape x batch x threads x instruction set x activation path, against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.formats import Format, get
from fewbit.formats.decode import decode
from fewbit.ops import activations as oracle
from fewbit.ops import cpu

from ..samples import ALL, ISAS, PACKED, random_rows
from .products import check, inputs, tensor, to_bf16

ROWS = (0, 1, 3, 63, 64, 65)
COLUMNS = (1, 2, 31, 32, 33, 255, 256, 257, 576, 4096)
BATCHES = (0, 1, 2, 4, 5, 8, 9, 33, 70)  # every kernel of every instruction set
THREADS = (1, 2, 3, 8)
# What is usual and floats for all, and for a sample 16 bits.
SHAPES = [(k, a) for k in COLUMNS for a in (None, "exact")] + [(k, "int16") for k in (1, 33, 257, 576)]


@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_every_format(fmt: Format, isa: str) -> None:
    data, x = random_rows(fmt, max(ROWS), 576), inputs(max(BATCHES), 576)
    decoded = decode(fmt, data, 576)
    for m in BATCHES[1:]:
        check(fb.linear(x[:m], tensor(fmt, data, 576)), x[:m], decoded, cpu.inputs_of(fmt, 576, m))


@pytest.mark.parametrize(("k", "activations"), SHAPES)
@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_every_shape(fmt: Format, k: int, activations: str | None, isa: str) -> None:
    data, x = random_rows(fmt, max(ROWS), k, seed=k), inputs(max(BATCHES), k)
    decoded = decode(fmt, data, k)
    for i, m in enumerate(BATCHES[1:]):
        whole = fb.linear(x[:m], tensor(fmt, data, k), activations=activations)
        check(whole, x[:m], decoded, cpu.inputs_of(fmt, k, m, activations=activations))
        for n in ROWS[i % 2 :: 2]:
            threads = THREADS[(n + m) % len(THREADS)]
            part = fb.linear(x[:m], tensor(fmt, data[:n], k), activations=activations, threads=threads)
            assert np.array_equal(part, whole[:, :n]), f"{n}x{k}, batch {m}, {isa}"
    assert fb.linear(x[:0], tensor(fmt, data, k), activations=activations).shape == (0, max(ROWS))


@pytest.mark.parametrize("fmt", [*PACKED, *map(get, ("f32", "f16", "bf16", "f8_e4m3"))], ids=str)
def test_a_row_does_not_depend_on_its_neighbours(fmt: Format, isa: str) -> None:
    w, x = tensor(fmt, random_rows(fmt, 33, 512), 512), inputs(100, 512)
    sizes = [(None, m) for m in range(1, 101) if m < 20 or m % 7 == 0] + [("int16", m) for m in (1, 2, 3, 6, 11, 40)]
    by_kernel: dict[tuple[str, str], Floats] = {}
    for activations, m in reversed(sizes):
        taken, kernel = (f(fmt, 512, m, activations=activations) for f in (cpu.inputs_of, cpu.kernel))
        got = fb.linear(x[:m], w, activations=activations)
        largest = by_kernel.setdefault((taken, "tiles" if taken == "bf16" else kernel), got)
        rows = min(m, len(largest))
        assert np.array_equal(got[:rows], largest[:rows]), f"batch {m}, {kernel}, {taken}"


@pytest.mark.parametrize("activations", [None, "exact", "int16"])
@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_same_bits_for_any_number_of_threads(fmt: Format, activations: str | None, isa: str) -> None:
    w = tensor(fmt, random_rows(fmt, 200, 512), 512)
    for m in (3, 20) if activations == "int16" else (3, 7, 20, 70):
        x = inputs(m, 512)
        one, *others = (fb.linear(x, w, threads=t, activations=activations) for t in THREADS)
        assert all(np.array_equal(one, other) for other in others), f"batch {m}"


@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_errors_on_gaussian_data(fmt: Format, isa: str) -> None:
    if fmt.name.startswith("i") and fmt.is_scalar:
        pytest.skip("whole numbers hold no Gaussian weights")
    w = fb.quantize(inputs(64, 1024, seed=5), fmt)
    x = inputs(8, 1024)
    truth = x.astype(np.float64) @ w.dequantize().astype(np.float64).T
    norm = np.linalg.norm(truth)
    most = {"f32": 1e-5, "q16": 1e-4, "q8": 1e-2, "bf16": 1e-2}
    for activations in (None, "int8", "int16", "exact"):
        taken = cpu.inputs_of(fmt, 1024, 8, activations=activations)
        assert np.linalg.norm(fb.linear(x, w, activations=activations) - truth) <= most[taken] * norm


@pytest.mark.parametrize("fmt", [*PACKED, *map(get, ("f32", "f16", "bf16", "f8_e4m3"))], ids=str)
def test_activations_quantized_once_give_the_same(fmt: Format, isa: str) -> None:
    w = tensor(fmt, random_rows(fmt, 9, 300), 300)
    for m in (1, 5, 20):
        for activations in (None, "int16"):
            x = inputs(m, 300)
            a = fb.quantize_activations(x, fmt, activations=activations)
            assert a.kind == cpu.inputs_of(fmt, 300, m, activations=activations)
            direct = fb.linear(x, w, activations=activations)
            assert np.array_equal(fb.linear(a, w), direct), f"batch {m}, {a}"
            assert np.array_equal(fb.linear(a, w, activations=activations), direct), f"batch {m}, {a}"


def test_activations_for_tiles_stand_for_rounded_floats() -> None:
    if "amx" not in cpu.isas():
        pytest.skip("no matrix tiles here")
    x = inputs(37, 300)
    with cpu.forced_isa("amx"):
        a = fb.quantize_activations(x, "q4_k")
        assert a.kind == "bf16"
    assert np.array_equal(a.dequantize(), to_bf16(x))
    w = fb.quantize(inputs(8, 300), "q4_0")
    with cpu.forced_isa("scalar"):  # which has no tiles
        check(fb.linear(a, w), to_bf16(x), w.dequantize(), cpu.inputs_of("q4_0", 300, 37))


def test_activations_match_numpy(isa: str) -> None:
    x = inputs(4, 1000) * np.exp(inputs(4, 1000, seed=2))
    x[0, :32] = 0
    x[1, 40] = np.float32(1e-40)
    x[2, 64:96] = np.float32(2.0**-110)
    for activations in ("int8", "int16"):
        expected = oracle.rounded_activations(x, activations).astype(np.float32)
        a = fb.quantize_activations(x, "q4_0", activations=activations)
        assert np.array_equal(a.dequantize(), expected), a


def test_16_bits_lose_hundreds_of_times_less() -> None:
    x = inputs(50, 512)
    lost = [np.abs(oracle.rounded_activations(x, a) - x).mean() for a in ("int8", "int16")]
    assert 200 < lost[0] / lost[1] < 300


@pytest.mark.parametrize("activations", ["int8", "int16"])
def test_a_bad_activation_spoils_its_row_alone(activations: str, isa: str) -> None:
    x = inputs(3, 256)
    x[1, 100] = np.inf
    x[2, 3] = np.nan
    y = fb.linear(x, tensor(get("q4_k"), random_rows(get("q4_k"), 4, 256), 256), activations=activations)
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1:]).all()


@given(
    fmt=st.sampled_from(ALL),
    shape=st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 700)),
    seed=st.integers(0, 1000),
    activations=st.sampled_from([None, "int8", "int16", "exact"]),
    name=st.sampled_from([i for i in ISAS if i in cpu.isas()]),
)
def test_any_shape_and_seed(
    fmt: Format, shape: tuple[int, int, int], seed: int, activations: str | None, name: str
) -> None:
    m, n, k = shape
    data, x = random_rows(fmt, n, k, seed), inputs(m, k, seed)
    with cpu.forced_isa(name):
        got = fb.linear(x, tensor(fmt, data, k), activations=activations)
        taken = cpu.inputs_of(fmt, k, m, activations=activations)
    assert got.shape == (m, n)
    if got.size:
        check(got, x, decode(fmt, data, k), taken)


@pytest.mark.parametrize(("m", "activations"), [*((m, None) for m in (1, 6, 12, 40, 70)), (1, "int16"), (6, "int16")])
def test_many_products_in_one_call(m: int, activations: str | None, isa: str) -> None:
    formats, x = ("q4_k", "q6_k", "q8_0", "f16", "int4"), inputs(m, 512)
    weights = [fb.quantize(inputs(n, 512, seed=n), f) for n, f in zip((70, 33, 5, 8, 1), formats, strict=True)]
    bias, residual = inputs(1, 33)[0], inputs(m, 70, seed=9)
    weights[1:3] = map(fb.repack, weights[1:3])
    apart = [fb.linear(x, w, activations=activations) for w in weights]
    for threads in THREADS:
        together = fb.linear_many(x, weights, threads=threads, activations=activations)
        assert all(np.array_equal(a, b) for a, b in zip(apart, together, strict=True))
    more: dict[str, Any] = {"biases": [None, bias], "residuals": [residual, None], "activations": activations}
    added = fb.linear_many(x, weights[:2], **more)
    assert np.array_equal(added[0], apart[0] + residual)
    assert np.array_equal(added[1], apart[1] + bias)
    both = fb.linear(x, weights[0], bias=np.ones(70, np.float32), residual=residual, activations=activations)
    assert np.array_equal(both, apart[0] + np.float32(1) + residual)


@pytest.mark.parametrize("gate", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize(("m", "activations"), [*((m, None) for m in (1, 6, 12, 70)), (1, "int16"), (12, "int16")])
def test_gated_product(m: int, activations: str | None, gate: str, isa: str) -> None:
    x, a, b = inputs(m, 300), fb.quantize(inputs(70, 300, 2), "q4_k"), fb.quantize(inputs(70, 300, 3), "q6_k")
    g, u = (fb.linear(x, w, activations=activations).astype(np.float64) for w in (a, b))
    expected = {
        "silu": g / (1 + np.exp(-g)),
        "gelu": g * 0.5 * (1 + np.vectorize(math.erf)(g / math.sqrt(2))),
        "gelu_tanh": g * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))),
        "relu": np.maximum(g, 0),
    }[gate]
    for threads in THREADS:
        got = fb.linear_gated(x, a, b, gate, threads=threads, activations=activations)
        np.testing.assert_allclose(got, expected * u, rtol=1e-5, atol=1e-4)


def test_kernels_in_use_are_told() -> None:
    for name in cpu.isas():
        with cpu.forced_isa(name):
            ranges = cpu.kernel_ranges("q4_k")
            assert ranges[0] == (1, "gemv")
            assert [first for first, _ in ranges] == sorted({first for first, _ in ranges})
            assert cpu.kernel_ranges("f32") == [(1, "f32")]

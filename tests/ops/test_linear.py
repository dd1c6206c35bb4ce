"""The one matrix of tests: format x shape x batch x threads x instruction set x activation path, against NumPy."""

from __future__ import annotations

import math
import os
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fewbit as fb
from fewbit.formats import Format, get
from fewbit.formats.decode import decode
from fewbit.ops import cpu
from fewbit.ops import numpy as oracle

from ..samples import ALL, ENCODED, ISAS, PACKED, random_rows

ROWS = (0, 1, 3, 63, 64, 65)
COLUMNS = (1, 2, 31, 32, 33, 255, 256, 257, 576, 4096)
BATCHES = (0, 1, 2, 4, 5, 8, 9, 33, 70)  # every kernel of every instruction set
THREADS = (1, 2, 3, 8)
# What is usual and floats for all, and for a sample 16 bits.
SHAPES = [(k, a) for k in COLUMNS for a in (None, "exact")] + [(k, "int16") for k in (1, 33, 257, 576)]


def inputs(m: int, k: int, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((m, k), np.float32)


def tensor(fmt: Format, data: npt.NDArray[np.uint8], k: int) -> fb.QuantTensor:
    return fb.QuantTensor(data.reshape(-1), (len(data), k), fmt)


def error(got: npt.NDArray[np.float32], x: npt.NDArray[Any], w: npt.NDArray[np.float32]) -> float:
    """The largest error, as a share of what the terms of a sum can add up to."""
    x64, w64 = x.astype(np.float64), w.astype(np.float64)
    scale = np.abs(x64).sum(axis=1, keepdims=True) * np.abs(w64).max(initial=0) + 1e-30
    return float((np.abs(got - x64 @ w64.T) / scale).max())


def to_bf16(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    bits = np.ascontiguousarray(x).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def check(got: npt.NDArray[np.float32], x: npt.NDArray[np.float32], w: npt.NDArray[np.float32], taken: str) -> None:
    """The result against NumPy, with inputs (and for bf16 weights) rounded as the kernel rounds them."""
    if taken == "bf16":
        assert error(got, to_bf16(x), to_bf16(w)) < (1e-4 if w.shape[1] >= 255 else 8e-3)
    else:
        rounded = oracle.rounded_activations(x, {"f32": "exact", "q8": "int8", "q16": "int16"}[taken])
        assert error(got, rounded, w) < 1e-6


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


@pytest.mark.parametrize("fmt", [*PACKED, *map(get, ("f32", "f16", "bf16"))], ids=str)
def test_a_row_does_not_depend_on_its_neighbours(fmt: Format, isa: str) -> None:
    w, x = tensor(fmt, random_rows(fmt, 33, 512), 512), inputs(100, 512)
    sizes = [(None, m) for m in range(1, 101) if m < 20 or m % 7 == 0] + [("int16", m) for m in (1, 2, 3, 6, 11, 40)]
    by_kernel: dict[tuple[str, str], npt.NDArray[np.float32]] = {}
    for activations, m in reversed(sizes):
        taken, kernel = cpu.inputs_of(fmt, 512, m, False, activations), cpu.kernel(fmt, 512, m, False, activations)
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


@pytest.mark.parametrize("fmt", ENCODED, ids=str)
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


@pytest.mark.parametrize("fmt", [*PACKED, *map(get, ("f32", "f16", "bf16"))], ids=str)
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


@settings(max_examples=120, deadline=None)
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


def test_several_python_threads_at_once() -> None:
    w, x = fb.quantize(inputs(128, 512), "q6_k"), inputs(16, 512)
    expected = fb.linear(x, w)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: fb.linear(x, w, threads=3), range(64)))
    assert all(np.array_equal(r, expected) for r in results)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_works_in_a_forked_child() -> None:
    w, x = fb.quantize(inputs(256, 512), "q8_0"), inputs(4, 512)
    expected = fb.linear(x, w, threads=2)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(fb.linear(x, w, threads=2), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("activations", ["int8", "int16", "exact"])
def test_out_is_written_in_place(activations: str) -> None:
    w, x, out = fb.quantize(inputs(8, 64), "q4_1"), inputs(2, 64), np.full((2, 8), np.nan, np.float32)
    assert fb.linear(x, w, out=out, activations=activations) is out
    assert np.array_equal(out, fb.linear(x, w, activations=activations))


@pytest.mark.parametrize("activations", ["int8", "int16", "exact"])
def test_with_out_nothing_is_allocated(activations: str) -> None:
    w, x, out = fb.quantize(inputs(64, 4096), "q4_k"), inputs(8, 4096), np.empty((8, 64), np.float32)
    a = fb.quantize_activations(x, "q4_k", activations=activations)
    fb.linear(a, w, out=out, activations=activations)
    tracemalloc.start()
    for _ in range(3):
        fb.linear(a, w, out=out, activations=activations)
        fb.linear(x, w, out=out, activations=activations)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4096  # views and numbers, no array


def test_shapes_of_x_are_kept() -> None:
    w = fb.quantize(inputs(8, 64), "q4_0")
    assert fb.linear(inputs(1, 64)[0], w).shape == (8,)
    assert fb.linear(inputs(6, 64).reshape(2, 3, 64), w).shape == (2, 3, 8)


def bad_calls() -> dict[str, tuple[type[Exception], str, object]]:
    w, x = fb.quantize(inputs(8, 64), "q4_0"), inputs(2, 64)
    frozen = np.zeros((2, 8), np.float32)
    frozen.flags.writeable = False
    a = fb.quantize_activations(x, "q4_0", activations="int8")
    shared = np.zeros(200, np.float32)
    return {
        "short x": (fb.ShapeError, "rows of 64 values", lambda: fb.linear(x[:, :63], w)),
        "scalar x": (fb.ShapeError, "rows of 64 values", lambda: fb.linear(np.float32(1), w)),
        "text": (fb.DtypeError, "numbers", lambda: fb.linear(np.array([["a"] * 64]), w)),
        "complex": (fb.DtypeError, "numbers", lambda: fb.linear(x.astype(complex), w)),
        "w is an array": (fb.DtypeError, "QuantTensor", lambda: fb.linear(x, x)),
        "w is a stack": (fb.ShapeError, "matrix", lambda: fb.linear(x, fb.quantize(inputs(8, 64)[None], "q4_0"))),
        "out shape": (fb.ShapeError, r"\(2, 8\)", lambda: fb.linear(x, w, out=np.zeros((8, 2), np.float32))),
        "out type": (fb.DtypeError, "float32", lambda: fb.linear(x, w, out=np.zeros((2, 8)))),
        "out list": (fb.DtypeError, "float32", lambda: fb.linear(x, w, out=[[0.0] * 8] * 2)),
        "out read-only": (fb.LayoutError, "read-only", lambda: fb.linear(x, w, out=frozen)),
        "out strided": (fb.LayoutError, "contiguous", lambda: fb.linear(x, w, out=np.zeros((2, 16), "f4")[:, ::2])),
        "out overlaps": (
            fb.LayoutError,
            "overlaps",
            lambda: fb.linear(shared[:128].reshape(2, 64), w, out=shared[120:136].reshape(2, 8)),
        ),
        "threads": (fb.FewbitError, "from 1 to", lambda: fb.linear(x, w, threads=0)),
        "threads text": (fb.FewbitError, "number of threads", lambda: fb.linear(x, w, threads="many")),
        "exact quantized": (fb.FormatError, "float inputs", lambda: fb.linear(a, w, exact=True)),
        "int16 of int8": (fb.FormatError, "float inputs", lambda: fb.linear(a, w, activations="int16")),
        "activations": (fb.FewbitError, "int8, int16, exact, or None", lambda: fb.linear(x, w, activations="int4")),
        "exact and not": (fb.FewbitError, "is given too", lambda: fb.linear(x, w, exact=True, activations="int8")),
        "activations k": (fb.ShapeError, "rows of 32", lambda: fb.linear(a, fb.quantize(inputs(8, 32), "q4_0"))),
        "isa": (fb.FewbitError, "not available", lambda: cpu.use_isa("mmx")),
    }


@pytest.mark.parametrize("case", bad_calls())
def test_mistakes_are_named(case: str) -> None:
    kind, words, call = bad_calls()[case]
    with pytest.raises(kind, match=words):
        call()  # type: ignore[operator]


def test_native_code_checks_sizes_itself() -> None:
    number, x = cpu.number(get("q4_0")), inputs(1, 64)
    good, out = np.zeros(8 * 36, np.uint8), np.zeros((1, 8), np.float32)
    cpu._native.linear(number, 32, good, 8, False, x, out, 1, None)
    usual = {
        "weights": [(number, 32, good, 8, False)],
        "x": x,
        "kind": "f32",
        "m": 1,
        "k": 64,
        "outs": [out],
        "biases": [None],
    }
    usual |= {"residuals": [None], "threads": 1, "activations": None}

    packed = fb.quantize_activations(x, "q4_0", activations="int8")._data

    def many(**other: Any) -> None:
        cpu._native.linear_many(**{**usual, **other})

    many()
    for call in (
        lambda: cpu._native.linear(number, 32, good[:-1], 8, False, x, out, 1, None),
        lambda: cpu._native.linear(number, 32, good, 9, False, x, out, 1, None),
        lambda: cpu._native.linear(number, 32, good, 8, False, x, out[:, :7].copy(), 1, None),
        lambda: cpu._native.linear(999, 32, good, 8, False, x, out, 1, None),
        lambda: cpu._native.linear(number, 32, good, 8, False, x, good[:32].view(np.float32).reshape(1, 8), 1, None),
        lambda: many(x=good[:-1], kind="q8"),
        lambda: many(x=good[:-1], kind="q16"),
        lambda: many(x=good[:-1], kind="bf16"),
        lambda: many(activations="int4"),
        lambda: many(x=packed, kind="q8", activations="int16"),
        lambda: many(x=x[:, 1:].copy()),
        lambda: many(kind="f64"),
        lambda: many(weights=[(number, 32, good, 8, False)] * 2),
        lambda: many(biases=[out[0, :7].copy()]),
        lambda: many(residuals=[out[:, :7].copy()]),
        lambda: cpu._native.linear_gated(
            (number, 32, good, 8, False), (number, 32, good[:36], 1, False), "silu", x, "f32", 1, 64, out, 1, None
        ),
        lambda: cpu._native.decode(number, 32, good, 1 << 62, 64, out, 1),
        lambda: cpu._native.decode(number, 32, good, 8, 1 << 62, out, 1),
        lambda: cpu._native.encode(cpu.number(get("iq1_s")), 32, x, None, good, 1),
        lambda: cpu._native.encode(number, 32, x, x[0, :5].copy(), good[:36], 1),
    ):
        with pytest.raises(ValueError, match=r"got|too large|no encoder|overlaps|not f64|not int4|not packed"):
            call()


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((1, 64), np.float64),
        np.zeros((1, 64), np.int32),
        np.zeros((1, 64), ">f4"),
        np.zeros((1, 128), np.float32)[:, ::2],
        np.zeros(64, np.float32),
        np.zeros(257, np.uint8)[1:].view(np.float32).reshape(1, 64),
        memoryview(np.zeros((1, 64), np.float32)),
        [[0.0] * 64],
        None,
    ],
    ids=["f64", "i32", "swapped", "strided", "1-d", "unaligned", "memoryview", "list", "none"],
)
def test_native_code_takes_no_array_that_it_would_misread(x: object) -> None:
    number = cpu.number(get("q4_0"))
    out = np.zeros((1, 8), np.float32)
    with pytest.raises(TypeError):
        cpu._native.linear(number, 32, np.zeros(8 * 36, np.uint8), 8, False, x, out, 1, None)


def test_native_code_writes_to_no_array_that_is_read_only() -> None:
    number = cpu.number(get("q4_0"))
    x, out, data = np.zeros((1, 64), np.float32), np.zeros((1, 8), np.float32), np.zeros(8 * 36, np.uint8)
    for array in (x, data):
        array.setflags(write=False)
    cpu._native.linear(number, 32, data, 8, False, x, out, 1, None)  # what is read may be
    out.setflags(write=False)
    with pytest.raises(TypeError):
        cpu._native.linear(number, 32, data, 8, False, x, out, 1, None)


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


def test_results_of_one_call_lie_apart() -> None:
    w, x, y = fb.quantize(inputs(8, 64), "q4_0"), inputs(2, 64), np.zeros((2, 8), np.float32)
    other = np.zeros((2, 8), np.float32)
    for wrong, message in (
        (lambda: fb.linear_many(x, [w, w], [y, y]), "outs overlap"),
        (lambda: fb.linear_many(x, [w, w], [y, other], residuals=[None, y]), "overlaps the residual"),
        (lambda: fb.linear(x, w, y, bias=y[0]), "overlaps the bias"),
    ):
        with pytest.raises(fb.LayoutError, match=message):
            wrong()


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

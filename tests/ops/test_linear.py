"""The one matrix of tests: format x shape x batch x threads x instruction set x activation path, against NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

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
BATCHES = (0, 1, 2, 7, 33)
THREADS = (1, 2, 3, 8)


def inputs(m: int, k: int, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((m, k), np.float32)


def tensor(fmt: Format, data: npt.NDArray[np.uint8], k: int) -> fb.QuantTensor:
    return fb.QuantTensor(data.reshape(-1), (len(data), k), fmt)


def error(got: npt.NDArray[np.float32], x: npt.NDArray[np.float32], w: npt.NDArray[np.float32]) -> float:
    """The largest error, as a share of what the terms of a sum can add up to."""
    x64, w64 = x.astype(np.float64), w.astype(np.float64)
    scale = np.abs(x64).sum(axis=1, keepdims=True) * np.abs(w64).max(initial=0) + 1e-30
    return float((np.abs(got - x64 @ w64.T) / scale).max())


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "quantized"])
@pytest.mark.parametrize("k", COLUMNS)
@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_every_shape(fmt: Format, k: int, exact: bool, isa: str) -> None:
    data, x = random_rows(fmt, max(ROWS), k, seed=k), inputs(max(BATCHES), k)
    whole = fb.linear(x, tensor(fmt, data, k), exact=exact)
    decoded = x if exact or fmt.is_scalar else oracle.decode_activations(*oracle.quantize_activations(x))
    assert error(whole, decoded, decode(fmt, data, k)) < 1e-6
    for n in ROWS:
        for m in BATCHES:
            part = fb.linear(x[:m], tensor(fmt, data[:n], k), exact=exact, threads=THREADS[(n + m) % len(THREADS)])
            assert np.array_equal(part, whole[:m, :n]), f"{n}x{k}, batch {m}, {isa}"


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "quantized"])
@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_same_bits_for_any_number_of_threads(fmt: Format, exact: bool, isa: str) -> None:
    w, x = tensor(fmt, random_rows(fmt, 200, 512), 512), inputs(3, 512)
    one, *others = (fb.linear(x, w, threads=t, exact=exact) for t in THREADS)
    assert all(np.array_equal(one, other) for other in others)


@pytest.mark.parametrize("fmt", ENCODED, ids=str)
def test_errors_on_gaussian_data(fmt: Format, isa: str) -> None:
    if fmt.name.startswith("i") and fmt.is_scalar:
        pytest.skip("whole numbers hold no Gaussian weights")
    w = fb.quantize(inputs(64, 1024, seed=5), fmt)
    x = inputs(8, 1024)
    truth = x.astype(np.float64) @ w.dequantize().astype(np.float64).T
    norm = np.linalg.norm(truth)
    assert np.linalg.norm(fb.linear(x, w, exact=True) - truth) <= 1e-5 * norm
    assert np.linalg.norm(fb.linear(x, w) - truth) <= 1e-2 * norm


@pytest.mark.parametrize("fmt", PACKED, ids=str)
def test_activations_quantized_once_give_the_same(fmt: Format, isa: str) -> None:
    w, x = tensor(fmt, random_rows(fmt, 9, 300), 300), inputs(5, 300)
    a = fb.quantize_activations(x, fmt)
    assert np.array_equal(fb.linear(a, w), fb.linear(x, w))


def test_activations_match_numpy(isa: str) -> None:
    x = inputs(4, 1000) * np.exp(inputs(4, 1000, seed=2))
    x[0, :32] = 0
    x[1, 40] = np.float32(1e-40)
    x[2, 64:96] = np.float32(2.0**-110)
    expected = oracle.decode_activations(*oracle.quantize_activations(x))
    assert np.array_equal(fb.quantize_activations(x, "q4_0").dequantize(), expected)


def test_a_bad_activation_spoils_its_row_alone(isa: str) -> None:
    x = inputs(3, 256)
    x[1, 100] = np.inf
    x[2, 3] = np.nan
    y = fb.linear(x, tensor(get("q4_k"), random_rows(get("q4_k"), 4, 256), 256))
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1:]).all()


@settings(max_examples=120, deadline=None)
@given(
    fmt=st.sampled_from(ALL),
    shape=st.tuples(st.integers(0, 9), st.integers(0, 20), st.integers(0, 700)),
    seed=st.integers(0, 1000),
    exact=st.booleans(),
    name=st.sampled_from([i for i in ISAS if i in cpu.isas()]),
)
def test_any_shape_and_seed(fmt: Format, shape: tuple[int, int, int], seed: int, exact: bool, name: str) -> None:
    m, n, k = shape
    data, x = random_rows(fmt, n, k, seed), inputs(m, k, seed)
    with cpu.forced_isa(name):
        got = fb.linear(x, tensor(fmt, data, k), exact=exact)
    assert got.shape == (m, n)
    if not exact and not fmt.is_scalar:
        x = oracle.decode_activations(*oracle.quantize_activations(x))
    if got.size:
        assert error(got, x, decode(fmt, data, k)) < 1e-6


def test_the_forced_instruction_set_really_multiplies(isa: str) -> None:
    w = fb.quantize(inputs(8, 256), "q4_0")
    before = {name: _products(name) for name in cpu.isas()}
    fb.linear(inputs(1, 256), w)
    fb.linear(inputs(1, 256), w, exact=True)
    after = {name: _products(name) for name in cpu.isas()}
    assert {name for name in after if after[name] > before[name]} == {isa}


def _products(name: str) -> int:
    with cpu.forced_isa(name):
        return int(cpu._native.products())


@pytest.mark.parametrize("name", ISAS)
def test_environment_forces_an_instruction_set(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from fewbit.ops import cpu; print(cpu.isa())"],
        env={**os.environ, "FEWBIT_ISA": name}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if name in cpu.isas():
        assert run.stdout.strip() == name
    else:
        assert "is not available here" in run.stderr


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


@pytest.mark.parametrize("exact", [True, False])
def test_out_is_written_in_place(exact: bool) -> None:
    w, x, out = fb.quantize(inputs(8, 64), "q4_1"), inputs(2, 64), np.full((2, 8), np.nan, np.float32)
    assert fb.linear(x, w, out=out, exact=exact) is out
    assert np.array_equal(out, fb.linear(x, w, exact=exact))


@pytest.mark.parametrize("exact", [True, False])
def test_with_out_nothing_is_allocated(exact: bool) -> None:
    w, x, out = fb.quantize(inputs(64, 4096), "q4_k"), inputs(8, 4096), np.empty((8, 64), np.float32)
    a = x if exact else fb.quantize_activations(x, "q4_k")
    fb.linear(a, w, out=out, exact=exact)
    tracemalloc.start()
    for _ in range(3):
        fb.linear(a, w, out=out, exact=exact)
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
    a = fb.quantize_activations(x, "q4_0")
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
        "activations k": (fb.ShapeError, "rows of 32", lambda: fb.linear(a, fb.quantize(inputs(8, 32), "q4_0"))),
        "isa": (fb.FewbitError, "not available", lambda: cpu.use_isa("mmx")),
    }


@pytest.mark.parametrize("case", bad_calls())
def test_mistakes_are_named(case: str) -> None:
    kind, words, call = bad_calls()[case]
    with pytest.raises(kind, match=words):
        call()  # type: ignore[operator]


def test_native_code_checks_sizes_itself() -> None:
    number, x = cpu._number(get("q4_0")), inputs(1, 64)
    good, out = np.zeros(8 * 36, np.uint8), np.zeros((1, 8), np.float32)
    cpu._native.linear(number, 32, good, 8, x, out, 1, False)
    for call in (
        lambda: cpu._native.linear(number, 32, good[:-1], 8, x, out, 1, False),
        lambda: cpu._native.linear(number, 32, good, 9, x, out, 1, False),
        lambda: cpu._native.linear(number, 32, good, 8, x, out[:, :7].copy(), 1, False),
        lambda: cpu._native.linear(999, 32, good, 8, x, out, 1, False),
        lambda: cpu._native.linear_quantized(number, 32, good, 8, good[:-1], 1, 64, out, 1),
        lambda: cpu._native.decode(number, 32, good, 1 << 62, 64, out, 1),
        lambda: cpu._native.decode(number, 32, good, 8, 1 << 62, out, 1),
        lambda: cpu._native.encode(cpu._number(get("iq1_s")), 32, x, None, good, 1),
        lambda: cpu._native.encode(number, 32, x, x[0, :5].copy(), good[:36], 1),
    ):
        with pytest.raises(ValueError, match=r"got|too large|no encoder"):
            call()

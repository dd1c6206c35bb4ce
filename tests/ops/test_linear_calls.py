"""How products are called: threads, results in place, and what is refused."""

from __future__ import annotations

import os
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.formats import get
from fewbit.ops import cpu

from .products import inputs


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
        "threads text": (
            fb.FewbitError,
            "threads must be an integer, not str",
            lambda: fb.linear(x, w, threads="many"),
        ),
        "exact quantized": (fb.FormatError, "float inputs", lambda: fb.linear(a, w, exact=True)),
        "int16 of int8": (fb.FormatError, "float inputs", lambda: fb.linear(a, w, activations="int16")),
        "activations": (fb.FewbitError, "int8, int16, exact or None", lambda: fb.linear(x, w, activations="int4")),
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
        lambda: cpu._native.encode(number, 32, x, x[0, :5].copy(), good[:36], 1),
    ):
        with pytest.raises(ValueError, match=r"got|too large|overlaps|not f64|not int4|not packed"):
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

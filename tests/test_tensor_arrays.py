"""QuantTensor used like an array: products, rows, NumPy."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest

import fewbit as fb
from fewbit.errors import PositionError
from fewbit.interleave import interleave, k_block_bytes

NAMES = ["q4_k", "q6_k", "q4_0", "int8", "int4_group", "f16"]


def tensor(name: str, *shape: int) -> fb.QuantTensor:
    return fb.quantize(np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32), name)


def interleaved(w: fb.QuantTensor) -> fb.QuantTensor:
    """As `fb.repack` lays it out, on any machine."""
    data = interleave(w.stored, w.rows, k_block_bytes(w.format, w.shape[-1]))
    return fb.QuantTensor(data, w.shape, w.format, "interleaved16")


@pytest.mark.parametrize("name", NAMES)
def test_products_are_those_of_linear(name: str) -> None:
    w = tensor(name, 6, 256)
    x = np.random.default_rng(1).standard_normal((2, 3, 256)).astype(np.float32)
    assert np.array_equal(w @ x[0, 0], fb.linear(x[0, 0], w))
    assert np.array_equal(x @ w.T, fb.linear(x, w))
    assert np.array_equal(w @ x[0].T, fb.linear(x[0], w).T)
    assert np.array_equal(w @ x.swapaxes(1, 2), fb.linear(x, w).swapaxes(1, 2))
    assert np.array_equal(x[0, 0].tolist() @ w.T, fb.linear(x[0, 0], w))
    assert np.allclose(w[2] @ x[0, 0], (w @ x[0, 0])[2])
    assert np.allclose(x @ w[2], (x @ w.T)[..., 2], atol=1e-2)
    assert np.allclose(w[2] @ x[0].T, (x[0] @ w.T)[:, 2], atol=1e-2)
    packed = fb.quantize_activations(x, name)
    assert np.array_equal(packed @ w.T, fb.linear(packed, w))


@pytest.mark.parametrize("name", NAMES)
def test_matmul_of_numpy_keeps_weights_packed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w = tensor(name, 6, 256)
    x = np.random.default_rng(1).standard_normal((2, 3, 256)).astype(np.float32)
    expected = fb.linear(x, w)
    monkeypatch.setattr(fb.QuantTensor, "dequantize", None)
    assert np.array_equal(np.matmul(x, w.T), expected)
    assert np.array_equal(np.matmul(w, x[0, 0]), fb.linear(x[0, 0], w))
    assert np.array_equal(np.matmul(w, x[0].T), fb.linear(x[0], w).T)
    out = np.full((2, 3, 6), np.nan, np.float32)
    assert np.matmul(x, w.T, out=out) is out
    assert np.array_equal(out, expected)


def test_products_of_two_packed_matrices() -> None:
    w, v = tensor("q8_0", 6, 64), tensor("q4_0", 5, 64)
    expected = w.dequantize() @ v.dequantize().T
    assert np.allclose(w @ v.T, expected, rtol=0.02, atol=0.1)
    assert np.allclose(np.matmul(w, v.T), expected, rtol=0.02, atol=0.1)


def test_functions_of_elements_are_refused() -> None:
    w = tensor("q8_0", 6, 64)
    x = np.ones((6, 64), np.float32)
    calls = [
        ("add", lambda: x + w),
        ("multiply", lambda: np.float32(2) * w),
        ("equal", lambda: x == w),
        ("absolute", lambda: np.abs(w)),
        ("add", lambda: np.add.reduce(w)),
        ("add", lambda: np.add(x, w.T)),
        ("matmul with dtype", lambda: np.matmul(x, w.T, dtype=np.float64)),
    ]
    for function, call in calls:
        with pytest.raises(TypeError, match=f"np.{function} does not take packed weights; fb.linear.* multiply them"):
            call()


def test_products_that_are_refused() -> None:
    w = tensor("q8_0", 6, 64)
    x = np.ones((3, 64), np.float32)
    with pytest.raises(fb.ShapeError, match=r"x @ w.T multiplies by its 64 columns"):
        x @ w
    with pytest.raises(fb.ShapeError, match=r"w @ x needs x of \(64, ...\) to match w of 6x64, not \(3, 64\); x @ w.T"):
        w @ x
    with pytest.raises(fb.ShapeError, match=r"a matrix can be transposed, not 2x3x64; take one of them, as w\[0\]"):
        _ = tensor("q8_0", 2, 3, 64).T
    with pytest.raises(fb.DtypeError, match="x must be an array of numbers, not object"):
        w @ object()
    for transposed in (lambda: w.T @ x.T, lambda: w.T @ x.tolist(), lambda: np.matmul(w.T, x.T)):
        with pytest.raises(fb.ShapeError, match=r"w.T @ x would add up the rows of w"):
            transposed()
    with pytest.raises(fb.ShapeError, match=r"x @ w.T multiplies by its 64 columns"):
        np.matmul(x, w)
    with pytest.raises(ValueError, match="broadcast"):
        np.matmul(x, w.T, out=np.zeros((2, 6), np.float32))


def test_transposes() -> None:
    w = tensor("q8_0", 6, 64)
    assert w.T.T is w
    assert w.T.shape == (64, 6)
    assert w[0] == w[0].T
    assert np.array_equal(np.asarray(w.T), w.dequantize().T)
    assert (w.T.ndim, w.T.size, len(w.T)) == (2, 384, 64)
    with pytest.raises(fb.ShapeError, match=r"columns of packed weights cannot be taken"):
        list(w.T)
    assert repr(w.T) == "QuantTensor(q8_0, 6x64, 408 bytes, 8.5 bits a weight).T"


def test_numpy_decodes() -> None:
    w = tensor("q4_0", 6, 64)
    assert np.array_equal(np.asarray(w), w.dequantize())
    assert np.array(w, dtype=np.float64).dtype == np.float64
    assert np.allclose(np.asarray(w).mean(), np.mean(w))
    assert fb.quantize(w, "f32").dequantize().tolist() == w.dequantize().tolist()
    with pytest.raises(ValueError, match=r"without a copy; np.asarray"):
        np.array(w, copy=False)


ROWS = [3, -1, np.int64(2), slice(None), slice(2, 5), slice(16, 32), slice(16, 37), slice(20, 37), slice(33, 36),
        slice(5, 2), slice(None, None, 2), slice(None, None, -1), [1, 5, 5, -1], np.array([[0, 36], [17, 3]]), [],
        np.arange(37) % 3 == 0, np.array(4)]  # fmt: skip


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_of_the_decoded_array(name: str, rows: object) -> None:
    w = tensor(name, 37, 256)
    expected = w.dequantize()[rows]  # type: ignore[index]
    for made in (w, interleaved(w)):
        got = made[rows]
        assert got.shape == expected.shape
        assert np.array_equal(got.dequantize(), expected)
        assert got == w[rows]


def test_rows_of_a_stack() -> None:
    w = tensor("q4_0", 4, 3, 64)
    values = w.dequantize()
    for rows in (2, slice(1, 3), [3, 0], slice(None, None, 2)):
        assert np.array_equal(w[rows].dequantize(), values[rows])
    assert np.array_equal(w[1][2].dequantize(), values[1, 2])
    assert np.array_equal(w[1] @ np.ones(64), fb.linear(np.ones(64), w[1]))


def test_slices_share_the_bytes() -> None:
    w = tensor("q4_k", 37, 256)
    assert np.shares_memory(w[5:9].stored, w.stored)
    assert np.shares_memory(w[5].stored, w.stored)
    assert not np.shares_memory(w[[5]].stored, w.stored)
    mixed = interleaved(w)
    for rows, layout in ((slice(16, 32), "interleaved16"), (slice(16, 37), "interleaved16"), (slice(33, 35), "rows")):
        assert np.shares_memory(mixed[rows].stored, mixed.stored)
        assert mixed[rows].layout == layout
    assert mixed[3:20].layout == "rows"


def test_products_with_rows() -> None:
    w = fb.repack(tensor("q4_k", 64, 256))
    x = np.random.default_rng(0).standard_normal((2, 256)).astype(np.float32)
    for rows in (slice(16, 48), slice(3, 40), [1, 60]):
        assert np.allclose(fb.linear(x, w[rows], exact=True), fb.linear(x, w, exact=True)[:, rows], atol=1e-4)


def test_rows_that_are_refused() -> None:
    w = tensor("q8_0", 6, 64)
    cases = [
        (PositionError, "there is no row 6: the tensor has 6", 6),
        (PositionError, "there is no row -7", [0, -7]),
        (fb.ShapeError, "only whole rows", (1, 2)),
        (fb.ShapeError, r"a mask of rows must have shape \(6,\)", np.ones(5, bool)),
        (fb.DtypeError, "not by float64", [1.5]),
        (fb.DtypeError, "rows are given by integers", "a"),
        (fb.DtypeError, "not by None", None),
        (fb.DtypeError, "not by True", True),
        (fb.DtypeError, "rows are given by integers", slice("a")),
        (fb.DtypeError, "rows are given by integers", slice(None, None, 0)),
    ]
    for kind, words, rows in cases:
        with pytest.raises(kind, match=words):
            w[rows]
    with pytest.raises(fb.ShapeError, match="only whole rows"):
        w[0][1]


def test_it_is_as_long_as_its_rows() -> None:
    w = tensor("q8_0", 6, 64)
    assert len(w) == 6
    assert [row.shape for row in w] == [(64,)] * 6


@pytest.mark.parametrize("shape", [(64,), (6, 64), (2, 3, 64), (0, 64)])
def test_sizes_are_those_of_the_decoded_array(shape: tuple[int, ...]) -> None:
    w = tensor("q8_0", *shape)
    decoded = w.dequantize()
    assert (w.ndim, w.size, w.shape, len(w)) == (decoded.ndim, decoded.size, decoded.shape, len(decoded))


def test_types_are_shipped() -> None:
    assert files("fewbit").joinpath("py.typed").is_file()


def test_formats_are_shown_in_a_few_words() -> None:
    assert repr(fb.format("q4_k")) == "Format(q4_k, 4.5 bits a weight)"

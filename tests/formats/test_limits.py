"""Numbers that a format cannot hold: refused with their place, never packed as infinity."""

from __future__ import annotations

import numpy as np
import pytest

import fewbit as fb
from fewbit.formats import Format, get
from fewbit.formats.decode import decode
from fewbit.formats.encode import encode
from fewbit.formats.limits import is_safe, limits, overflows
from fewbit.formats.spec import Grid
from fewbit.ops import cpu

from ..samples import ALL

SMALL_SCALES = [
    f for f in ALL if not f.is_scalar and ({"f16", "ue4m3"} & {kind for _, kind, _ in f.fields} or f.name == "iq1_m")
]
WITHOUT_OFFSET = [f for f in SMALL_SCALES if not f.offset and not f.sums and not isinstance(f.codes, Grid)]
QUANTIZED = [f for f in ALL if not f.is_scalar]


def row(fmt: Format, value: float, fill: float = 0) -> np.ndarray:
    x = np.full((3, 2 * (fmt.block or 64)), fill, np.float32)
    x[2, 5] = value
    return x


@pytest.mark.parametrize("fmt", SMALL_SCALES, ids=str)
@pytest.mark.parametrize("is_weighted", [False, True], ids=["", "importance"])
def test_weights_too_large_for_the_scale_are_refused(fmt: Format, is_weighted: bool) -> None:
    importance = np.ones(row(fmt, 0).shape[1], np.float32) if is_weighted else None
    for x in (row(fmt, 1e20), row(fmt, -1e20), np.full_like(row(fmt, 0), 1e10)):
        with pytest.raises(fb.DataError, match=rf"at row \d, column \d.* too large for {fmt}, whose scales are"):
            fb.quantize(x, fmt, importance)


@pytest.mark.parametrize("fmt", QUANTIZED, ids=str)
def test_what_is_taken_comes_back_finite(fmt: Format) -> None:
    """At every size a tensor is refused, or decoded to finite numbers near its own."""
    normal = np.random.default_rng(5).standard_normal((4, 256)).astype(np.float32)
    refused, usual = [], error(fmt, normal)
    for exponent in range(126):
        x = (normal * np.float32(2.0**exponent)).clip(-1.6e38, 1.6e38)
        try:
            assert error(fmt, x) < 1.1 * usual, exponent
        except fb.DataError:
            refused.append(exponent)
    assert refused == list(range(refused[0], 126)) if fmt in SMALL_SCALES else not refused


def error(fmt: Format, x: np.ndarray) -> float:
    values, wide = fb.quantize(x, fmt).dequantize(), x.astype(np.float64)
    return float(np.sqrt(((values - wide) ** 2).sum() / (wide**2).sum()))


@pytest.mark.parametrize(
    "fmt", [f for f in SMALL_SCALES if not f.offset and not f.sums and not isinstance(f.codes, Grid)], ids=str
)
def test_what_is_within_the_limits_is_taken(fmt: Format) -> None:
    """Not of grids: they have no points for equal values at their upper end."""
    top = limits(fmt)[1]
    x = np.full((1, 256), 0.45 * top, np.float32)
    assert abs(fb.quantize(x, fmt).dequantize() / x - 1).max() < 0.05
    with pytest.raises(fb.DataError, match="too large"):
        fb.quantize(x * np.float32(1.1 / 0.45), fmt)


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q8_0", "q8_1", "tq2_0", "q1_0", "int4_group:scale=f16"])
def test_both_encoders_tell_which_numbers_overflow(name: str, isa: str) -> None:
    fmt = get(name)
    x = np.ones((2, 256), np.float32)
    x[1] = 1e10
    for data in (encode(fmt, x), cpu.encode(fmt, x)):
        bad = overflows(fmt, x, data)
        assert not bad[0].any()
        assert bad[1].all()


def test_a_block_may_be_too_large_only_as_a_whole() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 1e5
    assert np.isfinite(fb.quantize(x, "q4_1").dequantize()).all()
    with pytest.raises(fb.DataError, match="100000 at row 0, column 0, which is too large for q4_1"):
        fb.quantize(np.full((1, 32), 1e5, np.float32), "q4_1")


def test_sums_count_too() -> None:
    x = np.full((1, 32), 4000, np.float32)
    assert np.isfinite(decode(get("q8_1"), encode(get("q8_1"), x), 32)).all()
    with pytest.raises(fb.DataError, match="too large for q8_1"):
        fb.quantize(x, "q8_1")


@pytest.mark.parametrize(("name", "value"), [("f16", 1e6), ("f16", -65520), ("bf16", 3.4e38)])
def test_plain_floats_that_would_be_infinite(name: str, value: float) -> None:
    with pytest.raises(fb.DataError, match=f"too large for {name}; scale the weights down, or use bf16 or f32"):
        fb.quantize(np.array([[1, value]], np.float32), name)
    with pytest.raises(fb.DataError, match=f"column 1, which is too large for {name}"):
        fb.quantize(np.array([[np.inf, value]], np.float32), name)
    assert fb.quantize(np.array([[np.inf, 1]], np.float32), name).dequantize()[0, 0] == np.inf


def test_8_bit_floats_hold_finite_numbers_up_to_448() -> None:
    x = np.array([[1, -448, 447]], np.float32)
    assert fb.quantize(x, "f8_e4m3").dequantize().tolist() == [[1, -448, 448]]
    with pytest.raises(fb.DataError, match="449 at row 0, column 1, which is too large for f8_e4m3; scale the weights"):
        fb.quantize(np.array([[1, 449]], np.float32), "f8_e4m3")
    for bad in (np.inf, np.nan):
        with pytest.raises(fb.DataError, match="column 1; f8_e4m3 takes finite numbers"):
            fb.quantize(np.array([[1, bad]], np.float32), "f8_e4m3")


def test_usual_weights_are_not_decoded_to_be_checked() -> None:
    assert all(is_safe(fmt, 1000) for fmt in QUANTIZED)

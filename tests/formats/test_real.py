"""f16, bf16 and 8-bit floats: every value, rounding to nearest even, subnormals, infinities, NaN; native and NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fewbit.formats import get
from fewbit.formats.decode import decode, e8m0_half, ue4m3_half
from fewbit.formats.encode import encode
from fewbit.ops import cpu

KINDS = [("f16", np.float16), ("bf16", ml_dtypes.bfloat16), ("f8_e4m3", ml_dtypes.float8_e4m3fn)]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def all_codes(kind: type) -> np.ndarray:
    bits = 8 * np.dtype(kind).itemsize
    return np.arange(1 << bits).astype(f"u{bits // 8}")


def floats_around(kind: type) -> np.ndarray:
    """Every value of a small type, the middle to its neighbour (a tie), and a hair to either side of that."""
    values = all_codes(kind).view(kind).astype(np.float32)
    values = values[np.isfinite(values)]
    following = np.sort(np.unique(values))
    with np.errstate(over="ignore"):
        middle = ((following[1:].astype(np.float64) + following[:-1]) / 2).astype(np.float32)
    near = [np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))]
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 65519.9, 65520, 65536, 1e-45, 2**-25, 3.4e38], np.float32)
    return np.concatenate([values, middle, *near, edges])


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_rounding_is_to_nearest_even(name: str, kind: type, isa: str) -> None:
    x = floats_around(kind)[None]
    with np.errstate(over="ignore"):
        expected = x.astype(kind)
    if name == "f8_e4m3":  # finite numbers stay finite, where ml_dtypes takes NaN
        expected = np.where(np.isfinite(x), x.clip(-448, 448), x).astype(kind)
    for packed in (cpu.encode(get(name), x), encode(get(name), x)):
        got = packed.view(kind)
        nan = np.isnan(expected.astype(np.float32))
        assert np.array_equal(got[~nan].tobytes(), expected[~nan].tobytes()), isa
        assert np.isnan(got[nan].astype(np.float32)).all()


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_every_value_decodes(name: str, kind: type, isa: str) -> None:
    codes = all_codes(kind)
    expected = codes.view(kind).astype(np.float32)
    raw = codes.view(np.uint8)[None]
    for got in (cpu.decode(get(name), raw, len(codes))[0], decode(get(name), raw, len(codes))[0]):
        assert np.array_equal(got, expected, equal_nan=True), isa
        assert np.array_equal(np.signbit(got), np.signbit(expected)), isa


def test_one_byte_scales_by_their_definition() -> None:
    codes = np.arange(256, dtype=np.uint8)
    powers = np.ldexp(1.0, codes.astype(np.int32) - 128)
    assert np.array_equal(e8m0_half(codes), powers.astype(np.float32))
    small = codes[:127].view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(ue4m3_half(codes[:127]), small / 2)
    assert ue4m3_half(codes[127:128])[0] == 0

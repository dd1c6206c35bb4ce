"""Encoders: the bytes of gguf, the same bytes from NumPy and native code, and errors no greater than ggml's."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fewbit.arrays import Bytes, Floats
from fewbit.errors import ShapeError
from fewbit.formats import Format, get
from fewbit.formats.decode import decode, read_codes, split
from fewbit.formats.encode import encode
from fewbit.formats.pack import write_ints, write_trits
from fewbit.formats.spec import FIELD_BYTES, Grid, Integers, Trits
from fewbit.ops import cpu

from ..samples import ALL, PACKED, random_bytes

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "quantize.json").read_text())
GGUF_ENCODES = ["bf16", "f16", "f32", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4"]
SEARCHED = [f for f in ALL if not f.is_scalar]
LENGTHS = (1, 2, 31, 32, 33, 255, 256, 257, 576)
KINDS = ["normal", "heavy", "constant", "zero", "one_hot", "huge", "over_f16", "tiny"]
KINDS += ["halves", "powers", "subnormal", "positive", "negative"]


def blocks(kind: str, n: int, k: int, seed: int = 0) -> Floats:
    """Rows of k values that an encoder may stumble over."""
    r = np.random.default_rng(seed)
    normal, sizes = r.standard_normal((n, k)), r.uniform(0, 1, (n, 1))
    below_two = np.nextafter(np.float32(2), np.float32(0))
    x = {
        "normal": lambda: normal,
        "heavy": lambda: 0.02 * r.standard_t(2, (n, k)),
        "constant": lambda: np.repeat(normal[:, :1] * 10.0 ** np.round(12 * sizes - 6), k, axis=1),
        "zero": lambda: np.zeros((n, k)),
        "one_hot": lambda: np.where(np.arange(k) == r.integers(0, k, (n, 1)), normal, 0),
        "huge": lambda: np.clip(normal * 10.0 ** (30 + 8.5 * sizes), -3e38, 3e38),
        "over_f16": lambda: normal * 10.0 ** (4 + 3 * sizes),
        "tiny": lambda: normal * 10.0 ** (-5 - 30 * sizes),
        "halves": lambda: r.integers(-255, 256, (n, k)) * 0.5,
        "powers": lambda: np.sign(normal) * r.choice([1, below_two], (n, k)) * 2.0 ** np.round(200 * sizes - 100),
        "subnormal": lambda: normal * 10.0 ** (-35 - 9 * sizes),
        "positive": lambda: r.random((n, k)) + 3,
        "negative": lambda: -1000 - r.random((n, k)),
    }[kind]()
    return x.astype(np.float32)


def mixed(k: int) -> Floats:
    return np.concatenate([blocks(kind, 2, k, seed) for seed, kind in enumerate(KINDS)])


def weights(kind: str, k: int) -> Floats | None:
    r = np.random.default_rng(k)
    w = {
        "none": None,
        "usual": r.random(k) ** 4 + 1e-3,
        "sparse": np.where(r.random(k) < 0.7, 0, r.random(k)),
        "zero": np.zeros(k),
        "wide": 10.0 ** r.uniform(-38, 38, k),
    }[kind]
    return None if w is None else np.asarray(w, np.float32)


def relative_error(x: Floats, y: Floats, w: Floats | None) -> float:
    wide = x.astype(np.float64)
    w = np.ones(x.shape[1], np.float32) if w is None else w
    return float(np.sqrt((w * (wide - y) ** 2).sum() / (w * wide**2).sum()))


def gguf_defines(fmt: Format, x: Floats) -> npt.NDArray[np.bool_]:
    """Blocks whose scale and its inverse are finite. Of others gguf casts infinity, NaN or a negative exponent to an
    integer without a sign: what comes of it depends on the machine.
    """
    low, high = fmt.code_range
    width = x.max(axis=1) - x.min(axis=1) if fmt.rule == "minmax" else abs(x).max(axis=1)
    return np.isfinite(width) & ((width == 0) | np.isfinite(1 / (width / np.float32(high - low))))


@pytest.mark.parametrize("name", GGUF_ENCODES)
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_those_of_gguf(name: str, kind: str) -> None:
    fmt = get(name)
    x = blocks(kind, 400, max(fmt.block, 32), seed=len(kind))
    with np.errstate(all="ignore"):
        x = x if fmt.is_scalar else x[gguf_defines(fmt, x)]
        expected = gguf.quants.quantize(x, gguf.GGMLQuantizationType[name.upper()])
    assert len(x) > 20
    assert np.array_equal(encode(fmt, x), np.ascontiguousarray(expected).view(np.uint8))


# Bytes that ggml's quantize_row_q1_0_ref and quantize_row_q2_0_ref make of 128 values; gguf has no encoder for them.
GGML_BYTES = {
    "q1_0": "2c393ef8e0831f7cf0c1073ff8e0830f7ef0",
    "q2_0": "003d6855805a05a855815a15a055016a15a0003d56056a55805605a855805a15a855015a",
}


@pytest.mark.parametrize("name", GGML_BYTES)
def test_bytes_are_those_of_ggml(name: str, isa: str) -> None:
    x = (np.arange(128)[None] * 37 % 41 - 20).astype(np.float32) / 16
    for data in (encode(get(name), x), cpu.encode(get(name), x)):
        assert data.tobytes().hex() == GGML_BYTES[name]


TOO_SMALL = {
    "q4_0": "0080" + 16 * "00",
    "q4_1": "00000080" + 16 * "00",
    "q5_0": "0080" + 20 * "00",
    "q5_1": "00000080" + 20 * "00",
    "q8_0": "0000" + 32 * "00",
    "tq1_0": 48 * "80" + 4 * "7f" + "0000",
    "tq2_0": 64 * "55" + "0000",
    "mxfp4": 17 * "00",
}
TOO_WIDE = {"q4_1": "007c00fc" + 16 * "00", "q5_1": "007c00fc" + 20 * "00"}


@pytest.mark.parametrize("name", TOO_SMALL)
def test_codes_where_the_scale_has_no_inverse(name: str, isa: str) -> None:
    x = np.zeros((1, get(name).block), np.float32)
    x[0, :3] = 3e-40, -1e-40, 2e-40
    for data in (encode(get(name), x), cpu.encode(get(name), x)):
        assert data.tobytes().hex() == TOO_SMALL[name]


@pytest.mark.parametrize("name", TOO_WIDE)
def test_codes_where_the_scale_is_infinite(name: str, isa: str) -> None:
    x = np.linspace(-3e38, 3e38, 32, dtype=np.float32)[None]
    for data in (encode(get(name), x), cpu.encode(get(name), x)):
        assert data.tobytes().hex() == TOO_WIDE[name]


@pytest.mark.parametrize("name", ["int8_affine", "int4_group:zero=true"])
def test_the_scale_of_zeros_is_not_negative(name: str, isa: str) -> None:
    fmt = get(name)
    at, size = fmt.row_fields(32)["scale"]
    for zero in (0.0, -0.0):
        x = np.full((1, 32), zero, np.float32)
        for data in (encode(fmt, x), cpu.encode(fmt, x)):
            assert data[0, at : at + size].tobytes() == bytes(size)


@pytest.mark.parametrize("exponent", range(-100, 128, 3))
def test_mxfp4_scale_just_below_a_power_of_two(exponent: int) -> None:
    top = np.float32(2.0**exponent).view(np.uint32)
    x = np.zeros((64, 32), np.float32)
    x[:, 5] = (top - np.arange(64, dtype=np.uint32)).astype(np.uint32).view(np.float32)
    expected = np.floor(np.log2(x[:, 5].astype(np.float64)).astype(np.float32)) - 2 + 127
    assert np.array_equal(encode(get("mxfp4"), x)[:, 0], expected.astype(np.uint8))


@cache
def numpy_bytes(fmt: Format, k: int, weighting: str) -> Bytes:
    return encode(fmt, mixed(k), weights(weighting, k))


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_native_bytes_are_those_of_numpy(fmt: Format, k: int, isa: str) -> None:
    for weighting in ("none", "usual") if k in (2, 32, 256, 576) else ("none", "sparse", "wide"):
        native = cpu.encode(fmt, mixed(k), weights(weighting, k))
        wrong = (native != numpy_bytes(fmt, k, weighting)).any(axis=1)
        kinds = [KINDS[i // 2] for i in np.flatnonzero(wrong)]
        assert not kinds, f"weights={weighting}: {kinds}"


def golden_matrices() -> tuple[dict[str, Floats], Floats]:
    r = np.random.default_rng(GOLDEN["seed"])
    shape = GOLDEN["rows"], GOLDEN["columns"]
    gaussian = r.standard_normal(shape).astype(np.float32) * np.float32(0.02)
    student = (r.standard_t(4, shape) * 0.02).astype(np.float32)
    scaled = r.standard_normal(shape) * 0.02 * np.exp(0.5 * r.standard_normal((1, shape[1])))
    importance = (r.random(shape[1]) ** 4 + 1e-3).astype(np.float32)
    return {"gaussian": gaussian, "student_t4": student, "channel_scaled": scaled.astype(np.float32)}, importance


@pytest.mark.parametrize("name", GOLDEN["relative_rmse"]["gaussian"]["plain"])
@pytest.mark.parametrize("weighting", ["plain", "importance"])
def test_loses_no_more_than_ggml(name: str, weighting: str) -> None:
    fmt = get(name)
    matrices, importance = golden_matrices()
    w = importance if weighting == "importance" else None
    for matrix, x in matrices.items():
        error = relative_error(x, decode(fmt, cpu.encode(fmt, x, w), x.shape[1]), w)
        assert error <= 1.002 * GOLDEN["relative_rmse"][matrix][weighting][name], matrix


@pytest.mark.parametrize("fmt", SEARCHED, ids=str)
def test_search_loses_no_more_than_the_rule(fmt: Format) -> None:
    x = blocks("heavy", 16, 512)
    for w in (weights("usual", 512), np.ones(512, np.float32)):
        searched, plain = (decode(fmt, cpu.encode(fmt, x, v), 512) for v in (w, None))
        assert relative_error(x, searched, w) <= relative_error(x, plain, w) * 1.00001


@pytest.mark.parametrize("fmt", SEARCHED, ids=str)
def test_search_of_finite_values_gives_finite_values(fmt: Format) -> None:
    for weighting in ("usual", "zero"):
        data = cpu.encode(fmt, mixed(257), weights(weighting, 257))
        assert np.isfinite(decode(fmt, data, 257)).all()


@pytest.mark.parametrize("fmt", SEARCHED, ids=str)
def test_weights_of_zero_are_equal_weights(fmt: Format) -> None:
    x = blocks("normal", 4, 256)
    zeros, ones = (cpu.encode(fmt, x, np.full(256, v, np.float32)) for v in (0, 1))
    assert np.array_equal(zeros, ones)


@pytest.mark.parametrize("fmt", SEARCHED, ids=str)
def test_zeros_stay_zeros(fmt: Format) -> None:
    x = np.zeros((2, 300), np.float32)
    for w in (None, weights("usual", 300)):
        assert not decode(fmt, encode(fmt, x, w), 300).any()


@pytest.mark.parametrize("fmt", [f for f in SEARCHED if f.block > 1 and f.placement == "block"], ids=str)
def test_the_last_block_has_a_range_of_its_own(fmt: Format) -> None:
    if isinstance(fmt.codes, Grid):
        pytest.skip("few points of grids have equal values")
    k = fmt.block + 3
    x = np.concatenate([blocks("normal", 4, fmt.block), np.full((4, 3), 1e-3, np.float32)], axis=1)
    for w in (None, weights("usual", k)):
        error = abs(decode(fmt, encode(fmt, x, w), k)[:, fmt.block :] / np.float32(1e-3) - 1)
        assert error.max() < 0.1


@pytest.mark.parametrize("fmt", [f for f in PACKED if isinstance(f.codes, Integers)], ids=str)
def test_integers_are_written_where_they_are_read(fmt: Format) -> None:
    assert isinstance(fmt.codes, Integers)
    k = fmt.block if fmt.placement == "block" else 96
    data = random_bytes(fmt, 8, k)
    if fmt.placement == "row":
        fields = {name: data[:, at : at + size] for name, (at, size) in fmt.row_fields(k).items()}
    else:
        fields = split(fmt, data)
    factors = [f.ints for f in (fmt.scale, fmt.offset) if f is not None and f.ints is not None]
    again = {name: np.zeros_like(field) for name, field in fields.items()}
    for what, count in [(fmt.codes, k), *((f, fmt.groups(k)) for f in factors)]:
        values = read_codes(Format("", 1, (), what), fields, count)
        write_ints(what, again, values)
    written = {p.field for what in (fmt.codes, *factors) for p in what.planes}
    assert all(np.array_equal(fields[name], again[name]) for name in written)


def test_trits_are_written_where_they_are_read() -> None:
    fmt = get("tq1_0")
    assert isinstance(fmt.codes, Trits)
    codes = np.random.default_rng(0).integers(-1, 2, (8, 256)).astype(np.int32)
    fields = {"qs": np.zeros((8, 52), np.uint8), "d": np.zeros((8, 2), np.uint8)}
    write_trits(fmt.codes, fields, codes)
    assert np.array_equal(read_codes(fmt, fields, 256), codes)


@pytest.mark.parametrize(("name", "every"), [("q8_1", 32), ("q8_k", 16)])
def test_sums_are_those_of_the_codes(name: str, every: int) -> None:
    fmt = get(name)
    fields = split(fmt, encode(fmt, blocks("normal", 8, fmt.block)))
    sums = read_codes(fmt, fields, fmt.block).reshape(8, -1, every).sum(axis=2)
    if name == "q8_k":
        assert np.array_equal(np.ascontiguousarray(fields["bsums"]).view("<i2"), sums)
    else:
        d, s = (np.ascontiguousarray(fields[f]).view("<f2").astype(np.float32) for f in "ds")
        assert np.allclose(s, d * sums, rtol=2e-3)


@pytest.mark.parametrize("kind", ["i8", "i16", "i32", "i64"])
def test_integers_are_rounded_to_even_and_kept_in_range(kind: str) -> None:
    x = np.array([[0.5, 1.5, -2.5, 100.4, 3e38, -3e38, -0.0]], np.float32)
    info = np.iinfo(f"i{FIELD_BYTES[kind]}")
    for data in (encode(get(kind), x), cpu.encode(get(kind), x)):
        assert data.view(info.dtype).tolist() == [[0, 2, -2, 100, info.max, info.min, 0]]


@pytest.mark.parametrize("fmt", SEARCHED, ids=str)
def test_a_weight_for_each_value(fmt: Format) -> None:
    x, columns = blocks("normal", 4, 288), weights("usual", 288)
    assert columns is not None
    values = np.random.default_rng(1).random((4, 288), np.float32)
    assert np.array_equal(cpu.encode(fmt, x, values), encode(fmt, x, values))
    spread = np.tile(columns, (4, 1))
    assert np.array_equal(cpu.encode(fmt, x, spread), cpu.encode(fmt, x, columns))
    with pytest.raises(ShapeError, match=r"importance \(values\) must have the shape \(4, 288\)|importance"):
        cpu.quantize(x, fmt, values[:3])


FINITE = st.floats(-(2.0**127), 2.0**127, width=32)
SOME = ["q4_0", "q4_1", "q8_0", "q4_k", "q6_k", "iq4_nl", "nvfp4", "int4", "int8_affine"]


@given(
    x=hnp.arrays(np.float32, st.tuples(st.just(1), st.integers(1, 70)), elements=FINITE),
    name=st.sampled_from(SOME),
    is_weighted=st.booleans(),
)
def test_any_finite_row_can_be_encoded(x: Floats, name: str, is_weighted: bool) -> None:
    w = abs(x[0]) if is_weighted else None
    assert np.array_equal(cpu.encode(get(name), x, w), encode(get(name), x, w))

"""The decoder of all formats in NumPy: slow, obvious, and what every kernel is compared with."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from ..arrays import Bytes, Floats, Ints
from . import grids
from .spec import FIELD_BYTES, Factor, Format, Grid, Integers, Plane, Trits

Fields = dict[str, Bytes]  # field -> (rows, bytes); a row is a block, or a whole row where fields lie apart


def decode(fmt: Format, data: Bytes, k: int) -> Floats:
    """Rows of packed bytes, (n, fmt.row_bytes(k)), to floats, (n, k).

    >>> from fewbit.formats import get
    >>> decode(get("q8_0"), np.zeros((1, 34), np.uint8), 32).shape
    (1, 32)
    """
    n = len(data)
    if n == 0 or k == 0:
        return np.zeros((n, k), np.float32)
    if fmt.placement == "row":
        fields = {name: data[:, at : at + size] for name, (at, size) in fmt.row_fields(k).items()}
        return _values(fmt, fields, k, fmt.groups(k), fmt.group or k)
    blocks = np.ascontiguousarray(data).reshape(-1, fmt.block_bytes)
    return _values(fmt, split(fmt, blocks), fmt.block, fmt.block // fmt.group, fmt.group).reshape(n, -1)[:, :k]


def split(fmt: Format, blocks: Bytes) -> Fields:
    """Blocks, (blocks, bytes), as their fields."""
    at = {name: fmt.field_offset(name) for name, _, _ in fmt.fields}
    return {name: blocks[:, at[name] : at[name] + FIELD_BYTES[kind] * count] for name, kind, count in fmt.fields}


def _values(fmt: Format, fields: Fields, count: int, groups: int, group: int) -> Floats:
    if fmt.codes is None:
        name, kind, _ = fmt.fields[0]
        return read_floats(fields[name], kind)
    codes = read_codes(fmt, fields, count).astype(np.float32)
    per_value = np.arange(count) // group
    with np.errstate(invalid="ignore", over="ignore"):
        values = codes * read_factor(fmt, fmt.scale, fields, groups)[:, per_value]
        if fmt.offset:
            values += np.float32(fmt.offset_sign) * read_factor(fmt, fmt.offset, fields, groups)[:, per_value]
    return values


def read_codes(fmt: Format, fields: Fields, count: int) -> Ints:
    """The numbers that are multiplied by the scale, (rows, count)."""
    if isinstance(fmt.codes, Grid):
        return _read_grid(fmt.codes, fields, count)
    if isinstance(fmt.codes, Trits):
        return _read_trits(fmt.codes, fields)
    assert fmt.codes is not None
    codes = read_ints(fmt.codes, fields, count)
    return np.array(fmt.codebook, np.int32)[codes] if fmt.codebook else codes


def read_ints(what: Integers, fields: Fields, count: int) -> Ints:
    """Small integers, (rows, count)."""
    rows = len(next(iter(fields.values())))
    out = np.zeros((rows, count), np.int32)
    shift = np.zeros(count, np.int32)
    for plane in what.planes:
        members, byte, bit = _positions(plane, count)
        b = fields[plane.field]
        word = b[:, byte].astype(np.int32)
        if (bit + plane.bits > 8).any():  # the bits go on in the next byte
            word |= b[:, np.minimum(byte + 1, b.shape[1] - 1)].astype(np.int32) << 8
        out[:, members] |= ((word >> bit) & ((1 << plane.bits) - 1)) << shift[members]
        shift[members] += plane.bits
    if what.signed:
        return out - ((out >> (what.bits - 1)) << what.bits)
    return out * what.times - what.zero


@cache
def _positions(plane: Plane, count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], Ints]:
    members = np.array([i for i in range(count) if plane.holds(i)], np.intp)
    bits = np.array([plane.bit(int(i)) for i in members], np.intp)
    return members, bits // 8, (bits % 8).astype(np.int32)


def _read_grid(grid: Grid, fields: Fields, count: int) -> Ints:
    points = grids.points(grid.points)[read_ints(grid.index, fields, count // grid.width)]
    codes = points.reshape(len(points), count).astype(np.int32)
    if grid.signs:
        signs = read_ints(grid.signs, fields, count // 8)
        if grid.signs.bits == 7:  # the eighth makes their number even
            signs |= (np.bitwise_count(signs.astype(np.uint32)).astype(np.int32) & 1) << 7
        negative = (signs[:, :, None] >> np.arange(8)) & 1
        codes *= 1 - 2 * negative.reshape(codes.shape)
    if grid.shift:
        bit = read_ints(grid.shift, fields, count // grid.shift_every)
        codes = 8 * codes + np.repeat(1 - 2 * bit, grid.shift_every, axis=1)
    return codes


def _read_trits(trits: Trits, fields: Fields) -> Ints:
    out = []
    for first, size, digits in trits.parts:
        b = fields[trits.field][:, None, first : first + size].astype(np.int32)
        powers = 3 ** np.arange(digits, dtype=np.int32)[:, None]
        out.append((((b * powers & 255) * 3) >> 8).reshape(len(b), -1) - 1)
    return np.concatenate(out, axis=1)


def read_factor(fmt: Format, factor: Factor, fields: Fields, groups: int) -> Floats:
    """A scale or an offset for each group, (rows, groups)."""
    if isinstance(factor.field, Integers):
        bits = read_ints(factor.field, fields, 1).astype(np.uint16)
        base = bits.view(np.float16).astype(np.float32)
    else:
        base = read_floats(fields[factor.field], fmt.field_type(factor.field))
    if factor.ints is not None:
        base = base * read_ints(factor.ints, fields, groups).astype(np.float32)
    return base * np.float32(factor.unit)


def read_floats(raw: Bytes, kind: str) -> Floats:
    """Bytes, (rows, bytes), as the numbers of a field type."""
    raw = np.ascontiguousarray(raw)
    if kind == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if kind == "e8m0":
        return e8m0_half(raw)
    if kind == "ue4m3":
        return ue4m3_half(raw)
    if kind == "f8_e4m3":
        return f8_e4m3(raw)
    dtype = {"f16": "<f2", "f32": "<f4", "f64": "<f8", "i8": "i1", "i16": "<i2", "i32": "<i4", "i64": "<i8"}[kind]
    with np.errstate(over="ignore", invalid="ignore"):
        return raw.view(dtype).astype(np.float32)


def e8m0_half(x: Bytes) -> Floats:
    """Half of 2 ** (x - 127); codebooks hold twice the values of 4-bit floats."""
    e = x.astype(np.uint32)
    low = np.uint32(0x200000) << np.minimum(e, 1)
    return np.where(e < 2, low, (np.maximum(e, 1) - 1) << 23).astype(np.uint32).view(np.float32)


def ue4m3_half(x: Bytes) -> Floats:
    """Half of an 8-bit float without a sign: 4 bits of exponent, 3 of mantissa; 0x7f is 0."""
    exponent, mantissa = (x >> 3 & 15).astype(np.int32), (x & 7).astype(np.float32)
    normal = np.ldexp(1 + mantissa / 8, exponent - 8)
    return np.where(x == 0x7F, 0, np.where(exponent == 0, np.ldexp(mantissa, -10), normal)).astype(np.float32)


def f8_e4m3(x: Bytes) -> Floats:
    """8-bit floats: a sign, 4 bits of exponent, 3 of mantissa; 0x7f and 0xff are NaN, there are no infinities."""
    code = x & np.uint8(0x7F)
    magnitude = np.where(code == 0x7F, np.float32(np.nan), 2 * ue4m3_half(code))
    return np.copysign(magnitude, np.where(x >= 0x80, np.float32(-1), np.float32(1)))

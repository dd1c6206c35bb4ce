"""Writes the codes and scales of blocks into their fields: the inverse of `decode.py`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..arrays import Bytes, Floats, Ints
from .decode import Fields, _positions, read_floats
from .spec import FIELD_BYTES, Factor, Format, Grid, Integers, Trits


class Found(NamedTuple):
    """The result of an encoder for rows: blocks, or whole rows (row placement).

    `codes` are the numbers that are multiplied by the scale, (rows, count); `scale` and `offset` are what their float
    fields hold, (rows, floats), and the integers that these are multiplied by, (rows, groups). Of grids, `codes` are
    the numbers of points, with signs and shifts beside them.
    """

    codes: Ints
    scale: Floats
    offset: Floats | None = None
    scale_ints: Ints | None = None
    offset_ints: Ints | None = None
    signs: Ints | None = None
    shift: Ints | None = None


def pack(fmt: Format, found: Found, sizes: dict[str, int]) -> Fields:
    """The fields, each (rows, bytes); `sizes` gives the bytes of each.

    >>> from fewbit.formats import get
    >>> found = Found(np.zeros((1, 32), np.int32), np.ones((1, 1), np.float32))
    >>> pack(get("q8_0"), found, {"d": 2, "qs": 32})["d"].tolist()
    [[0, 60]]
    """
    rows = len(found.codes)
    fields = {name: np.zeros((rows, size), np.uint8) for name, size in sizes.items()}
    if isinstance(fmt.codes, Trits):
        write_trits(fmt.codes, fields, found.codes)
    elif isinstance(fmt.codes, Grid):
        for what, values in (
            (fmt.codes.index, found.codes),
            (fmt.codes.signs, found.signs),
            (fmt.codes.shift, found.shift),
        ):
            if what is not None and values is not None:
                write_ints(what, fields, values)
    else:
        assert isinstance(fmt.codes, Integers)
        write_ints(fmt.codes, fields, book_index(fmt, found.codes) if fmt.codebook else found.codes)
    write_factor(fmt, fmt.scale, fields, found.scale, found.scale_ints)
    if fmt.offset:
        write_factor(fmt, fmt.offset, fields, found.offset, found.offset_ints)
    if fmt.sums:
        write_sums(fmt, fields, found)
    return fields


def book_index(fmt: Format, codes: Ints) -> Ints:
    """The index of each number in the codebook, the first of equal ones."""
    assert fmt.codebook
    place = {v: i for i, v in reversed(list(enumerate(fmt.codebook)))}
    low = min(place)
    table = np.array([place.get(v, 0) for v in range(low, max(place) + 1)], np.int32)
    return table[codes - low]


def write_ints(what: Integers, fields: Fields, values: Ints) -> None:
    """Small integers, (rows, count), into fields that are still 0 there."""
    count = values.shape[1]
    raw = values if what.signed else (values + what.zero) // what.times
    shift = np.zeros(count, np.int32)
    for plane in what.planes:
        members, byte, bit = _positions(plane, count)
        word = ((raw[:, members] >> shift[members]) & ((1 << plane.bits) - 1)) << bit
        out = fields[plane.field]
        for i in range(len(members)):  # elements share bytes
            out[:, byte[i]] |= (word[:, i] & 255).astype(np.uint8)
            if bit[i] + plane.bits > 8:
                out[:, byte[i] + 1] |= (word[:, i] >> 8).astype(np.uint8)
        shift[members] += plane.bits


def write_trits(what: Trits, fields: Fields, values: Ints) -> None:
    """Ints of -1, 0 and 1, (rows, count)."""
    at = 0
    for first, size, digits in what.parts:
        part = values[:, at : at + size * digits].reshape(-1, digits, size) + 1
        powers = 3 ** np.arange(4, 4 - digits, -1, dtype=np.int32)[:, None]
        fields[what.field][:, first : first + size] = ((part * powers).sum(axis=1) * 256 + 242) // 243
        at += size * digits


def write_factor(fmt: Format, factor: Factor, fields: Fields, values: Floats | None, ints: Ints | None) -> None:
    if isinstance(factor.field, Integers):
        assert values is not None
        with np.errstate(over="ignore"):
            write_ints(factor.field, fields, values.astype(np.float16).view(np.uint16).astype(np.int32))
    elif values is not None:  # a zero point has no float of its own
        fields[factor.field][:] = write_floats(values, fmt.field_type(factor.field))
    if factor.ints is not None:
        assert ints is not None
        write_ints(factor.ints, fields, ints)


def write_sums(fmt: Format, fields: Fields, found: Found) -> None:
    assert fmt.sums
    name, every = fmt.sums
    sums = found.codes.reshape(len(found.codes), -1, every).sum(axis=2, dtype=np.int32).astype(np.float32)
    kind = fmt.field_type(name)
    with np.errstate(over="ignore", invalid="ignore"):
        fields[name][:] = write_floats(sums if kind == "i16" else sums * found.scale, kind)


def write_floats(values: Floats, kind: str) -> Bytes:
    """Ints, (rows, n), as the bytes of a field type; integers are rounded to even and kept in range."""
    if kind == "bf16":
        u = values.view(np.uint32)
        quiet = (u >> 16) | 0x40
        rounded = (u + (0x7FFF + ((u >> 16) & 1))) >> 16
        raw = np.where((u & 0x7FFFFFFF) > 0x7F800000, quiet, rounded).astype("<u2")
    elif kind == "f8_e4m3":
        raw = f8_e4m3_codes(values)
    elif kind in ("e8m0", "ue4m3"):
        table = small_floats(kind)
        raw = np.minimum(np.searchsorted(table, values), len(table) - 1).astype(np.uint8)
    elif kind.startswith("i"):
        low, high = -(2.0 ** (8 * FIELD_BYTES[kind] - 1)), 2.0 ** (8 * FIELD_BYTES[kind] - 1)
        wide = np.rint(values.astype(np.float64))
        top = np.iinfo(f"i{FIELD_BYTES[kind]}").max
        inside = np.where((wide >= low) & (wide < high), wide, 0).astype(np.int64)
        raw = np.where(wide < low, int(low), np.where(wide >= high, top, inside)).astype(f"<i{FIELD_BYTES[kind]}")
    else:
        with np.errstate(over="ignore"):
            raw = values.astype({"f16": "<f2", "f32": "<f4", "f64": "<f8"}[kind])
    return np.ascontiguousarray(raw).view(np.uint8).reshape(len(values), -1)


def f8_e4m3_codes(values: Floats) -> Bytes:
    """The nearest 8-bit floats, of two equally near the even code. Beyond 448 that is 448; infinity, which the format
    does not have, becomes NaN.

    >>> [hex(code) for code in f8_e4m3_codes(np.array([1, -500, 1.0625, np.inf], np.float32))]
    ['0x38', '0xfe', '0x38', '0x7f']
    """
    table = read_floats(np.arange(127, dtype=np.uint8), "f8_e4m3")  # rising
    middles = (table[1:] + table[:-1]) / 2  # exact
    magnitude = abs(values)
    below, upto = np.searchsorted(middles, magnitude, "left"), np.searchsorted(middles, magnitude, "right")
    codes = np.where(below % 2 == 0, below, upto)  # they differ where it is a middle
    magnitudes = np.where(np.isfinite(values), codes, 0x7F).astype(np.uint8)
    return np.where(np.signbit(values), magnitudes | np.uint8(0x80), magnitudes)


def small_floats(kind: str) -> Floats:
    """The values of a float type of 8 bits, by code, rising."""
    return read_floats(np.arange(127 if kind == "ue4m3" else 255, dtype=np.uint8)[:, None], kind)[:, 0]

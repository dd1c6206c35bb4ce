"""Floats to packed bytes, in NumPy: slow, obvious, and what native code is compared with, byte for byte.

Without importance a format's `rule` says how its scale follows from the values: exactly as the `gguf` package does it
where that encodes the format, as ggml does it for q1_0, q2_0, q8_1 and q8_k. Rule "search", and every format with
importance, looks for the scales that lose least (`search.py`).

A row whose length is no multiple of the block is padded by repeating its last value, so that the range of the last
block is that of its own values; padding has no weight in a search or a mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Bytes, Doubles, Floats, Ints
from .decode import e8m0_half
from .grid_search import search_grid
from .pack import Found, pack, write_floats
from .search import LEAST_WEIGHT, Levels, group, inverse, search_groups, stored, unit_of
from .shared import search_shared
from .spec import FIELD_BYTES, GRANULE, Format, Grid

BATCH = 1 << 14  # values encoded at once


def encode(fmt: Format, x: Floats, importance: Floats | None = None) -> Bytes:
    """Rows of floats, (n, k), to packed bytes, (n, fmt.row_bytes(k)); `importance` is a weight for each column,
    or for each value.

    >>> from fewbit.formats import get
    >>> encode(get("q8_0"), np.ones((1, 32), np.float32)).shape
    (1, 34)
    """
    n, k = x.shape
    x = np.ascontiguousarray(x, np.float32)
    if n == 0 or k == 0:
        return np.zeros((n, fmt.row_bytes(k)), np.uint8)
    if fmt.is_scalar:
        return write_floats(x, fmt.fields[0][1])
    if importance is not None:
        importance = np.ascontiguousarray(importance, np.float32)
    if fmt.per_tensor:
        return _encode_as_one(fmt, x, importance)
    rows = max(1, BATCH // k)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        return np.concatenate(
            [_encode_rows(fmt, x[i : i + rows], _rows_of(importance, i, rows)) for i in range(0, n, rows)]
        )


def _rows_of(importance: Floats | None, first: int, count: int) -> Floats | None:
    return importance if importance is None or importance.ndim == 1 else importance[first : first + count]


def _encode_rows(fmt: Format, x: Floats, importance: Floats | None) -> Bytes:
    n, k = x.shape
    block = fmt.block if fmt.placement == "block" else fmt.group or k
    count = -(-k // block)
    index = np.minimum(np.arange(count * block), k - 1)
    blocks = x[:, index].reshape(-1, block)
    weights = np.ones(k, np.float32) if importance is None else importance
    padded = np.where(np.arange(count * block) < k, weights[..., index], np.float32(-1))
    weights = np.broadcast_to(padded, (n, len(index)))
    found = _find(fmt, blocks, np.ascontiguousarray(weights).reshape(-1, block), importance is not None)
    if fmt.placement == "row":
        return pack_rows(fmt, found, n, k)
    fields = pack(fmt, found, {name: FIELD_BYTES[kind] * size for name, kind, size in fmt.fields})
    return np.concatenate([fields[name] for name, _, _ in fmt.fields], axis=1).reshape(n, -1)


def pack_rows(fmt: Format, found: Found, n: int, k: int) -> Bytes:
    """Fields apart: the codes of the whole row, then a scale for each group."""
    codes = found.codes.reshape(n, -1)[:, :k]
    padding = np.full((n, -k % GRANULE), -getattr(fmt.codes, "zero", 0), np.int32)  # bits of 0
    offset = None if found.offset is None else found.offset.reshape(n, -1)
    zeros = None if found.offset_ints is None else found.offset_ints.reshape(n, -1)
    whole = Found(np.concatenate([codes, padding], axis=1), found.scale.reshape(n, -1), offset, None, zeros)
    fields = pack(fmt, whole, {name: size for name, (_, size) in fmt.row_fields(k).items()})
    return np.concatenate([fields[name] for name, _, _ in fmt.fields], axis=1)


def _encode_as_one(fmt: Format, x: Floats, importance: Floats | None) -> Bytes:
    """One scale for all rows: the tensor is encoded as one long row, and the scale is stored in each."""
    n, k = x.shape
    weights = None if importance is None else np.broadcast_to(importance, (n, k)).reshape(-1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        one = _encode_rows(fmt, x.reshape(1, -1), weights)
    return spread(fmt, one, n, k)


def spread(fmt: Format, one: Bytes, n: int, k: int) -> Bytes:
    """A tensor of n rows that was encoded as one row of n * k values, as n rows with the same scale."""
    out = np.zeros((n, fmt.row_bytes(k)), np.uint8)
    whole = fmt.row_fields(n * k)
    for name, (at, size) in fmt.row_fields(k).items():
        first, length = whole[name]
        data = one[0, first : first + length]
        if name in fmt.code_bits:
            out[:, at : at + k] = data[: n * k].reshape(n, k)
        else:
            out[:, at : at + size] = data
    return out


def _find(fmt: Format, x: Floats, weights: Floats, has_importance: bool) -> Found:
    """Codes and scales of blocks, (blocks, values); the weight of padding is -1."""
    if has_importance or fmt.rule == "search":
        return _search(fmt, x, weights)
    return RULES[fmt.rule](fmt, x, weights >= 0)


def _search(fmt: Format, x: Floats, weights: Floats) -> Found:
    unit = unit_of(x)
    one = np.float32(1)
    w = np.maximum(weights, np.float32(0))
    w = np.where(weights < 0, np.float32(0), np.maximum(w * (one / unit_of(w)), LEAST_WEIGHT))
    if isinstance(fmt.codes, Grid):
        return search_grid(fmt, x * (one / unit), w, unit)
    levels = Levels(fmt)
    size = fmt.group if fmt.placement == "block" else x.shape[1]
    g = group(levels, (x * (one / unit)).reshape(-1, size), w.reshape(-1, size))
    groups = len(g.x) // len(x)
    fit = search_groups(levels, g, np.repeat(unit, groups, axis=0))
    shared = None
    if fmt.scale.ints:
        shared = search_shared(levels, g, unit, fit)
        fit = shared.fit(levels)
    codes = levels.nearest((g.x - fit.offset) * inverse(fit.scale), fit.low, fit.high)
    if levels.has_zero_point:
        codes = codes + (levels.low - fit.low)
    numbers = codes.astype(np.int32).reshape(x.shape)
    if shared:
        scale_ints, offset_ints = (a.astype(np.int32).reshape(len(x), -1) for a in (shared.scale, shared.offset))
        return Found(numbers, shared.d * unit, shared.dmin * unit, scale_ints, offset_ints)
    scale, offset = (a.reshape(len(x), -1) * unit for a in (fit.scale, fit.offset))
    if levels.has_zero_point:
        return Found(numbers, scale, None, None, (levels.low - fit.low).astype(np.int32))
    return Found(numbers, scale, offset)


def _inverse(d: Floats) -> Floats:
    """1 / d, and 0 where d is 0, as gguf has it. It may overflow: `_numbers` replaces infinity by 0."""
    return np.where(d == 0, np.float32(0), np.float32(1) / d)


def _half_away(t: Any) -> Any:
    """Rounded, half away from 0; f32 or double."""
    whole = np.floor(abs(t))
    return np.copysign(whole + (abs(t) - whole >= 0.5), t)


def _numbers(t: Any, low: float, high: float) -> Ints:
    """Truncated and kept in range; 0 where t is not finite, which gguf leaves to the machine."""
    return np.clip(np.where(np.isfinite(t), t, 0), low, high).astype(np.int32)


def _kept(fmt: Format, scale: Doubles) -> Floats:
    """A scale as it is stored (row placement: codes are made with it)."""
    assert isinstance(fmt.scale.field, str)
    return stored(fmt.field_type(fmt.scale.field), scale.astype(np.float32))


def _divided(x: Floats | Doubles, scale: Floats) -> Doubles:
    return x.astype(np.float64) / np.where(scale == 0, np.float32(1), scale)


def _absmax(fmt: Format, x: Floats, real: npt.NDArray[np.bool_]) -> Found:
    low, high = fmt.code_range
    greatest = abs(x).max(axis=1, keepdims=True)
    if fmt.placement == "row":
        scale = _kept(fmt, greatest.astype(np.float64) / high)
        return Found(_numbers(_half_away(_divided(x, scale)), low, high), scale)
    d = greatest / np.float32(min(-low, high))
    return Found(_numbers(_half_away(x * _inverse(d)), low, high), d)


def _absmax_signed(fmt: Format, x: Floats, real: npt.NDArray[np.bool_]) -> Found:
    low, high = fmt.code_range
    d = _of_greatest_magnitude(x) / np.float32(low)
    t = x * _inverse(d) + np.float32(0.5 - low)
    return Found(_numbers(t, 0, high - low) + low, d)


def _of_greatest_magnitude(x: Floats) -> Floats:
    return np.take_along_axis(x, abs(x).argmax(axis=1, keepdims=True), 1)


def _least(x: Floats) -> Floats:
    """The minimum of each row. If it is 0 and there is a -0, it is -0, where NumPy takes either."""
    least = x.min(axis=1, keepdims=True)
    has_negative_zero = (np.signbit(x) & (x == 0)).any(axis=1, keepdims=True)
    return np.where((least == 0) & has_negative_zero, np.float32(-0.0), least)


def _minmax(fmt: Format, x: Floats, real: npt.NDArray[np.bool_]) -> Found:
    top = fmt.code_range[1]
    least, most = _least(x), x.max(axis=1, keepdims=True)
    if fmt.placement == "row":
        scale = _kept(fmt, (most.astype(np.float64) - least) / top)
        return Found(_numbers(_divided(x.astype(np.float64) - least, scale) + 0.5, 0, top), scale, least)
    d = (most - least) / np.float32(top)
    return Found(_numbers((x - least) * _inverse(d) + np.float32(0.5), 0, top), d, least)


def _zero_point(fmt: Format, x: Floats, real: npt.NDArray[np.bool_]) -> Found:
    """value = scale * (code - zero). The scale is as small as the ranges of code and zero allow."""
    low, high = fmt.code_range
    assert fmt.offset
    assert fmt.offset.ints
    zero_low, zero_high = fmt.offset.ints.range
    least, most = (a.astype(np.float64) for a in (x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)))
    scale = np.maximum((most - least) / (high - low), np.maximum(most / (high - zero_low), least / (low - zero_high)))
    kept = _kept(fmt, scale + 0)  # no -0: of two zeros NumPy takes either
    zero = _numbers(_half_away(low - _divided(least, kept)), zero_low, zero_high)
    return Found(_numbers(_half_away(_divided(x, kept)) + zero, low, high), kept, None, None, zero)


def _mean(fmt: Format, x: Floats, real: npt.NDArray[np.bool_]) -> Found:
    total = np.add.accumulate(np.where(real, abs(x), np.float32(0)), axis=1)[:, -1:]
    d = total / real.sum(axis=1, keepdims=True).astype(np.float32)
    return Found(np.where(x >= 0, np.int32(1), np.int32(-1)), d)


def _mxfp4(fmt: Format, x: Floats, real: npt.NDArray[np.bool_]) -> Found:
    greatest = abs(x).max(axis=1, keepdims=True)
    e = np.where(greatest > 0, np.clip(_log2_floor(greatest) - 2 + 127, 0, 254), 0).astype(np.uint8)
    d = e8m0_half(e)
    book = Levels(fmt).book
    book = book[book >= 0]
    middles = (book[1:] + book[:-1]) * np.float32(0.5)
    steps = sum((abs(x) > middle * d).astype(np.int32) for middle in middles)  # of two equally near, the smaller
    return Found(np.copysign(book[steps], x).astype(np.int32), d)


def _log2_floor(v: Floats) -> Ints:
    """floor(log2(v)) with log2 rounded to f32, as gguf has it: just below a power of two it is that power."""
    mantissa, exponent = np.frexp(v)  # v = mantissa * 2^exponent, mantissa from 1/2 up
    below = ((1 - mantissa) * np.float32(2.0**24)).astype(np.int32)
    digits = np.frexp(np.where(exponent > 0, exponent - 1, -exponent).astype(np.float32))[1]
    reach = np.array([0, 0, 1, 2, 5, 11, 22, 44, 88], np.int32)[digits]
    return (exponent - (below > reach)).astype(np.int32)


def _q8_k(fmt: Format, x: Floats, real: npt.NDArray[np.bool_]) -> Found:
    greatest = _of_greatest_magnitude(x)
    scale = np.float32(-127) / greatest
    scale = np.where((greatest == 0) | np.isinf(scale), np.float32(0), scale)
    codes = np.clip(np.rint(x * scale), -127, 127).astype(np.int32)
    return Found(codes, np.where(scale == 0, np.float32(0), np.float32(1) / scale))


RULES: dict[str, Callable[[Format, Floats, npt.NDArray[np.bool_]], Found]] = {
    "absmax": _absmax,
    "absmax_signed": _absmax_signed,
    "minmax": _minmax,
    "zero_point": _zero_point,
    "mean": _mean,
    "mxfp4": _mxfp4,
    "q8_k": _q8_k,
}

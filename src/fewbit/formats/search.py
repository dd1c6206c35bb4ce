"""Finds the scales and offsets with the least error: the sum of weight * (value - decoded)^2.

One search serves every format. Sixteen candidates run side by side, one in each lane; `measure` gives the error of each
with the codes nearest to the values, and the sums from which least squares gives a better scale for the same codes. A
few rounds of that, from starts spread over the plausible range, and the best candidate seen wins. Where the groups of a
block share a float and have small integers of their own, `shared.py` goes on from there.

Native code does the same arithmetic in the same order (csrc/kernels/search.h) and must give the same bytes: f32 only,
sums in the order of the elements and in chunks of 256, rounding half to even.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Floats
from .pack import small_floats
from .spec import K_BLOCK, Format, Integers

LANES = 16
ROUNDS = 3
MAGIC = np.float32(12582912)  # adding it rounds to an integer
GREATEST = np.float32(3.4028235e38)
TINY = np.float32(1e-30)
TOO_MUCH = np.float32(2.0**40)  # for a scale of values near 1
LEAST_WEIGHT = np.float32(2.0**-40)  # beside the greatest of the block, which is 1 to 2
LANE = np.arange(LANES, dtype=np.float32)

# How far the starts reach, by the bits of a code: the least and the greatest scale beside the one that spans all
# values; with an offset, how much of the range may be cut at either end. Native code has these from `emit.py`.
REACH = (
    (0.3, 1.0), (0.3, 1.0), (0.25, 1.0), (0.5, 1.05), (0.6, 1.05), (0.75, 1.03), (0.85, 1.02), (0.95, 1.005),
    (0.95, 1.005),
)  # fmt: skip
CUT = (0.3, 0.3, 0.3, 0.2, 0.15, 0.1, 0.06, 0.03, 0.03)


@dataclass(frozen=True)
class Levels:
    """The numbers that the codes of a format stand for, and what kind of offset it has."""

    fmt: Format

    @cached_property
    def low(self) -> np.float32:
        low, high = self.fmt.code_range
        is_signed = isinstance(self.fmt.codes, Integers) and self.fmt.codes.signed
        return np.float32(-high if is_signed else low)  # not -128: kernels may negate a code

    @cached_property
    def high(self) -> np.float32:
        return np.float32(self.fmt.code_range[1])

    @cached_property
    def step(self) -> np.float32:
        return np.float32(self.fmt.codes.times if isinstance(self.fmt.codes, Integers) else 1)

    @cached_property
    def bits(self) -> int:
        count = len(self.fmt.codebook) if self.fmt.codebook else int((self.high - self.low) / self.step) + 1
        return (count - 1).bit_length()

    @cached_property
    def book(self) -> Floats:
        return np.unique(np.array(self.fmt.codebook, np.float32))

    @cached_property
    def takes_both_signs(self) -> bool:
        """Whether a negative scale is tried: it helps where one side has one more level and levels are few."""
        return -self.low != self.high and self.bits < 8

    @cached_property
    def has_zero_point(self) -> bool:
        return self.fmt.offset is not None and self.fmt.offset.field == self.fmt.scale.field

    @cached_property
    def has_free_offset(self) -> bool:
        return self.fmt.offset is not None and not self.has_zero_point

    def nearest(self, t: Floats, low: Floats, high: Floats) -> Floats:
        """The level nearest to each t, from low to high."""
        if self.fmt.codebook:
            middles = (self.book[1:] + self.book[:-1]) * np.float32(0.5)
            return self.book[np.searchsorted(middles, t, side="right")]
        if self.step == 1:
            return nearest_int(np.clip(t, low, high))
        return nearest_int((np.clip(t, low, high) - low) * (1 / self.step)) * self.step + low


class Group(NamedTuple):
    """Groups and what of them does not change: values and weights, (groups, n); sums and ends, (groups, 1).

    For formats with a free offset, sums are of values less their mean, `center`, and of codes less the mean's code:
    otherwise least squares would subtract large numbers.
    """

    x: Floats
    w: Floats
    sw: Floats
    sx: Floats
    sxx: Floats
    least: Floats
    most: Floats
    center: Floats
    rest: Floats  # sum of weight * (value - center)


class Fit(NamedTuple):
    """A scale, an offset (times its sign), and the lowest and highest level, for each candidate, (groups, LANES)."""

    scale: Floats
    offset: Floats
    low: Floats
    high: Floats

    def where(self, better: npt.NDArray[np.bool_], other: Fit) -> Fit:
        return Fit(*(np.where(better, a, b) for a, b in zip(self, other, strict=True)))

    def lane(self, which: npt.NDArray[np.intp]) -> Fit:
        return Fit(*(np.take_along_axis(a, which, 1) for a in self))


class Sums(NamedTuple):
    """Of weight times error^2, code, code^2, value * code, for each candidate, (groups, LANES).

    Codes are counted from `middle`, values from the center of the group.
    """

    error: Floats
    q: Floats
    qq: Floats
    xq: Floats
    middle: Floats

    def where(self, better: npt.NDArray[np.bool_], other: Sums) -> Sums:
        return Sums(*(np.where(better, a, b) for a, b in zip(self, other, strict=True)))

    def whole(self, g: Group) -> tuple[Floats, Floats, Floats]:
        """The sums of code, code^2 and value * code themselves."""
        q = self.q + self.middle * g.sw
        qq = self.qq + self.middle * (self.q + q)
        return q, qq, self.xq + self.middle * g.rest + g.center * q


def nearest_int(t: Floats) -> Floats:
    return (t + MAGIC) - MAGIC


def inverse(scale: Floats) -> Floats:
    """1 / scale; 0 where that is too much."""
    usable = abs(scale) > TINY
    return np.where(usable, np.float32(1) / np.where(usable, scale, np.float32(1)), np.float32(0))


def ratio(a: Floats, b: Floats, otherwise: Floats) -> Floats:
    usable = b > TINY
    return np.where(usable, a / np.where(usable, b, np.float32(1)), otherwise)


def unit_of(x: Floats) -> Floats:
    """The power of two that brings the greatest of each row near 1, (rows, 1)."""
    exponent = np.clip(abs(x).max(axis=1, keepdims=True).view(np.uint32) >> 23, 1, 253)
    unit: Floats = (exponent.astype(np.uint32) << 23).view(np.float32)
    return unit


def in_order(a: Floats) -> Floats:
    """Sums over the second axis, one after another."""
    total = a[:, 0].copy()
    for i in range(1, a.shape[1]):
        total += a[:, i]
    return total


def in_chunks(terms: Callable[[slice], tuple[Floats, ...]], n: int) -> list[Floats]:
    """Sums over n columns, one after another, 256 at a time; terms are (groups, columns, lanes)."""
    total: list[Floats] = []
    for first in range(0, n, K_BLOCK):
        part = [in_order(a) for a in terms(slice(first, first + K_BLOCK))]
        total = [a + b for a, b in zip(total, part, strict=True)] if total else part
    return total


def group(levels: Levels, x: Floats, w: Floats) -> Group:
    def terms(part: slice) -> tuple[Floats, ...]:
        wx = w[:, part, None] * x[:, part, None]
        return w[:, part, None], wx, wx * x[:, part, None]

    sw, sx, sxx = in_chunks(terms, x.shape[1])
    center = ratio(sx, sw, np.zeros_like(sx)) if levels.has_free_offset else np.zeros_like(sx)
    (rest,) = in_chunks(lambda part: ((w[:, part] * (x[:, part] - center))[..., None],), x.shape[1])
    zero = np.float32(0)  # added: no -0
    least, most = x.min(axis=1, keepdims=True) + zero, x.max(axis=1, keepdims=True) + zero
    return Group(x, w, sw, sx, sxx, least, most, center, rest)


def measure(levels: Levels, g: Group, fit: Fit) -> Sums:
    """The error of each candidate with the codes nearest to the values, and the sums for `refit`."""
    back = inverse(fit.scale)
    middle = np.zeros_like(back)
    if levels.has_free_offset:
        middle = levels.nearest((g.center - fit.offset) * back, fit.low, fit.high)
    scale, offset, low, high, inv, mid = (a[:, None] for a in (*fit, back, middle))

    def terms(part: slice) -> tuple[Floats, ...]:
        x, w = g.x[:, part, None], g.w[:, part, None]  # (groups, columns, 1)
        y = x - offset
        q = levels.nearest(y * inv, low, high)
        r = y - scale * q
        p = q - mid
        wp = w * p
        return w * (r * r), wp, wp * p, wp * (x - g.center[:, None])

    error, q, qq, xq = in_chunks(terms, g.x.shape[1])
    return Sums(error, q, qq, xq, middle)


def refit(levels: Levels, g: Group, fit: Fit, s: Sums) -> Fit:
    """The scale and offset that suit the codes of `fit` best."""
    if not levels.has_free_offset:
        return fit._replace(scale=ratio(s.xq, s.qq, fit.scale))
    spread = g.sw * s.qq - s.q * s.q
    scale = ratio(g.sw * s.xq - g.rest * s.q, spread, fit.scale)
    offset = ratio(g.rest * s.qq - s.q * s.xq, spread, np.zeros_like(scale))
    offset = (offset - scale * s.middle) + g.center
    if levels.fmt.offset_sign < 0:
        _, qq, xq = s.whole(g)
        scale = np.where(offset > 0, ratio(xq, qq, fit.scale), scale)
        offset = np.where(offset > 0, np.float32(0), offset)
    return fit._replace(scale=scale, offset=offset)


def lanes(levels: Levels, scale: Floats, offset: Floats) -> Fit:
    low, high = np.full_like(scale, levels.low), np.full_like(scale, levels.high)
    return Fit(scale, offset, low, high)


def starts(levels: Levels, g: Group) -> list[Fit]:
    """Starting points of the search, in sets of sixteen."""
    if levels.fmt.offset is not None:
        return _starts_with_offset(levels, g)
    least, most = (np.float32(v) for v in REACH[levels.bits])
    up = np.maximum(g.most / levels.high, g.least / levels.low)
    if levels.takes_both_signs:
        down = np.maximum(g.most / -levels.low, g.least / -levels.high)
        scale = np.where(LANE < 8, up, -down) * (least + LANE % 8 * ((most - least) / np.float32(7)))
    else:
        scale = up * (least + LANE * ((most - least) / np.float32(15)))
    return [lanes(levels, scale, np.zeros_like(scale))]


def _starts_with_offset(levels: Levels, g: Group) -> list[Fit]:
    """Both ends of the range cut; and from the bottom up with steps of other sizes, for values that lie on a grid."""
    stays_below = levels.has_free_offset and levels.fmt.offset_sign < 0
    bottom = np.minimum(g.least, np.float32(0)) if stays_below else g.least
    extent, cut, steps = g.most - bottom, np.float32(CUT[levels.bits]) / np.float32(3), levels.high - levels.low
    offset = bottom + LANE % 4 * cut * extent
    if stays_below:
        offset = np.minimum(offset, np.float32(0))
    scale = (g.most - LANE // 4 * cut * extent - offset) / steps
    sized = extent / (steps + (LANE - 8) * np.float32(0.25))
    fits = [lanes(levels, scale, offset), lanes(levels, sized, np.broadcast_to(bottom, sized.shape))]
    return fits if levels.has_free_offset else [_as_zero_point(levels, g, fit) for fit in fits]


def _as_zero_point(levels: Levels, g: Group, fit: Fit) -> Fit:
    """An offset of a whole number of steps: the codes are shifted by it, and their range moves."""
    zero_low, zero_high = zero_range(levels)
    reach = np.maximum(g.most / (levels.high - zero_low), g.least / (levels.low - zero_high))
    scale = np.maximum(fit.scale, reach)
    zero = np.clip(nearest_int(fit.low - fit.offset * inverse(scale)), zero_low, zero_high)
    return Fit(scale, np.zeros_like(scale), fit.low - zero, fit.high - zero)


def zero_range(levels: Levels) -> tuple[np.float32, np.float32]:
    assert levels.fmt.offset
    assert levels.fmt.offset.ints
    low, high = levels.fmt.offset.ints.range
    return np.float32(low), np.float32(high)


def stored(kind: str, v: Floats) -> Floats:
    """The value that is read back after v is stored. A search never stores infinity, and 0 only for 0."""
    if kind == "f16":
        a = np.clip(abs(v), np.float32(2.0**-24), np.float32(65504)).astype(np.float16).astype(np.float32)
        return np.where(v == 0, np.float32(0), np.copysign(a, v))
    return np.clip(v, -GREATEST, GREATEST)


def kept(kind: str, v: Floats, unit: Floats) -> Floats:
    """The value that is read back, for values divided by `unit`; 0 where they are far too small to be stored."""
    back = stored(kind, v * unit) * (np.float32(1) / unit)
    return np.where(abs(back) > TOO_MUCH, np.float32(0), back)


def settle(levels: Levels, fit: Fit, unit: Floats) -> Fit:
    """Round scale and offset to what can be stored."""
    fmt = levels.fmt
    assert isinstance(fmt.scale.field, str)
    scale = kept(fmt.field_type(fmt.scale.field), fit.scale, unit)
    if not levels.has_free_offset:
        return fit._replace(scale=scale)
    assert fmt.offset
    assert isinstance(fmt.offset.field, str)
    return fit._replace(scale=scale, offset=kept(fmt.field_type(fmt.offset.field), fit.offset, unit))


def search_groups(levels: Levels, g: Group, unit: Floats) -> Fit:
    """The best scale and offset of each group, (groups, 1)."""
    assert isinstance(levels.fmt.scale.field, str)
    kind = levels.fmt.field_type(levels.fmt.scale.field)
    if kind in ("e8m0", "ue4m3"):
        return _search_small_floats(levels, g, unit, kind)
    is_final = levels.fmt.scale.ints is None
    fit, *others = (settle(levels, f, unit) if is_final else f for f in starts(levels, g))
    s = measure(levels, g, fit)
    for other in others:
        t = measure(levels, g, other)
        better = t.error < s.error
        fit, s = other.where(better, fit), t.where(better, s)
    best, error = fit, s.error
    for _ in range(ROUNDS - 1):
        fit = refit(levels, g, fit, s)
        fit = settle(levels, fit, unit) if is_final else fit
        s = measure(levels, g, fit)
        best, error = fit.where(s.error < error, best), np.minimum(error, s.error)
    which = np.argmin(error, axis=1, keepdims=True)
    best = best.lane(which)
    nothing = g.sxx <= np.take_along_axis(error, which, 1)
    zero = np.float32(0)
    return best._replace(scale=np.where(nothing, zero, best.scale), offset=np.where(nothing, zero, best.offset))


def _search_small_floats(levels: Levels, g: Group, unit: Floats, kind: str) -> Fit:
    """Scales of 8 bits: sixteen neighbours of the one that spans all values."""
    table = small_floats(kind)
    up = np.maximum(g.most / levels.high, g.least / levels.low) * unit
    code = np.searchsorted(table, up) + 4 - np.arange(LANES)
    scale = table[np.clip(code, 0, len(table) - 1)] * (np.float32(1) / unit)
    scale = np.where(scale > TOO_MUCH, np.float32(0), scale)
    fit = lanes(levels, scale, np.zeros_like(scale))
    return fit.lane(np.argmin(measure(levels, g, fit).error, axis=1, keepdims=True))

"""The search where a block shares a float, or two, and each group multiplies it by small integers of its own.

From the scales that suit the groups best: sixteen candidates for the shared floats; then, a few times, the best of
sixteen neighbouring integers for each group, and the floats that suit these integers and codes best by least squares.
Native code does the same arithmetic in the same order (csrc/kernels/search.h).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..arrays import Floats
from .search import LANE, LANES, Fit, Group, Levels, Sums, in_order, inverse, kept, lanes, measure, nearest_int, ratio

ROUNDS = 3
REACH = np.float32(0.95), np.float32(1.1)  # shared floats beside the one that spans all groups
STEPS = np.array((0, -1, 1, -2, 2, -3, 3, -4, 4, -5, 5, -6, 6, -7, 7, 8), np.float32)
PAIR_STEPS = np.array((0, -1, 1, 2), np.float32)


class Shared(NamedTuple):
    """The floats, (blocks, 1), and the integers, (blocks * groups, 1), of scales and offsets."""

    d: Floats
    dmin: Floats
    scale: Floats
    offset: Floats

    def fit(self, levels: Levels) -> Fit:
        groups = len(self.scale) // len(self.d)
        d, dmin = np.repeat(self.d, groups, axis=0), np.repeat(self.dmin, groups, axis=0)
        scale = d * self.scale
        return lanes(levels, scale, np.broadcast_to(-(dmin * self.offset), scale.shape))

    def where(self, better: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], other: Shared) -> Shared:
        groups = np.repeat(better, len(self.scale) // len(self.d), axis=0)
        picks = (better, better, groups, groups)
        return Shared(*(np.where(p, a, b) for p, a, b in zip(picks, self, other, strict=True)))


def over_groups(a: Floats, blocks: int) -> Floats:
    """Sums over the groups of each block: (blocks * groups, n) to (blocks, n)."""
    return in_order(a.reshape(blocks, -1, a.shape[1]))


def search_shared(levels: Levels, g: Group, unit: Floats, fit: Fit) -> Shared:
    """The shared floats and the integers; `unit` is (blocks, 1)."""
    best = now = _start(levels, g, unit, fit)
    error = np.full((len(unit), 1), np.inf, np.float32)
    for done in range(ROUNDS):
        now, s = _neighbours(levels, g, now)
        total = over_groups(s.error, len(unit))
        best, error = now.where(total < error, best), np.minimum(error, total)
        if done < ROUNDS - 1:
            now = _refit_floats(levels, g, unit, now, s)
    return best


def _start(levels: Levels, g: Group, unit: Floats, fit: Fit) -> Shared:
    fmt, blocks = levels.fmt, len(unit)
    assert fmt.scale.ints
    low, high = (np.float32(v) for v in fmt.scale.ints.range)
    scales = fit.scale.reshape(blocks, -1)
    greatest = np.take_along_axis(scales, np.argmax(abs(scales), axis=1, keepdims=True), 1)
    width = (REACH[1] - REACH[0]) / np.float32(3 if fmt.offset else 7)
    if fmt.offset:
        assert fmt.offset.ints
        top = np.float32(fmt.offset.ints.range[1])
        deepest = (-fit.offset).reshape(blocks, -1).max(axis=1, keepdims=True)
        d = greatest / high * (REACH[0] + LANE % 4 * width)
        dmin = deepest / top * (REACH[0] + LANE // 4 * width)
    else:
        top = np.float32(0)
        d = np.where(LANE < 8, greatest / low, greatest / high) * (REACH[0] + LANE % 8 * width)
        dmin = np.zeros_like(d)
    d, dmin = _kept(levels, d, unit), _kept(levels, dmin, unit)
    groups = len(g.x) // blocks
    scale = np.clip(nearest_int(fit.scale * inverse(np.repeat(d, groups, axis=0))), low, high)
    offset = np.clip(nearest_int(-fit.offset * inverse(np.repeat(dmin, groups, axis=0))), 0, top)
    candidates = Shared(d, dmin, scale, offset)
    error = over_groups(measure(levels, g, candidates.fit(levels)).error, blocks)
    which = np.argmin(error, axis=1, keepdims=True)
    each = np.repeat(which, groups, axis=0)
    return Shared(*(np.take_along_axis(a, i, 1) for a, i in zip(candidates, (which, which, each, each), strict=True)))


def _kept(levels: Levels, v: Floats, unit: Floats) -> Floats:
    assert isinstance(levels.fmt.scale.field, str)
    return kept(levels.fmt.field_type(levels.fmt.scale.field), v, unit)


def _neighbours(levels: Levels, g: Group, now: Shared) -> tuple[Shared, Sums]:
    """The best of sixteen neighbouring integers for each group, and its sums."""
    fmt = levels.fmt
    assert fmt.scale.ints
    if fmt.offset:
        assert fmt.offset.ints
        scale = np.clip(now.scale + np.tile(PAIR_STEPS, 4), *fmt.scale.ints.range)
        offset = np.clip(now.offset + np.repeat(PAIR_STEPS, 4), *fmt.offset.ints.range)
    else:
        scale = np.clip(now.scale + STEPS, *fmt.scale.ints.range)
        offset = np.zeros_like(scale)
    s = measure(levels, g, Shared(now.d, now.dmin, scale, offset).fit(levels))
    which = np.argmin(s.error, axis=1, keepdims=True)
    scale, offset, *sums = (np.take_along_axis(a, which, 1) for a in (scale, offset, *s))
    return Shared(now.d, now.dmin, scale, offset), Sums(*sums)


def _refit_floats(levels: Levels, g: Group, unit: Floats, now: Shared, s: Sums) -> Shared:
    """The floats that suit these integers and codes best."""
    blocks, a, b = len(unit), now.scale, now.offset
    q, qq, xq = s.whole(g)
    aa, ax = over_groups(a * a * qq, blocks), over_groups(a * xq, blocks)
    if not levels.fmt.offset:
        return now._replace(d=_kept(levels, ratio(ax, aa, now.d), unit))
    ab, bb, bx = over_groups(a * b * q, blocks), over_groups(b * b * g.sw, blocks), over_groups(b * g.sx, blocks)
    spread = aa * bb - ab * ab
    d = ratio(ax * bb - bx * ab, spread, ratio(ax, aa, now.d))
    dmin = np.maximum(ratio(ax * ab - bx * aa, spread, now.dmin), np.float32(0))
    return now._replace(d=_kept(levels, d, unit), dmin=_kept(levels, dmin, unit))


assert len(STEPS) == len(PAIR_STEPS) ** 2 == LANES

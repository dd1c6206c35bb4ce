"""Finds the points, signs and scales of grid formats with the least error: the sum of weight * (value - decoded)^2.

Four or eight values are one point of a grid. For a scale, the values are first rounded one by one, to a point of the
whole lattice; the sixteen points of the grid that are nearest to it (`near`) are compared with the values themselves.
Scales are searched as in `search.py`: from starts over the plausible range, then by least squares; and as in
`shared.py` for the float that a block shares and the integers of its groups.

Native code does the same arithmetic in the same order (csrc/kernels/grid_search.h).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Ints
from . import grids
from .pack import Found
from .search import in_order, inverse, kept, nearest_int, ratio
from .spec import Format, Grid

STARTS = 6
REFITS = 1
ROUNDS = 2
SHARED_STARTS = (1.0, 1.06)  # the shared float beside the one that spans the greatest scale
STEPS = (0, -1, 1)

Index = npt.NDArray[np.intp]


@dataclass(frozen=True)
class GridLevels:
    """The points of a format, and how codes follow from them: `times * point + shift`."""

    fmt: Format

    @cached_property
    def grid(self) -> Grid:
        assert isinstance(self.fmt.codes, Grid)
        return self.fmt.codes

    @cached_property
    def points(self) -> Floats:
        return grids.points(self.grid.points).astype(np.float32)

    @cached_property
    def near(self) -> Index:
        return grids.near(self.grid.points)

    @cached_property
    def levels(self) -> Floats:
        return np.array(grids.LEVELS[self.grid.points], np.float32)

    @cached_property
    def times(self) -> np.float32:
        return np.float32(8 if self.grid.shift else 1)

    @cached_property
    def shifts(self) -> tuple[int, ...]:
        return (1, -1) if self.grid.shift else (0,)

    @cached_property
    def tuples(self) -> int:
        """Tuples that share a shift."""
        return self.grid.shift_every // self.grid.width if self.grid.shift else 1

    @property
    def reach(self) -> tuple[np.float32, np.float32]:
        """The first and the last start, beside the scale that spans all values."""
        least, most = grids.REACH[self.grid.points]
        return np.float32(least), np.float32(most)


class GridGroup(NamedTuple):
    """Values that a scale multiplies points to, and their weights: (groups, tuples, width)."""

    y: Floats
    w: Floats


class GridSums(NamedTuple):
    """Of weight times error^2, code^2, value * code: (groups,); and the points and shifts: (groups, tuples)."""

    error: Floats
    qq: Floats
    xq: Floats
    points: Ints
    shift: Ints

    def where(self, better: npt.NDArray[np.bool_], other: GridSums) -> GridSums:
        return GridSums(*(np.where(better.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(self, other)))  # noqa: B905


def search_grid(fmt: Format, x: Floats, w: Floats, unit: Floats) -> Found:
    """What is stored of blocks, (blocks, values), that were divided by `unit`, (blocks, 1)."""
    levels, blocks = GridLevels(fmt), len(x)
    y, signs = (x, None) if levels.grid.signs is None else magnitudes(x, w, levels.grid.signs.bits == 7)
    shape = (-1, fmt.group // levels.grid.width, levels.grid.width)
    g = GridGroup(y.reshape(shape), w.reshape(shape))
    d, ints, sums = _search_shared(levels, g, unit, _search_scales(levels, g))
    shift = None
    if levels.grid.shift:
        shift = sums.shift.reshape(blocks, -1)[:, :: levels.tuples]
    return Found(sums.points.reshape(blocks, -1), d * unit, None, ints.reshape(blocks, -1), None, signs, shift)


def magnitudes(x: Floats, w: Floats, is_even: bool) -> tuple[Floats, Ints]:
    """The values without their signs, and the signs of every eight as bits.

    If the number of negative ones must be even, the value whose sign costs least to change keeps a magnitude below 0.
    """
    negative = (x < 0).reshape(len(x), -1, 8)
    y = abs(x).reshape(negative.shape)
    if is_even:
        cheapest = (w * (x * x)).reshape(negative.shape).argmin(axis=2)
        flips = (negative.sum(axis=2) % 2 == 1)[..., None] & (np.arange(8) == cheapest[..., None])
        negative, y = negative ^ flips, np.where(flips, -y, y)
    bits = (negative << np.arange(8)).sum(axis=2)
    return y.reshape(x.shape), bits.astype(np.int32)


def measure(levels: GridLevels, g: GridGroup, scale: Floats) -> GridSums:
    """The error of a scale for each group, (groups,), with the best points among those near."""
    found = [_nearest_points(levels, g, scale, np.float32(shift)) for shift in levels.shifts]
    index, q, error = found[0]
    shift = np.zeros_like(index)
    if len(found) > 1:
        totals = [in_order(e.reshape(-1, levels.tuples)) for _, _, e in found]
        second = np.repeat(totals[1] < totals[0], levels.tuples).reshape(index.shape)
        index, shift = np.where(second, found[1][0], index), second.astype(np.int32)
        q = np.where(second[..., None], found[1][1], q)
        error = np.where(second, found[1][2], error)
    wq = g.w * q
    qq, xq = (in_order((wq * other).reshape(-1, q.shape[2])).reshape(index.shape) for other in (q, g.y))
    return GridSums(in_order(error), in_order(qq), in_order(xq), index, shift)


def _nearest_points(levels: GridLevels, g: GridGroup, scale: Floats, shift: np.float32) -> tuple[Ints, Floats, Floats]:
    """Number, codes and error of the best point for each tuple."""
    s = scale[:, None, None]
    t = g.y * inverse(s)
    middles = (levels.levels[1:] + levels.levels[:-1]) * np.float32(0.5) * levels.times + shift
    digits = (t[..., None] >= middles).sum(axis=3)
    lattice = (digits * len(levels.levels) ** np.arange(levels.grid.width)).sum(axis=2)
    near = levels.near[lattice]  # (groups, tuples, 16)
    q = levels.points[near] * levels.times + shift
    r = g.y[:, :, None] - s[..., None] * q
    terms = g.w[:, :, None] * (r * r)
    errors = in_order(np.moveaxis(terms, 3, 1).reshape(len(terms), q.shape[3], -1)).reshape(near.shape)
    best = errors.argmin(axis=2)[..., None]
    chosen = np.take_along_axis(q, best[..., None], 2)[:, :, 0]
    index, error = (np.take_along_axis(a, best, 2)[..., 0] for a in (near, errors))
    return index.astype(np.int32), chosen, error


def _search_scales(levels: GridLevels, g: GridGroup) -> Floats:
    """The best scale of each group by itself."""
    top = abs(g.y).max(axis=(1, 2)) / np.float32(levels.grid.range[1])
    least, most = levels.reach
    width = (most - least) / np.float32(STARTS - 1)
    scale = top * least
    sums = measure(levels, g, scale)
    for start in range(1, STARTS):
        other = top * (least + np.float32(start) * width)
        scale, sums = _better(levels, g, other, scale, sums)
    for _ in range(REFITS):
        scale, sums = _better(levels, g, ratio(sums.xq, sums.qq, scale), scale, sums)
    found: Floats = scale
    return found


def _better(levels: GridLevels, g: GridGroup, other: Floats, scale: Floats, sums: GridSums) -> tuple[Floats, GridSums]:
    found = measure(levels, g, other)
    better = found.error < sums.error
    return np.where(better, other, scale), found.where(better, sums)


def _search_shared(levels: GridLevels, g: GridGroup, unit: Floats, scale: Floats) -> tuple[Floats, Ints, GridSums]:
    """The float of each block, (blocks, 1), the integers of its groups, and what comes of them."""
    blocks = len(unit)
    start = _start(levels, g, unit, scale)
    d, ints, sums = start
    best, error = start, np.full(blocks, np.inf, np.float32)
    for done in range(ROUNDS):
        ints, sums = _neighbours(levels, g, d, ints)
        total = in_order(sums.error.reshape(blocks, -1))
        better = total < error
        groups = np.repeat(better, len(ints) // blocks)
        best = (
            np.where(better[:, None], d, best[0]),
            np.where(groups, ints, best[1]),
            sums.where(groups, best[2]),
        )
        error = np.where(better, total, error)
        if done < ROUNDS - 1:
            d = _refit(levels, unit, d, ints, sums)
    return best[0], best[1].astype(np.int32), best[2]


def _start(levels: GridLevels, g: GridGroup, unit: Floats, scale: Floats) -> tuple[Floats, Floats, GridSums]:
    assert levels.fmt.scale.ints
    blocks, high = len(unit), np.float32(levels.fmt.scale.ints.range[1])
    greatest = scale.reshape(blocks, -1).max(axis=1, keepdims=True)
    best: tuple[Floats, Floats, GridSums] | None = None
    error = np.full(blocks, np.inf, np.float32)
    for reach in SHARED_STARTS:
        d = _kept(levels, greatest / (high * np.float32(levels.fmt.scale.unit)) * np.float32(reach), unit)
        each = np.repeat(d[:, 0], len(scale) // blocks) * np.float32(levels.fmt.scale.unit)
        ints = _whole(levels, scale * inverse(each))
        sums = measure(levels, g, each * ints)
        total = in_order(sums.error.reshape(blocks, -1))
        better = total < error
        groups = np.repeat(better, len(ints) // blocks)
        if best is None:
            best = d, ints, sums
        else:
            best = np.where(better[:, None], d, best[0]), np.where(groups, ints, best[1]), sums.where(groups, best[2])
        error = np.where(better, total, error)
    assert best
    return best


def _neighbours(levels: GridLevels, g: GridGroup, d: Floats, ints: Floats) -> tuple[Floats, GridSums]:
    """The best of the neighbouring integers for each group."""
    assert levels.fmt.scale.ints
    low, high = (np.float32(v) for v in levels.fmt.scale.ints.range)
    step = np.float32(levels.fmt.scale.ints.times)
    each = np.repeat(d[:, 0], len(ints) // len(d)) * np.float32(levels.fmt.scale.unit)
    best, sums = ints, measure(levels, g, each * ints)
    for move in STEPS[1:]:
        other = np.clip(ints + np.float32(move) * step, low, high)
        found = measure(levels, g, each * other)
        better = found.error < sums.error
        best, sums = np.where(better, other, best), found.where(better, sums)
    return best, sums


def _refit(levels: GridLevels, unit: Floats, d: Floats, ints: Floats, sums: GridSums) -> Floats:
    """The float that suits the integers and points best."""
    a = ints * np.float32(levels.fmt.scale.unit)
    aa, ax = (in_order(v.reshape(len(unit), -1))[:, None] for v in (a * a * sums.qq, a * sums.xq))
    return _kept(levels, np.maximum(ratio(ax, aa, d), np.float32(0)), unit)


def _whole(levels: GridLevels, t: Floats) -> Floats:
    """The integer of a scale that is nearest to each t."""
    ints = levels.fmt.scale.ints
    assert ints
    low, high = (np.float32(v) for v in ints.range)
    times = np.float32(ints.times)
    whole: Floats = np.clip(nearest_int((t - low) * (1 / times)) * times + low, low, high)
    return whole


def _kept(levels: GridLevels, v: Floats, unit: Floats) -> Floats:
    return kept("f16", v, unit)

"""Coordinate descent: scales and codes of packed rows, each set to what changes the output of a matrix least while all
others stay.

With E the errors of the values and H the sum of products of the inputs, the output changes by E H E^T. For a value j
the least is at an error smaller by (E H)_j / H_jj, rounded to a level. For the float that the scales of a block share,
it is a step along the block's values.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Bytes, Floats
from ..formats import Format
from ..formats.decode import read_codes, split
from ..formats.search import Levels, inverse
from ..formats.spec import Grid
from ..ops.cpu import decode
from .blocks import factors, scalable, write_codes

SWEEPS = 2
COLUMNS = 32  # whose changes are added to each other at once


def output_errors(errors: Floats, hessian: Floats) -> Floats:
    """E H E^T of each row."""
    sums: Floats = np.einsum("ij,ij->i", errors @ hessian, errors)
    return sums


def descend(fmt: Format, rows: Floats, data: Bytes, errors: Floats, hessian: Floats, threads: int | None) -> Bytes:
    """Better scales and codes in packed rows.

    Args:
        fmt: The format.
        rows: The values, (n, k).
        data: The packed rows, (n, row bytes); they are changed.
        errors: Their errors, (n, k); they are changed.
        hessian: The sum of products of the inputs, (k, k).
        threads: Number of threads.
    """
    block_bytes = fmt.row_bytes(fmt.block)
    for _ in range(SWEEPS):
        for number, first in enumerate(range(0, rows.shape[1], fmt.block)):
            part = slice(first, first + fmt.block)
            packed = np.ascontiguousarray(data[:, number * block_bytes : (number + 1) * block_bytes])
            slope, h = errors @ hessian[:, part], hessian[part, part]  # slope: E H
            values = np.ascontiguousarray(rows[:, part])
            if scalable(fmt):
                slope = _rescale(fmt, packed, values, slope, h, threads)
            if not isinstance(fmt.codes, Grid):
                _recode(fmt, packed, slope, h)
            data[:, number * block_bytes : (number + 1) * block_bytes] = packed
            errors[:, part] = values - decode(fmt, packed, fmt.block, threads)
    return data


def _rescale(fmt: Format, packed: Bytes, values: Floats, slope: Floats, h: Floats, threads: int | None) -> Floats:
    """Other floats for the scales, and the offsets, of a block; those that help stay. Returns the new slope."""
    before = decode(fmt, packed, fmt.block, threads)
    trial = packed.copy()
    fields = split(fmt, trial)
    directions = [before]
    if fmt.offset is not None:
        offset = factors(fmt, fields)[1]
        directions = [before - offset, offset]
    steps = _steps(directions, slope, h)
    for name, step in zip(scalable(fmt), steps, strict=True):
        floats = np.ascontiguousarray(fields[name]).view("<f2").astype(np.float32)
        changed = floats * (1 + step[:, None])
        usable = (abs(changed) < 65504) & (abs(step[:, None]) < 1)
        fields[name][:] = np.where(usable, changed, floats).astype("<f2").view(np.uint8)
    move = decode(fmt, trial, fmt.block, threads) - before  # errors become smaller by it
    bend = move @ h
    better = np.einsum("ij,ij->i", bend - 2 * slope, move) < 0
    packed[better] = trial[better]
    return np.where(better[:, None], slope - bend, slope)


def _steps(directions: list[Floats], slope: Floats, h: Floats) -> list[Floats]:
    """How far to go along one or two directions, for the least of E H E^T."""
    bends = [one @ h for one in directions]
    down = [np.einsum("ij,ij->i", one, slope) for one in directions]
    a = np.einsum("ij,ij->i", bends[0], directions[0])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if len(directions) == 1:
            return [np.nan_to_num(down[0] / a, posinf=0, neginf=0)]
        b, c = (np.einsum("ij,ij->i", bends[1], one) for one in directions)
        spread = a * c - b * b
        steps = [(down[0] * c - down[1] * b) / spread, (down[1] * a - down[0] * b) / spread]
        sound = spread > 1e-6 * a * c
        return [np.where(sound, np.nan_to_num(step, posinf=0, neginf=0), 0) for step in steps]


def _recode(fmt: Format, packed: Bytes, slope: Floats, h: Floats) -> None:
    """Other codes of a block, column by column. Inside, columns are rows, since they are used one by one."""
    levels, fields = Levels(fmt), split(fmt, packed)
    scale = np.ascontiguousarray(factors(fmt, fields)[0].T)
    codes = np.array(read_codes(fmt, fields, fmt.block).T, np.float32, order="C")
    slopes, back = np.ascontiguousarray(slope.T), inverse(scale)
    low, high = np.asarray(levels.low), np.asarray(levels.high)
    moves = np.empty_like(slopes)
    for first in range(0, len(codes), COLUMNS):
        last = min(first + COLUMNS, len(codes))
        for j in range(first, last):
            q = levels.nearest(codes[j] + slopes[j] * back[j] / h[j, j], low, high)
            moves[j] = (q - codes[j]) * scale[j]
            codes[j] = q
            slopes[j + 1 : last] -= h[j, j + 1 : last, None] * moves[j]
        slopes[last:] -= h[first:last, last:].T @ moves[first:last]
    write_codes(fmt, fields, codes.T.astype(np.int32))

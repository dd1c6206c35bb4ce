"""Frequencies of rotary positions, with the ways in which longer contexts are had from shorter ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..arrays import Doubles, Floats
from ..errors import FileError
from ..ops.graph import Rope
from .checkpoint import Checkpoint

SCALINGS = ("none", "linear", "dynamic", "yarn", "longrope")


def read_rope(file: Checkpoint, dim: int, neox: bool = False, truncate: bool = True) -> Rope:
    """The rope of a file, for heads of `dim` values. `truncate` rounds YaRN's bounds to whole pairs."""
    rotary_dim = read_rotary_dim(file, "rope.dimension_count", dim)
    base = file.number("rope.freq_base", default=10000.0, least=1.0)
    kind = file.word("rope.scaling.type", default="linear")
    if kind not in SCALINGS:
        raise FileError(f"{file.path}: rope.scaling.type {kind!r} is not supported; there are: {', '.join(SCALINGS)}")
    if kind == "dynamic":
        base = _longer_base(file, rotary_dim, base)
    inv_freq = plain_inv_freq(rotary_dim, base) / _factors(file, rotary_dim // 2, kind)
    scale = file.number("rope.scaling.attn_factor", default=1.0)
    factor = file.number("rope.scaling.factor", file.number("rope.scale_linear", default=0.0), least=0) or 1.0
    if kind == "linear":
        inv_freq = inv_freq / factor
    if kind == "yarn":
        mix = _yarn_mix(file, rotary_dim, base, truncate)
        inv_freq = inv_freq / factor * (1 - mix) + inv_freq * mix
        scale *= _yarn_scale(factor) / _yarn_scale(factor, file.number("rope.scaling.yarn_log_multiplier", default=0.0))
    return Rope(np.asarray(inv_freq, np.float32), scale, neox)


def with_axes(file: Checkpoint, rope: Rope, interleaved: bool) -> Rope:
    """The rope of a model whose pairs are rotated by one of three positions of a token: time, row and column.

    Args:
        file: Says how many pairs each of them rotates.
        rope: The rope for one position.
        interleaved: Whether the pairs of rows and columns alternate with those of time, which then has all others;
            else they follow each other.
    """
    if not file.has("rope.dimension_sections"):
        return rope
    pairs = len(rope.inv_freq)
    time, rows, columns, *_ = file.sizes("rope.dimension_sections", 4, least=0, most=1 << 14)
    if not interleaved:
        if time + rows + columns != pairs:
            raise FileError(f"{file.path}: rope.dimension_sections must add up to {pairs} pairs")
        return replace(rope, axes=(0,) * time + (1,) * rows + (2,) * columns)
    limits = {1: 3 * rows, 2: 3 * columns}
    return replace(rope, axes=tuple(i % 3 if i < limits.get(i % 3, 0) else 0 for i in range(pairs)))


def read_local_rope(file: Checkpoint, dim: int, base: float = 10000.0, neox: bool = False) -> Rope:
    """The rope of layers with a window: `base` unless the file has its own, and no scaling."""
    key = "rope.dimension_count_swa" if file.has("rope.dimension_count_swa") else "rope.dimension_count"
    rotary_dim = read_rotary_dim(file, key, dim)
    base = file.number("rope.freq_base_swa", default=base, least=1.0)
    return Rope(np.asarray(plain_inv_freq(rotary_dim, base), np.float32), neox=neox)


def read_rotary_dim(file: Checkpoint, key: str, dim: int) -> int:
    """The number of rotated values in a head."""
    rotary_dim = file.size(key, default=dim)
    if rotary_dim > dim or rotary_dim % 2:
        raise FileError(f"{file.path}: {key} must be even and at most {dim}, it is {rotary_dim}")
    return rotary_dim


def plain_inv_freq(rotary_dim: int, base: float) -> Doubles:
    """
    >>> plain_inv_freq(4, 100.0).tolist()
    [1.0, 0.1]
    """
    return np.asarray(base ** (-np.arange(0, rotary_dim, 2) / rotary_dim), np.float64)


def yarn_mix(
    rotary_dim: int, base: float, original: int, fast: float = 32.0, slow: float = 1.0, truncate: bool = True
) -> Doubles:
    """The share of each frequency that is kept: 1 for those that rotate often in the original context.

    >>> yarn_mix(16, 10000.0, 4096).round(2).tolist()
    [1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    def pair(rotations: float) -> float:  # the pair that rotates so often
        return rotary_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(fast), pair(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(0, low), min(rotary_dim - 1, high)
    return np.asarray(1 - np.clip((np.arange(rotary_dim // 2) - low) / max(0.001, high - low), 0, 1))


def _yarn_mix(file: Checkpoint, rotary_dim: int, base: float, truncate: bool) -> Doubles:
    original = file.size("rope.scaling.original_context_length", default=file.size("context_length"))
    fast = file.number("rope.scaling.yarn_beta_fast", default=32.0, least=1e-3)
    slow = file.number("rope.scaling.yarn_beta_slow", default=1.0, least=1e-3)
    return yarn_mix(rotary_dim, base, original, fast, slow, truncate)


def _yarn_scale(factor: float, multiplier: float = 1.0) -> float:
    return 1 + 0.1 * multiplier * math.log(factor) if factor > 1 else 1.0


def _factors(file: Checkpoint, pairs: int, kind: str) -> Floats:
    """Divisors of the frequencies."""
    if file.has_tensor("rope_freqs.weight"):
        return _positive(file, "rope_freqs.weight", pairs)
    names = "rope_factors_short.weight", "rope_factors_long.weight"
    if kind != "longrope" and not any(map(file.has_tensor, names)):
        return np.ones(pairs, np.float32)
    short, long = (_positive(file, name, pairs) for name in names)
    return long if _is_long(file) else short


def _longer_base(file: Checkpoint, rotary_dim: int, base: float) -> float:
    """The base of dynamic (NTK) scaling for the longest sequence. One base for all: what is cached cannot be rotated
    anew."""
    made_for = file.size("context_length", most=1 << 30)
    original = file.size("rope.scaling.original_context_length", default=made_for, most=1 << 30)
    factor = file.number("rope.scaling.factor", default=1.0, least=1.0)
    longest = max(file.ctx or made_for, original)
    if rotary_dim < 4:
        raise FileError(f"{file.path}: dynamic scaling needs at least 4 rotated values, there are {rotary_dim}")
    return float(base * (factor * longest / original - (factor - 1)) ** (rotary_dim / (rotary_dim - 2)))


def _is_long(file: Checkpoint) -> bool:
    """Whether sequences may grow beyond the original context. One choice for all of them: what is cached of a sequence
    cannot be rotated anew when it grows."""
    made_for = file.size("context_length", most=1 << 30)
    original = file.size("rope.scaling.original_context_length", default=made_for, most=1 << 30)
    return (file.ctx or made_for) > original


def _positive(file: Checkpoint, name: str, size: int) -> Floats:
    values = file.vector(name, size)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise FileError(f"{file.path}: {name} must hold positive numbers")
    return values

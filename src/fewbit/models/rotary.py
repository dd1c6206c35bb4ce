"""Frequencies of rotary positions, with the ways in which longer contexts are had from shorter ones."""

from __future__ import annotations

import math

import numpy as np

from ..arrays import Doubles
from ..errors import FileError
from ..ops.graph import Rope
from .checkpoint import Checkpoint


def read_rope(file: Checkpoint, dim: int, neox: bool = False) -> Rope:
    """The rope that a file describes, for heads of `dim` values."""
    rotary_dim = file.size("rope.dimension_count", default=dim)
    if rotary_dim > dim or rotary_dim % 2:
        raise FileError(f"{file.path}: rope.dimension_count must be even and at most {dim}, it is {rotary_dim}")
    base = file.number("rope.freq_base", default=10000.0, least=1.0)
    inv_freq = base ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    factors = file.vector_or_none("rope_freqs.weight", rotary_dim // 2)
    if factors is not None:
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise FileError(f"{file.path}: rope_freqs.weight must hold positive numbers")
        inv_freq /= factors
    kind = file.word("rope.scaling.type", default="linear" if file.has("rope.scale_linear") else "none")
    if kind == "none":
        return _rope(inv_freq, 1.0, neox)
    factor = file.number("rope.scaling.factor", default=file.number("rope.scale_linear", default=1.0), least=1e-3)
    if kind == "linear":
        return _rope(inv_freq / factor, 1.0, neox)
    if kind == "yarn":
        original = file.size("rope.scaling.original_context_length", default=file.size("context_length"))
        own = file.number("rope.scaling.attn_factor", default=1.0)
        mix = yarn_mix(rotary_dim, base, original)
        return _rope(inv_freq / factor * (1 - mix) + inv_freq * mix, own * (1 + 0.1 * math.log(factor)), neox)
    raise FileError(f"{file.path}: rope.scaling.type {kind!r} is not supported; there are: none, linear, yarn")


def yarn_mix(rotary_dim: int, base: float, original: int, fast: float = 32.0, slow: float = 1.0) -> Doubles:
    """How much of each frequency stays as it is: those that rotate often in the original context, wholly.

    >>> yarn_mix(16, 10000.0, 4096).round(2).tolist()
    [1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    def pair(rotations: float) -> float:  # the pair that rotates so often
        return rotary_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(0, math.floor(pair(fast))), min(rotary_dim - 1, math.ceil(pair(slow)))
    return np.asarray(1 - np.clip((np.arange(rotary_dim // 2) - low) / max(0.001, high - low), 0, 1))


def _rope(inv_freq: Doubles, scale: float, neox: bool) -> Rope:
    return Rope(np.asarray(inv_freq, np.float32), scale, neox)

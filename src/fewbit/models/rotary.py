"""Frequencies of rotary positions, with the ways in which longer contexts are had from shorter ones."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ..errors import FileError
from ..ops.base import Rope
from .checkpoint import Checkpoint

Doubles = npt.NDArray[np.float64]


def read_rope(file: Checkpoint, dim: int, halves: bool = False) -> Rope:
    """The rope that a file describes, for heads of `dim` values."""
    turned = file.size("rope.dimension_count", default=dim)
    if turned > dim or turned % 2:
        raise FileError(f"{file.path}: rope.dimension_count must be even and at most {dim}, it is {turned}")
    base = file.number("rope.freq_base", default=10000.0, least=1.0)
    inverse = base ** (-np.arange(0, turned, 2) / turned)
    factors = file.vector_or_none("rope_freqs.weight", turned // 2)
    if factors is not None:
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise FileError(f"{file.path}: rope_freqs.weight must hold positive numbers")
        inverse /= factors
    kind = file.word("rope.scaling.type", default="linear" if file.has("rope.scale_linear") else "none")
    if kind == "none":
        return _rope(inverse, 1.0, halves)
    factor = file.number("rope.scaling.factor", default=file.number("rope.scale_linear", default=1.0), least=1e-3)
    if kind == "linear":
        return _rope(inverse / factor, 1.0, halves)
    if kind == "yarn":
        original = file.size("rope.scaling.original_context_length", default=file.size("context_length"))
        own = file.number("rope.scaling.attn_factor", default=1.0)
        mix = yarn_mix(turned, base, original)
        return _rope(inverse / factor * (1 - mix) + inverse * mix, own * (1 + 0.1 * math.log(factor)), halves)
    raise FileError(f"{file.path}: rope.scaling.type {kind!r} is not supported; there are: none, linear, yarn")


def yarn_mix(turned: int, base: float, original: int, fast: float = 32.0, slow: float = 1.0) -> Doubles:
    """How much of each frequency stays as it is: those that turn often in the original context, wholly.

    >>> yarn_mix(16, 10000.0, 4096).round(2).tolist()
    [1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    def pair(turns: float) -> float:  # the pair that turns so often
        return turned * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(0, math.floor(pair(fast))), min(turned - 1, math.ceil(pair(slow)))
    return np.asarray(1 - np.clip((np.arange(turned // 2) - low) / max(0.001, high - low), 0, 1))


def _rope(inverse: Doubles, scale: float, halves: bool) -> Rope:
    return Rope(np.asarray(inverse, np.float32), scale, halves)

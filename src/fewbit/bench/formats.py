"""Times and errors of the formats: what `fewbit table` prints."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import numpy as np

import fewbit as fb

from ..arrays import Floats
from ..formats import Format, all_formats
from .timing import paired, seconds


@dataclass(frozen=True)
class FormatRow:
    """One format's figures for one matrix."""

    format: str
    bits_per_weight: float
    relative_rmse: float  # |decoded - original| / |original|
    encode_mb_per_s: float  # of f32 read
    decode_gb_per_s: float  # of f32 written
    linear_gb_per_s: float  # of packed weights, one vector
    time_to_numpy: float  # time of linear / time of NumPy's f32 product; below 1 is faster


def weight_formats() -> list[Format]:
    """The formats that make sense for weights: all but the plain integers.

    >>> {"q4_k", "int8", "f16"} <= {f.name for f in weight_formats()}
    True
    """
    return [f for f in all_formats().values() if not (f.is_scalar and f.name.startswith("i"))]


def gaussian(rows: int, columns: int) -> Floats:
    """The same matrix each time."""
    return np.random.default_rng(0).standard_normal((rows, columns), np.float32)


def measure(fmt: Format, weights: Floats, rounds: int = 7) -> FormatRow:
    """Packs, unpacks and multiplies a matrix.

    >>> from fewbit.formats import get
    >>> measure(get("q8_0"), gaussian(32, 256), rounds=1).bits_per_weight
    8.5
    """
    x = gaussian(1, weights.shape[1])[0]
    started = time.perf_counter()
    packed = fb.quantize(weights, fmt)
    encode = time.perf_counter() - started
    decoded = packed.dequantize()
    decode = median(seconds(packed.dequantize) for _ in range(3))
    product, ratio = paired(lambda: fb.linear(x, packed), lambda: weights @ x, rounds)
    return FormatRow(
        format=fmt.name,
        bits_per_weight=packed.bits_per_weight,
        relative_rmse=relative_rmse(decoded, weights),
        encode_mb_per_s=weights.nbytes / encode / 1e6,
        decode_gb_per_s=weights.nbytes / decode / 1e9,
        linear_gb_per_s=packed.nbytes / product / 1e9,
        time_to_numpy=ratio,
    )


def relative_rmse(got: Floats, wanted: Floats) -> float:
    """The length of the difference over the length of what was wanted.

    >>> relative_rmse(np.float32([3, 4.5]), np.float32([3, 4]))
    0.1
    """
    difference = got.astype(np.float64) - wanted
    return float(np.linalg.norm(difference) / np.linalg.norm(wanted.astype(np.float64)))

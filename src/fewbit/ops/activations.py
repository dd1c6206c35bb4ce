"""Quantized inputs of products in plain NumPy: slow, obvious, and what native kernels are compared with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..arrays import Doubles, Floats

Codes = npt.NDArray[np.int8]


def quantize_activations(x: Floats) -> tuple[Codes, Floats]:
    """8-bit codes, (m, k), and a scale for every 32 values, (m, groups). A group with NaN or infinity gets scale NaN.

    >>> codes, scales = quantize_activations(np.array([[1.0, -2.0]], np.float32))
    >>> codes.tolist()
    [[64, -127]]
    """
    m, k = x.shape
    groups = -(-k // 32)
    padded = np.zeros((m, groups * 32), np.float32)
    padded[:, :k] = x
    blocks = padded.reshape(m, groups, 32)
    top = np.abs(blocks).max(axis=2)
    finite = np.asarray(np.isfinite(blocks).all(axis=2))
    usable = finite & (top >= np.float32(2.0**-100))
    safe = np.where(usable, top, np.float32(127))
    inverse = np.where(usable, np.float32(127) / safe, np.float32(0))
    scales = np.where(finite, np.where(usable, safe / np.float32(127), np.float32(0)), np.float32(np.nan))
    codes = np.rint(np.where(finite[..., None], blocks, np.float32(0)) * inverse[..., None]).astype(np.int8)
    return codes.reshape(m, groups * 32)[:, :k], scales


def decode_activations(codes: Codes, scales: Floats) -> Floats:
    """The values that 8-bit activations stand for."""
    per_value = np.repeat(scales, 32, axis=1)[:, : codes.shape[1]]
    return codes.astype(np.float32) * per_value


def rounded_activations(x: Floats, activations: str) -> Doubles:
    """The inputs that are multiplied: rounded to "int8", to "int16" (8 bits, and 8 bits of the remainder), or "exact".

    >>> x = np.array([[1.0, -2.0]], np.float32)
    >>> [rounded_activations(x, a)[0, 0].round(5).tolist() for a in ("int8", "int16", "exact")]
    [1.00787, 1.0, 1.0]
    """
    if activations == "exact":
        return x.astype(np.float64)
    kept = decode_activations(*quantize_activations(x))
    if activations == "int8":
        return kept.astype(np.float64)
    return kept.astype(np.float64) + decode_activations(*quantize_activations(x - kept))

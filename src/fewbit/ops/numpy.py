"""The operations in plain NumPy: slow, obvious, and what every other backend is compared with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..formats import Format
from ..formats.decode import decode

Floats = npt.NDArray[np.float32]


def quantize_activations(x: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
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


def decode_activations(codes: npt.NDArray[np.int8], scales: Floats) -> Floats:
    """The values that 8-bit activations stand for."""
    per_value = np.repeat(scales, 32, axis=1)[:, : codes.shape[1]]
    return codes.astype(np.float32) * per_value


def linear(x: Floats, fmt: Format, data: npt.NDArray[np.uint8], exact: bool = True) -> npt.NDArray[np.float64]:
    """x (m, k) times the transpose of packed rows (n, row bytes), in float64."""
    k = x.shape[1]
    if not exact and not fmt.is_scalar:
        x = decode_activations(*quantize_activations(x))
    return x.astype(np.float64) @ decode(fmt, data, k).astype(np.float64).T

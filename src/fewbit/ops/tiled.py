"""How 32 rows of K or V lie as matrix tiles want them, in plain NumPy: csrc/kernels/kv_tiled.h, written out.

A slab has the bytes of 32 rows: first the scales of all tokens, (blocks, tokens), then the codes. Codes of four bits
that stand for themselves less 8 lie with their first bit turned, as signed numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..formats import Format
from ..formats.spec import Ints

Bytes = npt.NDArray[np.uint8]

SLAB = 32  # tokens
SCALE_BYTES = 2  # first in a block; the codes follow
FOURS = [0, 4, 1, 5, 2, 6, 3, 7]  # the order in which four tokens of V follow each other


def to_rows(fmt: Format, slabs: Bytes, dim: int, is_value: bool) -> Bytes:
    """(..., slabs, bytes of a slab) to (..., tokens, bytes of a row).

    >>> from fewbit.formats import get
    >>> rows = np.arange(64 * 72, dtype=np.uint8).reshape(64, 72)
    >>> all((to_rows(get("q4_0"), to_slabs(get("q4_0"), rows, 128, v), 128, v) == rows).all() for v in (False, True))
    True
    """
    flat = slabs.reshape(-1, slabs.shape[-1])
    blocks, size = dim // 32, fmt.block_bytes - SCALE_BYTES
    scales, codes = np.split(flat, [SLAB * blocks * SCALE_BYTES], axis=1)
    codes = codes ^ _turn(fmt)
    rows = np.empty((len(flat), SLAB, blocks, fmt.block_bytes), np.uint8)
    rows[..., :SCALE_BYTES] = scales.reshape(-1, blocks, SLAB, SCALE_BYTES).swapaxes(1, 2)
    if is_value:  # (pair, half, block of the pair, four tokens, byte, token)
        tiles = codes.reshape(-1, blocks // 2, size // 16, 2, 8, 16, 4)[:, :, :, :, np.argsort(FOURS)]
        rows[..., SCALE_BYTES:] = tiles.transpose(0, 4, 6, 1, 3, 2, 5).reshape(-1, SLAB, blocks, size)
    elif size == 32:
        pairs = codes.reshape(-1, blocks // 2, SLAB, 2, size)
        rows[..., SCALE_BYTES:] = pairs.swapaxes(1, 2).reshape(-1, SLAB, blocks, size)
    else:
        low, high = _places(dim)
        values = np.empty((len(flat), SLAB, dim), np.uint8)
        values[..., low], values[..., high] = (part.reshape(-1, SLAB, dim // 2) for part in (codes & 15, codes >> 4))
        halves = values.reshape(-1, SLAB, blocks, 2, 16)
        rows[..., SCALE_BYTES:] = halves[..., 0, :] | halves[..., 1, :] << 4
    return rows.reshape(*slabs.shape[:-2], -1, blocks * fmt.block_bytes)


def to_slabs(fmt: Format, rows: Bytes, dim: int, is_value: bool) -> Bytes:
    """The other way: tokens are a multiple of 32."""
    blocks, size = dim // 32, fmt.block_bytes - SCALE_BYTES
    each = rows.reshape(-1, SLAB, blocks, fmt.block_bytes)
    scales, codes = each[..., :SCALE_BYTES].swapaxes(1, 2), each[..., SCALE_BYTES:]
    if is_value:
        tiles = codes.reshape(-1, 8, 4, blocks // 2, 2, size // 16, 16)[:, FOURS]
        codes = tiles.transpose(0, 3, 5, 4, 1, 6, 2)
    elif size == 16:
        low, high = _places(dim)
        values = np.stack([codes & 15, codes >> 4], axis=3).reshape(-1, SLAB, dim)
        codes = values[..., low] | values[..., high] << 4
    else:
        codes = codes.reshape(-1, SLAB, blocks // 2, 2, size).swapaxes(1, 2)
    slabs = np.concatenate([part.reshape(len(each), -1) for part in (scales, codes ^ _turn(fmt))], axis=1)
    return slabs.reshape(*rows.shape[:-2], rows.shape[-2] // SLAB, -1)


def _turn(fmt: Format) -> np.uint8:
    is_signed = isinstance(fmt.codes, Ints) and fmt.codes.zero == 8 and fmt.codebook is None
    return np.uint8(0x88 if is_signed else 0)


def _places(dim: int) -> tuple[list[int], list[int]]:
    """Which values of K the bytes of a token hold, in their first four bits and in the others."""
    low: list[int] = []
    high: list[int] = []
    for first in range(0, dim, 128):
        apart = min(64, (dim - first) // 2)
        low += range(first, first + apart)
        high += range(first + apart, first + 2 * apart)
    return low, high

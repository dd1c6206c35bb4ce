"""K and V in the order of matrix tiles, 32 rows at a time, in plain NumPy: the counterpart of csrc/kernels/kv_tiled.h.

A slab has the bytes of 32 rows: first the scales of all tokens, (blocks, tokens), then the codes. 4-bit codes with a
zero point of 8 are stored as signed numbers, with their top bit flipped.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Bytes
from ..formats import Format
from ..formats.spec import Integers

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
    codes = codes ^ _sign_mask(fmt)
    rows = np.empty((len(flat), SLAB, blocks, fmt.block_bytes), np.uint8)
    rows[..., :SCALE_BYTES] = scales.reshape(-1, blocks, SLAB, SCALE_BYTES).swapaxes(1, 2)
    if is_value:  # (pair, half, block of the pair, four tokens, byte, token)
        tiles = codes.reshape(-1, blocks // 2, size // 16, 2, 8, 16, 4)[:, :, :, :, np.argsort(FOURS)]
        rows[..., SCALE_BYTES:] = tiles.transpose(0, 4, 6, 1, 3, 2, 5).reshape(-1, SLAB, blocks, size)
    else:
        parts = np.split(codes, range(64 * SLAB, codes.shape[1], 64 * SLAB), axis=1)
        own = np.concatenate([_by_tokens(part) for part in parts], axis=2)
        rows[..., SCALE_BYTES:] = own.reshape(-1, SLAB, blocks, size) if size == 32 else _from_pairs(own)
    return rows.reshape(*slabs.shape[:-2], -1, blocks * fmt.block_bytes)


def to_slabs(fmt: Format, rows: Bytes, dim: int, is_value: bool) -> Bytes:
    """The inverse of `to_rows`; tokens are a multiple of 32."""
    blocks, size = dim // 32, fmt.block_bytes - SCALE_BYTES
    each = rows.reshape(-1, SLAB, blocks, fmt.block_bytes)
    scales, codes = each[..., :SCALE_BYTES].swapaxes(1, 2), each[..., SCALE_BYTES:]
    if is_value:
        tiles = codes.reshape(-1, 8, 4, blocks // 2, 2, size // 16, 16)[:, FOURS]
        codes = tiles.transpose(0, 3, 5, 4, 1, 6, 2)
    else:
        own = codes.reshape(-1, SLAB, dim) if size == 32 else _to_pairs(codes)
        codes = np.concatenate([_by_tiles(own[..., i : i + 64]) for i in range(0, own.shape[2], 64)], axis=1)
    slabs = np.concatenate([part.reshape(len(each), -1) for part in (scales, codes ^ _sign_mask(fmt))], axis=1)
    return slabs.reshape(*rows.shape[:-2], rows.shape[-2] // SLAB, -1)


def _sign_mask(fmt: Format) -> np.uint8:
    is_signed = isinstance(fmt.codes, Integers) and fmt.codes.zero == 8 and fmt.codebook is None
    return np.uint8(0x88 if is_signed else 0)


def _by_tiles(codes: Bytes) -> Bytes:
    """Up to 64 bytes of each token of K, (slab, token, byte), four of 16 tokens side by side in a row of a tile."""
    fours = codes.reshape(len(codes), 2, 16, -1, 4)  # (slab, tile, token, row, byte)
    return fours.swapaxes(2, 3).reshape(len(codes), -1)


def _by_tokens(tiles: Bytes) -> Bytes:
    """The other way."""
    fours = tiles.reshape(len(tiles), 2, -1, 16, 4)  # (slab, tile, row, token, byte)
    return fours.swapaxes(2, 3).reshape(len(tiles), SLAB, -1)


def _to_pairs(codes: Bytes) -> Bytes:
    """4-bit codes of K from the order of blocks to that of tiles: see `_pair_values`."""
    low, high = _pair_values(32 * codes.shape[2])
    values = np.stack([codes & 15, codes >> 4], axis=3).reshape(-1, SLAB, 32 * codes.shape[2])
    out: Bytes = values[..., low] | values[..., high] << 4
    return out


def _from_pairs(pairs: Bytes) -> Bytes:
    """The other way."""
    dim = 2 * pairs.shape[2]
    low, high = _pair_values(dim)
    values = np.empty((len(pairs), SLAB, dim), np.uint8)
    values[..., low], values[..., high] = pairs & 15, pairs >> 4
    halves = values.reshape(-1, SLAB, dim // 32, 2, 16)
    out: Bytes = halves[..., 0, :] | halves[..., 1, :] << 4
    return out


def _pair_values(dim: int) -> tuple[list[int], list[int]]:
    """The values of K in the low and the high four bits of each byte."""
    low: list[int] = []
    high: list[int] = []
    for first in range(0, dim, 128):
        half = min(64, (dim - first) // 2)
        low += range(first, first + half)
        high += range(first + half, first + 2 * half)
    return low, high

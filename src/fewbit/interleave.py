"""Rows interleaved by 16: four bytes of each row, then the next four, and so on.

A vector of 16 lanes is then loaded with one lane for each row. Rows are interleaved a k-block at a time; its last two
bytes, if they are not a whole four, follow. The last rows, fewer than 16, are not interleaved. The size stays the same.
"""

from __future__ import annotations

from math import gcd
from typing import Literal

import numpy as np

from .arrays import Bytes
from .formats.spec import K_BLOCK, Format

RowLayout = Literal["rows", "interleaved16"]  # order of the rows of packed weights

ROWS = 16


def k_block_bytes(fmt: Format, k: int) -> int:
    """Bytes of a row of k values that are interleaved at a time: a k-block, or what divides it and the row; all of the
    row where fields lie apart.

    >>> from fewbit.formats import get
    >>> k_block_bytes(get("q6_k"), 512), k_block_bytes(get("q8_0"), 576), k_block_bytes(get("int8"), 512)
    (210, 68, 516)
    """
    return fmt.row_bytes(gcd(k, K_BLOCK) if fmt.placement == "block" else k)


def interleave(data: Bytes, rows: int, size: int) -> Bytes:
    """Rows one after the other, to interleaved ones, `size` bytes of each at a time.

    >>> interleave(np.arange(128, dtype=np.uint8), 16, 8).tolist()[:6]
    [0, 1, 2, 3, 8, 9]
    """
    out, sets = data.copy(), rows // ROWS
    if sets and data.size:
        whole = data[: data.size // rows * ROWS * sets]
        parts = whole.reshape(sets, ROWS, -1, size).swapaxes(1, 2)  # (sets, k-blocks, rows, size)
        out[: whole.size] = np.concatenate([_fours(parts), _rest(parts)], axis=-1).reshape(-1)
    return out


def deinterleave(data: Bytes, rows: int, size: int) -> Bytes:
    """The other way.

    >>> x = np.arange(160, dtype=np.uint8)
    >>> bool((deinterleave(interleave(x, 16, 10), 16, 10) == x).all())
    True
    """
    out, sets = data.copy(), rows // ROWS
    if sets and data.size:
        whole = data[: data.size // rows * ROWS * sets]
        mixed, count = whole.reshape(sets, -1, ROWS * size), size // 4
        fours = mixed[..., : ROWS * count * 4].reshape(*mixed.shape[:2], count, ROWS, 4).swapaxes(2, 3)
        rest = mixed[..., ROWS * count * 4 :].reshape(*mixed.shape[:2], ROWS, size % 4)
        parts = np.concatenate([fours.reshape(*mixed.shape[:2], ROWS, count * 4), rest], axis=-1)
        out[: whole.size] = parts.swapaxes(1, 2).reshape(-1)
    return out


def _fours(parts: Bytes) -> Bytes:
    sets, blocks, _, size = parts.shape
    fours = size // 4
    return parts[..., : fours * 4].reshape(sets, blocks, ROWS, fours, 4).swapaxes(2, 3).reshape(sets, blocks, -1)


def _rest(parts: Bytes) -> Bytes:
    sets, count, _, size = parts.shape
    return parts[..., size // 4 * 4 :].reshape(sets, count, -1)

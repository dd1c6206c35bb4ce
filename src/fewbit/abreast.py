"""Rows that lie abreast, 16 of them: four bytes of each row, then the next four, and so on.

A vector of 16 lanes is then loaded with a lane for each row. Blocks are laid so a span at a time: what is left of it
after the fours, two bytes of each row, follows them. Rows that are no whole 16 stay as they are, at the end. As many
bytes as before.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .formats.spec import SPAN, Format

Bytes = npt.NDArray[np.uint8]
ROWS = 16


def laid_together(fmt: Format, k: int) -> int:
    """Bytes of a row of k values that are laid together: a span of blocks; all of it where fields lie apart.

    >>> from fewbit.formats import get
    >>> laid_together(get("q6_k"), 512), laid_together(get("int8"), 512)
    (210, 516)
    """
    return fmt.row_bytes(SPAN if fmt.placement == "block" else k)


def to_abreast(data: Bytes, rows: int, together: int) -> Bytes:
    """Rows one after the other, to rows abreast, `together` bytes of each at a time.

    >>> to_abreast(np.arange(128, dtype=np.uint8), 16, 8).tolist()[:6]
    [0, 1, 2, 3, 8, 9]
    """
    out, sets = data.copy(), rows // ROWS
    if sets and data.size:
        of_sets = data[: data.size // rows * ROWS * sets]
        pieces = of_sets.reshape(sets, ROWS, -1, together).swapaxes(1, 2)
        out[: of_sets.size] = np.concatenate([_fours(pieces), _rest(pieces)], axis=-1).reshape(-1)
    return out


def from_abreast(data: Bytes, rows: int, together: int) -> Bytes:
    """The other way.

    >>> x = np.arange(160, dtype=np.uint8)
    >>> bool((from_abreast(to_abreast(x, 16, 10), 16, 10) == x).all())
    True
    """
    out, sets = data.copy(), rows // ROWS
    if sets and data.size:
        of_sets = data[: data.size // rows * ROWS * sets]
        laid, words = of_sets.reshape(sets, -1, ROWS * together), together // 4
        fours = laid[..., : ROWS * words * 4].reshape(*laid.shape[:2], words, ROWS, 4).swapaxes(2, 3)
        rest = laid[..., ROWS * words * 4 :].reshape(*laid.shape[:2], ROWS, together % 4)
        pieces = np.concatenate([fours.reshape(*laid.shape[:2], ROWS, words * 4), rest], axis=-1)
        out[: of_sets.size] = pieces.swapaxes(1, 2).reshape(-1)
    return out


def _fours(pieces: Bytes) -> Bytes:
    sets, count, _, together = pieces.shape
    words = together // 4
    return pieces[..., : words * 4].reshape(sets, count, ROWS, words, 4).swapaxes(2, 3).reshape(sets, count, -1)


def _rest(pieces: Bytes) -> Bytes:
    sets, count, _, together = pieces.shape
    return pieces[..., together // 4 * 4 :].reshape(sets, count, -1)

"""Rows that lie abreast, 16 of them: four bytes of each row, then the next four, and so on.

A vector of 16 lanes is then loaded with a lane for each row. Rows that are no whole 16 stay as they are, at the end. As
many bytes as before; rows hold whole fours of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
ROWS = 16


def to_abreast(data: Bytes, rows: int) -> Bytes:
    """Rows one after the other, to rows abreast.

    >>> to_abreast(np.arange(128, dtype=np.uint8), 16).tolist()[:6]
    [0, 1, 2, 3, 8, 9]
    """
    return _moved(data, rows, (ROWS, -1, 4))


def from_abreast(data: Bytes, rows: int) -> Bytes:
    """The other way.

    >>> x = np.arange(128, dtype=np.uint8)
    >>> bool((from_abreast(to_abreast(x, 16), 16) == x).all())
    True
    """
    return _moved(data, rows, (-1, ROWS, 4))


def _moved(data: Bytes, rows: int, shape: tuple[int, int, int]) -> Bytes:
    out, sets = data.copy(), rows // ROWS
    size = sets * ROWS * (data.size // rows) if sets else 0
    if size:
        out[:size] = data[:size].reshape(sets, *shape).swapaxes(1, 2).reshape(-1)
    return out

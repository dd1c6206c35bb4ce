"""Steps padded to sizes that come again and again: what was captured or recorded for one serves the next.

Steps of decoding have few sizes, and a graph of each is captured. Steps with prompts have many; their launches are
recorded, which takes the host longer than short prompts take the GPU, so these are padded by a little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .attention import FEW_TOKENS
from .inputs import InputLayout, exact_layout
from .shapes import MAX_SHARED
from .steps import rounded
from .values import RowRun

if TYPE_CHECKING:
    from ...cache.view import View

BATCHES = (1, 2, 4, 6, 8, 12, *range(16, 64, 8), *range(64, 257, 16))  # rows of steps of decoding
LENGTHS = (512, 2048, 8192, 32768, 131072, 1 << 20)  # of the longest sequence, likewise
ROWS = 32  # steps with prompts have a multiple, or of so many that products take them in other tiles:
FEW_ROWS = 8


def padded_batch(rows: int) -> int:
    """
    >>> padded_batch(7), padded_batch(65)
    (8, 80)
    """
    return next(int(size) for size in BATCHES if size >= rows)


def prompt_layout(view: View, logits: int, max_tokens: int, max_logits: int) -> InputLayout:
    """The layout of a step with prompts: sequences of one new token first, then the others, each with places to spare.

    The layout is exact where they come in another order, or where there is no room for padding.
    """
    counts = np.diff(view.q_starts)
    singles = int(np.argmax(counts > 1))
    exact = exact_layout(int(view.q_starts[-1]), view, logits)
    if counts[singles] == 1 or (counts[singles:] == 1).any() or max(singles, logits) > BATCHES[-1]:
        return exact
    first, longest = padded_batch(singles) if singles else 0, int(counts.max())
    rows = _padded_rows(first + exact.tokens - singles)
    if rows > max_tokens or first > max_logits:
        return exact
    prompts = len(counts) - singles
    is_several = prompts > 1 or longest <= FEW_TOKENS
    longest = rounded(max(longest, FEW_TOKENS)) if is_several else rows - first  # what rows are added have no sequence
    sequences = first + (1 << (prompts - 1).bit_length()) + 1
    runs = RowRun(range(first), range(first)), RowRun(range(first, sequences), range(first, rows))
    return InputLayout(
        rows, sequences, min(padded_batch(logits), max_logits) if logits else 0, exact.table_pages, longest,
        1 << (exact.max_length - 1).bit_length(), runs if first else (), singles=first,
    )  # fmt: skip


def _padded_rows(rows: int) -> int:
    """
    >>> _padded_rows(17), _padded_rows(70)
    (24, 96)
    """
    unit = FEW_ROWS if rows <= MAX_SHARED else ROWS
    return -(-rows // unit) * unit

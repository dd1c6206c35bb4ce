"""Log-probabilities of the tokens of a text, as they come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arrays import Floats
from ..devices.batch import Score, Top


class PositionScores:
    """Scores of the tokens of a text from `first` on. The logits at position i score token i + 1.

    Positions before `num_scored` need no logits any more: their tokens are scored, or not asked for.

    >>> scores = PositionScores(num_tokens=4, first=2)
    >>> scores.num_scored, scores.num_positions
    (1, 3)
    >>> scores.receive(np.float32([-0.5, -1.5]))
    >>> scores.num_scored, scores.values.tolist()
    (3, [-0.5, -1.5])
    """

    __slots__ = ("first", "num_logprobs", "num_scored", "tops", "values")

    def __init__(self, num_tokens: int, first: int = 1, num_logprobs: int | None = None) -> None:
        self.first = first
        self.num_logprobs = num_logprobs  # likeliest tokens to be told at each position; None: none
        self.values = np.empty(num_tokens - first, np.float32)
        self.tops: list[Top] = []  # the likeliest tokens, one for each of `values`; empty unless asked for
        self.num_scored = first - 1

    @property
    def num_positions(self) -> int:
        """`num_scored` when all tokens are scored."""
        return self.first - 1 + len(self.values)

    @property
    def is_complete(self) -> bool:
        return self.num_scored >= self.num_positions

    def ask(self, tokens: Sequence[int], count: int) -> Score:
        """What is wanted of the logits at the next `count` positions."""
        first = self.num_scored + 1
        return Score(tokens[first : min(first + count, self.num_positions + 1)], self.num_logprobs)

    def receive(self, values: Floats, tops: Sequence[Top] = ()) -> None:
        """The scores of the next tokens."""
        begin = self.num_scored + 1 - self.first
        self.values[begin : begin + len(values)] = values
        self.tops += tops
        self.num_scored += len(values)

    def can_copy(self, other: PositionScores) -> bool:
        """Whether another text that begins alike has all that is asked for here, up to where the two differ."""
        return other.first <= self.first and other.num_logprobs == self.num_logprobs

    def copy(self, other: PositionScores, end: int) -> None:
        """Take the scores at positions before `end` from another text that begins alike."""
        end = min(end, self.num_positions)
        if self.num_scored < end <= other.num_scored and self.can_copy(other):
            part = slice(self.num_scored + 1 - other.first, end + 1 - other.first)
            self.receive(other.values[part], other.tops[part])

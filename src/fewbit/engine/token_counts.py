"""Which tokens a request has seen, and how often: what penalties are computed from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..arrays import Ints


class TokenCounts:
    """Distinct tokens, in the order in which they came, and how often each is in the output.

    >>> seen = TokenCounts([7, 5, 7])
    >>> seen.add(5), seen.add(9)
    (None, None)
    >>> [array.tolist() for array in seen.arrays()]
    [[7, 5, 9], [0, 1, 1]]
    """

    __slots__ = ("_counts", "_places", "_tokens")

    def __init__(self, prompt: Iterable[int]) -> None:
        self._places = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        self._tokens = np.array([*self._places, 0], np.int32)  # never empty, so that it can be doubled
        self._counts = np.zeros(len(self._tokens), np.int32)

    def add(self, token: int) -> None:
        """A token of the output."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._tokens[place] = token
        self._counts[place] += 1

    def arrays(self, drafts: Sequence[int] = ()) -> tuple[Ints, Ints]:
        """The tokens and their counts; 0 for one that is in the prompt only. `drafts` count as if they were added."""
        if drafts:
            counts = self.copy()
            for token in drafts:
                counts.add(token)
            return counts.arrays()
        return self._tokens[: len(self._places)], self._counts[: len(self._places)]

    def copy(self) -> TokenCounts:
        """The same counts, which change apart from these."""
        counts = TokenCounts(())
        counts._places = dict(self._places)
        counts._tokens, counts._counts = self._tokens.copy(), self._counts.copy()
        return counts

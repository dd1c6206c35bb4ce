"""Small constraints over tokens, as grammars are: with forced tokens, an end, and masks from other threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident

import numpy as np

from fewbit.arrays import Words

Choices = Sequence[Sequence[int]]  # what may stand at each place of an output


def words(tokens: Sequence[int], vocab: int) -> Words:
    mask = np.zeros(-(-vocab // 32), np.uint32)
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


class Pattern:
    """One of some tokens at each place, over and over unless it ends; a place with one token is forced."""

    def __init__(self, choices: Choices, vocab: int = 40, repeats: bool = False, forces: bool = True) -> None:
        self.choices, self.vocab, self.repeats, self.forces = choices, vocab, repeats, forces
        self.accepted: list[int] = []
        self.threads: set[int] = set()  # that computed masks
        self.is_busy = False

    @property
    def is_finished(self) -> bool:
        assert not self.is_busy
        return not self.repeats and len(self.accepted) >= len(self.choices)

    def mask(self) -> Words:
        self._begin()
        self.threads.add(get_ident())
        mask = words(self._at(len(self.accepted)), self.vocab)
        self.is_busy = False
        return mask

    def accept(self, token: int) -> None:
        self._begin()
        assert token in self._at(len(self.accepted))
        self.accepted.append(token)
        self.is_busy = False

    def forced(self) -> list[int]:
        self._begin()
        found: list[int] = []
        while self.forces and len(at := self._at(len(self.accepted) + len(found))) == 1 and len(found) < 20:
            found.append(at[0])
        self.is_busy = False
        return found

    def rollback(self, count: int) -> None:
        del self.accepted[len(self.accepted) - count :]

    def _at(self, place: int) -> Sequence[int]:
        if self.repeats:
            return self.choices[place % len(self.choices)]
        return self.choices[place] if place < len(self.choices) else ()

    def _begin(self) -> None:
        assert not self.is_busy
        self.is_busy = True


def pattern(
    choices: Choices, vocab: int = 40, repeats: bool = False, forces: bool = True
) -> tuple[Callable[[], Pattern], list[Pattern]]:
    """Makes constraints, and the list of those that were made."""
    made: list[Pattern] = []

    def make() -> Pattern:
        made.append(Pattern(choices, vocab, repeats, forces))
        return made[-1]

    return make, made

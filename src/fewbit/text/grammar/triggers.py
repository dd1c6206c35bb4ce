"""Texts that begin a grammar, found in free text however they are cut into tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from .constraint import StepwiseConstraint
from .vocabulary import GrammarVocabulary


class TriggerMatch(NamedTuple):
    """What some bytes of free text lead to.

    Attributes:
        tail: The end of the text that may be the start of a trigger.
        trigger: Number of the trigger that is complete, or None.
        rest: The bytes after it.
    """

    tail: bytes
    trigger: int | None = None
    rest: bytes = b""


class TriggerWatch:
    """Triggers, and what holds the text after each of them.

    Args:
        texts: The triggers. The one that ends first counts.
        followers: Makes the constraint for what follows each trigger; None: free text.
        vocabulary: The tokens of the model.
        allows_space: Whitespace may stand between a trigger and what its constraint holds.
    """

    def __init__(
        self,
        texts: Sequence[bytes],
        followers: Sequence[Callable[[], StepwiseConstraint] | None],
        vocabulary: GrammarVocabulary,
        allows_space: bool = False,
    ) -> None:
        self._texts = texts
        self._followers = followers
        self._vocabulary = vocabulary
        self.allows_space = allows_space

    def feed(self, tail: bytes, data: bytes) -> TriggerMatch:
        """More bytes of free text after a tail."""
        data = tail + data
        ends = [(at + len(text), at, i) for i, text in enumerate(self._texts) if (at := data.find(text)) >= 0]
        if ends:
            end, _, index = min(ends)
            return TriggerMatch(b"", index, data[end:])
        longest = min(max(map(len, self._texts)) - 1, len(data))
        starts = (data[-length:] for length in range(longest, 0, -1))
        return TriggerMatch(next((end for end in starts if any(text.startswith(end) for text in self._texts)), b""))

    def follow(self, found: TriggerMatch) -> tuple[StepwiseConstraint | None, bool]:
        """The constraint after a trigger, and whether it took the rest. If not, the rest is whitespace before it."""
        assert found.trigger is not None
        follower = self._followers[found.trigger]
        if follower is None:
            return None, True
        constraint = follower()
        return constraint, not found.rest or constraint.accept_bytes(found.rest)

    def is_allowed(self, found: TriggerMatch) -> bool:
        """Whether the bytes after a trigger are what its constraint allows."""
        if found.trigger is None or not found.rest:
            return True
        return self.follow(found)[1] or (self.allows_space and found.rest.isspace())

    def refused(self, tail: bytes) -> list[int]:
        """The tokens after a tail that complete a trigger and go on with what its constraint does not allow."""
        tokens = self._vocabulary.bytes
        crossing = dict.fromkeys([*self._inside, *self._completing(tail)])
        return [token for token in crossing if not self.is_allowed(self.feed(tail, tokens[token]))]

    def _completing(self, tail: bytes) -> Iterator[int]:
        for text in self._texts:
            for length in range(1, min(len(text) - 1, len(tail)) + 1):
                if tail.endswith(text[:length]):
                    yield from self._vocabulary.starting_with(text[length:])

    @cached_property
    def _inside(self) -> list[int]:
        """The tokens that hold a whole trigger and go on."""
        return [token for text in self._texts for token in self._vocabulary.containing(text)]

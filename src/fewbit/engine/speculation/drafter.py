"""What a drafter is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..request import Generation


class Prospect(NamedTuple):
    """How many tokens could be guessed for a request, and how good guesses of this kind are, by their name."""

    length: int
    kind: str


class Drafter(Protocol):
    """Guesses the next tokens of outputs. The engine's thread calls it."""

    max_tokens: int  # of a draft

    def prospect(self, request: Generation) -> Prospect:
        """How many tokens `propose` could guess now. It is asked before each step, so it must be quick."""
        ...

    def seconds(self, length: int) -> float:
        """How long `propose` takes for drafts of so many tokens, about."""
        ...

    def propose(self, requests: Sequence[Generation], lengths: Sequence[int]) -> list[Sequence[int]]:
        """Guesses for requests, of at most so many tokens each."""
        ...

    def finish(self, request: Generation) -> None:
        """A request has ended."""
        ...

"""A request: a prompt, how its answer is chosen, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..ops.sampling import Rule
from .seen import Seen

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

Event: TypeAlias = "tuple[Request, int | None]"  # a request and its next token, or None: it is over
Sink = Callable[[Event], object]


class Logprobs(NamedTuple):
    """How likely a token was, and the likeliest ones with theirs."""

    own: float
    tokens: Ints
    logprobs: Floats


class Request:
    """One answer to one prompt. The engine writes to it; whoever made it reads it after an event.

    `sink` gets a pair for each token if `each` is set, and (request, None) at the end in any case: then
    `finish_reason` says why ("stop", "length", "cancelled" or "error"). It is called by the engine's thread.
    """

    __slots__ = (
        "cached_tokens",
        "done",
        "each",
        "end",
        "ended",
        "error",
        "finish_reason",
        "first",
        "logprobs",
        "prompt_tokens",
        "rule",
        "seen",
        "sequence",
        "shares_page",
        "siblings",
        "sink",
        "started",
        "tokens",
        "top",
        "uniform",
    )

    def __init__(
        self, prompt: list[int], rule: Rule, end: int, seed: int | None = None, top: int | None = None
    ) -> None:
        self.tokens = prompt  # and later the answer behind it
        self.prompt_tokens = len(prompt)
        self.end = end  # over when there are so many tokens
        self.rule = rule
        self.uniform = Random(seed).random  # its own, so that no other request changes what is drawn
        self.seen = Seen(prompt) if (rule.repetition, rule.presence, rule.frequency) != (1, 0, 0) else None
        self.top = top  # of how many likeliest tokens the log-probabilities are told; None: not even its own
        self.logprobs: list[Logprobs] = []
        self.siblings: list[Request] = []  # other answers to the same prompt, until it was run
        self.sink: Sink = _ignore
        self.each = False

        self.sequence = 0  # of the cache; 0: it has none
        self.done = 0  # tokens that are in the cache
        self.shares_page = False  # the page that is written next may have to be copied first
        self.cached_tokens = 0  # of the prompt, found in the cache at first
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.started = self.first = self.ended = 0.0  # by perf_counter: taken up, first token, over

    @property
    def left(self) -> int:
        """Tokens to run before the next one is known; 1 for a request that is writing its answer."""
        return len(self.tokens) - self.done

    @property
    def answer(self) -> list[int]:
        """The tokens of the answer so far."""
        return self.tokens[self.prompt_tokens :]

    @property
    def is_over(self) -> bool:
        return self.finish_reason is not None and all(sibling.finish_reason is not None for sibling in self.siblings)

    def wanted(self, count: int) -> int:
        """Rows of logits that are needed when the next `count` tokens are run."""
        return 1 if self.done + count == len(self.tokens) else 0

    def known(self) -> list[int]:
        """The tokens that need not be run if they are in the cache."""
        return self.tokens[:-1]

    def members(self) -> list[Request]:
        """The answers to this prompt that are still wanted."""
        if not self.siblings:
            return [self]
        return [member for member in (self, *self.siblings) if member.finish_reason is None]

    def follow(self, leader: Request, sequence: int) -> None:
        """Go on from where another request with the same prompt is."""
        self.tokens = leader.tokens[:]
        self.sequence, self.done, self.shares_page = sequence, leader.done, True
        self.cached_tokens, self.started = leader.cached_tokens, leader.started


class Scoring(Request):
    """A text whose tokens are to be scored: there is no answer, `scores` holds what was computed so far."""

    __slots__ = ("scored", "scores")

    def __init__(self, tokens: list[int]) -> None:
        super().__init__(tokens, Rule(), len(tokens))
        self.scores = np.empty(len(tokens) - 1, np.float32)
        self.scored = 0

    @property
    def left(self) -> int:
        return len(self.tokens) - 1 - self.done  # nothing follows the last one

    def wanted(self, count: int) -> int:
        return max(0, self.done + count - self.scored)

    def known(self) -> list[int]:
        return self.tokens[: self.scored]

    def targets(self, count: int) -> list[int]:
        """The tokens that follow the next `count`, as far as they have no score yet."""
        return self.tokens[self.scored + 1 : self.done + count + 1]

    def take(self, scores: Floats) -> None:
        """The scores of the next tokens."""
        self.scores[self.scored : self.scored + len(scores)] = scores
        self.scored += len(scores)


def _ignore(event: Event) -> None:
    pass

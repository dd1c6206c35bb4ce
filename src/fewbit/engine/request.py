"""Requests: what is run, and how far it has come. Each kind says which rows it needs and what it does with them.

To add a kind: a subclass of `Request` with `ask` and `receive`, here or beside it, and a way to make one in `Engine`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from ..arrays import Floats, Ints, Words
from ..devices.batch import Chunk, Logprobs, Sample, Score
from ..ops.sampling import SamplingParams
from .scores import TokenScores
from .seen import Seen


class Delta(NamedTuple):
    """What is new of a request: the next tokens of its output, and the finish reason when it ended, else None."""

    request: Request
    tokens: Sequence[int]
    finish: str | None


Sink = Callable[[Delta], object]


class Constraint(Protocol):
    """What an output must look like, such as a grammar. One serves one request."""

    def mask(self) -> Words | None:
        """The tokens that may come next: bit i % 32 of word i // 32 is token i. None: all."""
        ...

    def accept(self, token: int) -> None:
        """A token of the output."""
        ...

    def rollback(self, count: int) -> None:
        """The last tokens were not kept."""
        ...


@dataclass(slots=True, eq=False)
class Step:
    """The requests of a step, in the order of their chunks, and who waits for which result of the batch."""

    requests: list[Request] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    sampling: list[Generation] = field(default_factory=list)  # one for each of `samples`
    leaders: list[Generation] = field(default_factory=list)  # whose prompts were run for their siblings too
    scores: list[Score] = field(default_factory=list)
    scoring: list[Request] = field(default_factory=list)  # one for each of `scores`
    embedding: list[tuple[Embedding, int, int]] = field(default_factory=list)  # with its rows: the first, how many
    output: str = "logits"

    @property
    def is_open(self) -> bool:
        """Whether the next step can be scheduled without knowing what this one gives.

        A constraint says only after a token which may come next. Outputs of one prompt part after it; scores and
        hidden rows are counted when they are there.
        """
        needed = self.leaders or self.scoring or self.embedding
        return not needed and all(generation.constraint is None for generation in self.sampling)


class Request(ABC):
    """Tokens that are run. The engine writes to it; whoever made it reads it after a delta.

    `sink` gets a delta for each step if `stream` is set, and one at the end in any case. The last has the tokens that
    were not emitted yet, and the reason "stop", "length", "deadline", "cancelled" or "error". The engine's thread calls
    it.
    """

    kind: ClassVar[str]
    output: ClassVar[str] = "logits"  # of the executor, that it needs

    def __init__(self, tokens: list[int], namespace: str = "", adapter: str | None = None) -> None:
        self.tokens = tokens
        self.prompt_tokens = len(tokens)
        self.namespace = namespace  # pages of the cache are shared within one only
        self.adapter = adapter
        self.siblings: list[Generation] = []  # other outputs of the same prompt, until it was run
        self.scores: TokenScores | None = None  # of its tokens, if they are asked for
        self.sink: Sink = _ignore
        self.stream = False
        self.num_emitted = len(tokens)  # tokens that the sink has, or knew from the start

        self.priority = 0  # higher ones come first
        self.client = ""  # who asks: clients are served alike
        self.deadline: float | None = None  # seconds from its arrival to its end
        self.expires = inf  # when that is, by the engine's clock

        self.arrival = 0  # a number in the order in which requests come
        self.level = 0  # its priority, and what it gained by waiting
        self.wait_time = 0.0  # since when it waits
        self.batch: object = None  # that it was submitted with, if there are others
        self.leader: Request | None = None  # an active request that computes, or has computed, its first tokens
        self.shared = 0  # how many of them
        self.pauses: set[int] = set()  # where its prompt is cut, so that others can share it up to there
        self.is_counted = False  # by the limits of the engine
        self.fetches = 0  # how often the cache looked for its prompt on the disk

        self.sequence = 0  # of the cache; 0: it has none
        self.num_computed = 0  # tokens that are in the cache
        self.num_in_flight = 0  # those after them in a step that was launched, while the next one is scheduled
        self.cached_tokens = 0  # of the prompt, found in the cache at first
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.start_time = self.first_token_time = self.finish_time = 0.0  # by perf_counter; started: admitted

    @property
    def cache_namespace(self) -> str:
        """An adapter changes K and V: what it computed is for those who use it too."""
        return self.namespace if self.adapter is None else f"{self.namespace}\0{self.adapter}"

    @property
    def num_remaining(self) -> int:
        """Tokens to run before the request gets further; 1 for one that is writing its output."""
        return len(self.tokens) - self.num_computed - self.num_in_flight

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None and all(one.finish_reason is not None for one in self.siblings)

    def next_delta(self) -> Delta:
        """What is new since the last delta."""
        tokens = self.tokens[self.num_emitted :]
        self.num_emitted += len(tokens)
        return Delta(self, tokens, self.finish_reason)

    def num_logits(self, count: int) -> int:
        """Rows that are needed when the next `count` tokens are run."""
        return 1 if self.num_computed + self.num_in_flight + count == len(self.tokens) else 0

    def next_tokens(self, count: int) -> Sequence[int]:
        """The next `count` tokens to run."""
        first = self.num_computed + self.num_in_flight
        return self.tokens[first : first + count]

    def reusable(self) -> Sequence[int]:
        """The tokens that need not be run if they are in the cache."""
        return self.tokens[:-1]

    def shareable(self, length: int, leader: Request) -> int:
        """How many of the `length` tokens that both begin with need not be run if `leader` runs them.

        Where tokens are scored, the leader must score them too. One token at least is left to run.
        """
        free = len(self.reusable())
        mine, other = self.scores, leader.scores
        if length <= free or mine is None or other is None or not mine.can_copy(other):
            return min(length, free)
        return max(free, min(length - 1, other.num_positions, self.num_remaining - 1))

    @abstractmethod
    def ask(self, step: Step, row: int, count: int) -> None:
        """Say what is to be done with the `count` rows from `row` on."""


class Generation(Request):
    """One output for one prompt."""

    kind = "generate"

    def __init__(
        self,
        prompt: list[int],
        params: SamplingParams,
        max_length: int,
        *,
        min_length: int = 0,
        eos_ids: frozenset[int] = frozenset(),
        seed: int | None = None,
        num_logprobs: int | None = None,
        scores: TokenScores | None = None,
        logit_bias: tuple[Ints, Floats] | None = None,
        constraint: Constraint | None = None,
        namespace: str = "",
        adapter: str | None = None,
    ) -> None:
        super().__init__(prompt, namespace, adapter)  # the output follows in `tokens`
        self.scores = scores  # of the prompt; outputs of one prompt share them
        self.params = params
        self.max_length, self.min_length = max_length, min_length  # tokens, those of the prompt included
        self.eos_ids = eos_ids
        self._draw = Random(seed).random  # its own, so that no other request changes what is drawn
        self._uniforms = [self._draw()]  # of the next tokens; a step that fails is run again with the same
        self.awaited: int | None = None  # the sample of the step in flight that is its next token
        self.seen = Seen(prompt) if params.has_penalties else None
        self.num_logprobs = num_logprobs  # of how many of the likeliest tokens; None: not even its own
        self.logprobs: list[Logprobs] = []
        self.constraint = constraint
        self.mask = None if constraint is None else constraint.mask()  # of the next token
        self.stop_token: int | None = None  # that ended the output; no part of it
        self._bias = logit_bias
        self._early_bias = _without_eos(logit_bias, eos_ids) if min_length > len(prompt) else logit_bias

    @property
    def output_tokens(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]

    @property
    def num_remaining(self) -> int:
        if self.awaited is None:
            return len(self.tokens) - self.num_computed - self.num_in_flight
        return 1 if len(self.tokens) + 1 < self.max_length else 0  # nothing follows the last one

    def num_logits(self, count: int) -> int:
        if self._is_scoring:
            assert self.scores is not None
            return max(0, self.num_computed + self.num_in_flight + count - self.scores.num_scored)
        return 1 if self.awaited is not None else super().num_logits(count)

    @property
    def _is_scoring(self) -> bool:
        return self.scores is not None and self.scores.num_scored < self.scores.num_positions

    def reusable(self) -> Sequence[int]:
        return self.tokens[: self.scores.num_scored] if self._is_scoring and self.scores else self.tokens[:-1]

    def next_tokens(self, count: int) -> Sequence[int]:
        return super().next_tokens(count) if self.awaited is None else [-1 - self.awaited]

    def members(self) -> list[Generation]:
        """The outputs of this prompt that are still wanted."""
        if not self.siblings:
            return [self]
        return [member for member in (self, *self.siblings) if member.finish_reason is None]

    def ask(self, step: Step, row: int, count: int) -> None:
        if self._is_scoring:
            assert self.scores is not None
            targets = min(count, self.scores.num_positions - self.scores.num_scored)
            step.scores.append(self.scores.ask(self.tokens, row, targets))
            step.scoring.append(self)
            if targets == count:  # the prompt goes on
                return
        if self.siblings:
            step.leaders.append(self)
        for member in self.members():  # outputs of one prompt come from the same logits
            step.samples.append(member._sample(row + count - 1))
            step.sampling.append(member)

    def accept(self, token: int, logprobs: Logprobs | None) -> None:
        """The next token of the output."""
        self.tokens.append(token)
        self.awaited = None
        self._uniforms.pop(0)
        if self.seen is not None:
            self.seen.add(token)
        if logprobs is not None:
            self.logprobs.append(logprobs)
        if self.constraint is not None:
            self.constraint.accept(token)
            self.mask = self.constraint.mask()

    def follow(self, leader: Request, sequence: int) -> None:
        """Go on from where another request with the same prompt is."""
        self.tokens = leader.tokens[:]
        self.sequence, self.num_computed = sequence, leader.num_computed
        self.cached_tokens, self.start_time = leader.cached_tokens, leader.start_time
        self.arrival, self.level = leader.arrival, leader.level

    def _sample(self, row: int) -> Sample:
        place = 0 if self.awaited is None else 1
        if place == len(self._uniforms):
            self._uniforms.append(self._draw())
        return Sample(
            row,
            self.params,
            self._uniforms[place],
            None if self.seen is None else self.seen.arrays(),
            self._early_bias if len(self.tokens) + place < self.min_length else self._bias,
            self.mask,
            self.num_logprobs,
            None if self.seen is None else self.awaited,
        )


class Scoring(Request):
    """A text whose tokens are scored from `first` on; there is no output."""

    kind = "score"
    scores: TokenScores

    def __init__(
        self,
        tokens: list[int],
        namespace: str = "",
        adapter: str | None = None,
        num_logprobs: int | None = None,
        first: int = 1,
    ) -> None:
        super().__init__(tokens, namespace, adapter)
        self.scores = TokenScores(len(tokens), first, num_logprobs)

    @property
    def num_remaining(self) -> int:
        return len(self.tokens) - 1 - self.num_computed - self.num_in_flight  # nothing follows the last one

    def num_logits(self, count: int) -> int:
        return max(0, self.num_computed + self.num_in_flight + count - self.scores.num_scored)

    def reusable(self) -> Sequence[int]:
        return self.tokens[: self.scores.num_scored]

    def ask(self, step: Step, row: int, count: int) -> None:
        step.scores.append(self.scores.ask(self.tokens, row, count))
        step.scoring.append(self)


class Embedding(Request):
    """A text whose last hidden rows are wanted, one for each token, or of the last token alone.

    `hidden` holds those computed so far.
    """

    kind = "embed"
    output = "hidden"

    def __init__(
        self, tokens: list[int], namespace: str = "", adapter: str | None = None, *, last_only: bool = False
    ) -> None:
        super().__init__(tokens, namespace, adapter)
        self.hidden: Floats | None = None  # (rows, hidden)
        self.num_embedded = len(tokens) - 1 if last_only else 0  # tokens whose rows are here, or not wanted
        self._skipped = self.num_embedded

    def num_logits(self, count: int) -> int:
        return max(0, self.num_computed + self.num_in_flight + count - self.num_embedded)

    def reusable(self) -> Sequence[int]:
        return self.tokens[: self.num_embedded]

    def ask(self, step: Step, row: int, count: int) -> None:
        step.embedding.append((self, row, count))

    def receive(self, rows: Floats) -> None:
        """The rows of the next tokens."""
        if self.hidden is None:
            self.hidden = np.empty((len(self.tokens) - self._skipped, rows.shape[1]), np.float32)
        first = self.num_embedded - self._skipped
        self.hidden[first : first + len(rows)] = rows
        self.num_embedded += len(rows)


def _without_eos(bias: tuple[Ints, Floats] | None, eos_ids: frozenset[int]) -> tuple[Ints, Floats]:
    """A bias after which no output ends."""
    values = {} if bias is None else dict(zip(bias[0].tolist(), bias[1].tolist(), strict=True))
    values |= dict.fromkeys(eos_ids, -np.inf)
    return np.array(list(values), np.int32), np.array(list(values.values()), np.float32)


def _ignore(delta: Delta) -> None:
    pass

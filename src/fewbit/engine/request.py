"""Requests: what is run, and how far it has come. Each kind says which rows it wants and takes their results.

To add a kind: a subclass of `Request` with `first_needed`, `ask` and `take`, and a way to make one in factory.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from itertools import zip_longest
from math import inf
from random import Random
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from ..arrays import Floats, Ints, Words
from ..cache.cache import Cache
from ..devices.batch import AdapterMix, Logprobs, Row, RowResult, Sample
from ..ops.sampling import SamplingParams
from .constraint import Constraint, MaskPool
from .embedded import EmbeddedPrompt
from .sampling_extras import AllowedTokens, OutputExtras, SamplingExtras
from .scores import PositionScores
from .token_counts import TokenCounts


class Delta(NamedTuple):
    """What is new of a request: the next tokens of its output, and the finish reason when it ended, else None."""

    request: Request
    tokens: Sequence[int]
    finish: str | None


Sink = Callable[[Delta], object]


StepRows: TypeAlias = "list[tuple[Request, Row]]"  # the rows of a step, each with the request that takes its result


class Request(ABC):
    """Tokens that are run. The engine writes to it; whoever made it reads it after a delta.

    `sink` gets a delta for each step if `stream` is set, and one at the end in any case. The last has the tokens that
    were not emitted yet, and the reason "stop", "length", "deadline", "cancelled" or "error". The engine's thread calls
    it.
    """

    output: ClassVar[str] = "logits"  # of the executor, that it needs

    def __init__(
        self,
        tokens: list[int],
        namespace: str = "",
        adapter: AdapterMix | None = None,
        embedded: EmbeddedPrompt | None = None,
    ) -> None:
        self.tokens = tokens
        self.embedded = embedded  # parts of the prompt that are no tokens
        self.prompt_tokens = len(tokens)
        self.namespace = namespace  # pages of the cache are shared within one only
        self.adapter = adapter
        self.siblings: list[Generation] = []  # other outputs of the same prompt, until it was run
        self.mates: Sequence[Request] = ()  # requests that end with it if it does not come to its end
        self.scores: PositionScores | None = None  # of its tokens, if they are asked for
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
        self.num_in_flight = 0  # those after them in steps that were launched, while the next one is scheduled
        self.awaited: int | None = None  # the sample of the last of them that is its next token
        self.draft: Sequence[int] = ()  # tokens that may come next, run and verified in the next step
        self.is_blocked = False  # whether it cannot go on before that step is fetched
        self.draft_tokens = self.accepted_tokens = 0  # guessed and verified; of them, those that were right
        self.cached_tokens = 0  # of the prompt, found in the cache at first
        self.num_run = len(tokens)  # tokens of the prompt, or that were run before it was preempted
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.start_time = self.first_token_time = self.finish_time = 0.0  # by perf_counter; started: admitted

    @property
    def cache_namespace(self) -> str:
        """An adapter changes K and V: what it computed is for those who use it too."""
        return self.namespace if self.adapter is None else f"{self.namespace}\0{self.adapter.key}"

    @property
    def end(self) -> int:
        """The number of tokens to run before the request gets further."""
        return len(self.tokens)

    @property
    @abstractmethod
    def first_needed(self) -> int:
        """The first position whose logits or hidden states are needed; tokens before it may come from the cache."""

    @property
    def num_remaining(self) -> int:
        """Tokens to run before the request gets further; 1 for one that is writing its output."""
        return self.end - self.num_computed - self.num_in_flight

    @property
    def is_run(self) -> bool:
        """Whether no token is left to run, or in flight, before the request gets further."""
        return self.num_computed >= self.end

    @property
    def is_writing(self) -> bool:
        """Whether all that is left to run is new: tokens of its output that were not run before."""
        return self.num_computed + self.num_in_flight >= self.num_run

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None and all(one.finish_reason is not None for one in self.siblings)

    def next_delta(self) -> Delta:
        """What is new since the last delta."""
        tokens = self.tokens[self.num_emitted :]
        self.num_emitted += len(tokens)
        return Delta(self, tokens, self.finish_reason)

    def num_logits(self, count: int) -> int:
        """How many of the next `count` tokens need logits or hidden states."""
        return max(0, self.num_computed + self.num_in_flight + count - self.first_needed)

    def reusable(self) -> Sequence[int]:
        """The tokens that need not be run if they are in the cache."""
        return self.keys[: self.first_needed]

    @property
    def keys(self) -> list[int]:
        """The tokens as the cache knows them."""
        return self.tokens if self.embedded is None else self.embedded.keyed(0, self.tokens)

    def shareable(self, length: int, leader: Request) -> int:
        """How many of the `length` tokens that both begin with need not be run if `leader` runs them.

        Where tokens are scored, the leader must score them too. One token at least is left to run.
        """
        free = self.first_needed
        mine, other = self.scores, leader.scores
        if length <= free or mine is None or other is None or not mine.can_copy(other):
            return min(length, free)
        return max(free, min(length - 1, other.num_positions, self.num_remaining - 1))

    def add_rows(self, count: int, rows: StepRows) -> None:
        """Add the rows that run the next `count` tokens to a step."""
        first = self.num_computed + self.num_in_flight
        tokens = [*self.tokens, *self.draft][first : first + count] if self.awaited is None else [-1 - self.awaited]
        inputs = None if self.embedded is None else self.embedded.row_inputs(first, len(tokens))
        row = Row(self.sequence, tokens, self.num_logits(count), adapter=self.adapter, inputs=inputs)
        rows.append((self, row))
        if row.num_logits:
            self.ask(row, rows)

    @abstractmethod
    def ask(self, row: Row, rows: StepRows) -> None:
        """Say what is wanted of the last tokens of a row, and add the rows of siblings."""

    @abstractmethod
    def take(self, result: RowResult) -> str | None:
        """Take what a row gave. The reason if that finishes the request."""

    def end_step(self, cache: Cache) -> list[tuple[Request, str]]:
        """All rows of a step were taken. The requests that this finishes, and why."""
        return []

    def advance(self, row: Row, number: int | None) -> None:
        """Go on as if a row in flight, with the step's sample `number` if it has one, were fetched.

        Without a number nobody goes on from a token that is not known.
        """
        self.num_in_flight += len(row.tokens)
        self.awaited = number if len(row.samples) == 1 else None
        self.is_blocked = (
            row.score is not None or row.hidden or bool(row.drafts) or (bool(row.samples) and number is None)
        )
        if not row.drafts:  # there was no room for any
            self.draft = ()

    def settle(self, count: int | None = None) -> None:
        """A row with so many tokens is not in flight any more; None: no row is."""
        self.num_in_flight = 0 if count is None else max(0, self.num_in_flight - count)
        if not self.num_in_flight:
            self.awaited, self.is_blocked, self.draft = None, False, ()

    def follow(self, leader: Request, sequence: int) -> None:
        """Go on from where another request with the same prompt is."""
        self.tokens = leader.tokens[:]
        self.sequence, self.num_computed = sequence, leader.num_computed
        self.cached_tokens, self.start_time = leader.cached_tokens, leader.start_time
        self.arrival, self.level = leader.arrival, leader.level


class Generation(Request):
    """One output for one prompt."""

    def __init__(
        self,
        prompt: list[int],
        params: SamplingParams,
        max_length: int,
        *,
        masks: MaskPool,
        min_length: int = 0,
        eos_ids: frozenset[int] = frozenset(),
        seed: int | None = None,
        num_logprobs: int | None = None,
        scores: PositionScores | None = None,
        logit_bias: tuple[Ints, Floats] | None = None,
        constraint: Constraint | None = None,
        extras: SamplingExtras | None = None,
        allowed: Words | None = None,
        namespace: str = "",
        adapter: AdapterMix | None = None,
        embedded: EmbeddedPrompt | None = None,
    ) -> None:
        super().__init__(prompt, namespace, adapter, embedded)  # the output follows in `tokens`
        self.scores = scores  # of the prompt; outputs of one prompt share them
        self.params = params
        self.max_length, self.min_length = max_length, min_length  # tokens, those of the prompt included
        self.eos_ids = eos_ids
        self._draw = Random(seed).random  # its own, so that no other request changes what is drawn
        self._uniforms = [self._draw()]  # of the next tokens; a step that fails is run again with the same
        self.seen = TokenCounts(prompt) if params.has_penalties else None
        self.num_logprobs = num_logprobs  # of how many of the likeliest tokens; None: not even its own
        self.logprobs: list[Logprobs] = []
        self.extras = OutputExtras(extras, prompt, seed) if extras is not None and extras.needs_tokens else None
        self.takes_drafts = self.extras is None  # whether the tokens after the next one may be guessed
        self.constraint = constraint if constraint is None or allowed is None else AllowedTokens(constraint, allowed)
        self._masks, self._allowed = masks, allowed
        self.mask = self._next_mask()  # of the next token
        self._draft_masks: list[Future[Words | None]] = []  # those submitted last
        self.stop_token: int | None = None  # that ended the output; no part of it
        self.beam_score: float | None = None  # of beam search
        self._bias = logit_bias
        self._early_bias = _without_eos(logit_bias, eos_ids) if min_length > len(prompt) else logit_bias

    @property
    def output_tokens(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]

    @property
    def end(self) -> int:
        if self.awaited is None or len(self.tokens) + 1 == self.max_length:  # nothing follows the last one
            return len(self.tokens) + len(self.draft)
        return len(self.tokens) + 1

    @property
    def first_needed(self) -> int:
        if self.scores is not None and not self.scores.is_complete:
            return self.scores.num_scored
        return self.end - 1 - len(self.draft)

    def ask(self, row: Row, rows: StepRows) -> None:
        if self.scores is not None and not self.scores.is_complete:
            row.score = self.scores.ask(self.tokens, row.num_logits)
            if len(row.score.targets) == row.num_logits:  # the prompt goes on
                return
        if self.finish_reason is None:
            row.samples = self._samples(self.draft[: row.num_logits - 1])
        for sibling in self.siblings:  # outputs of one prompt come from the same logits
            if sibling.finish_reason is None:
                rows.append((sibling, Row(self.sequence, (), samples=sibling._samples())))

    def advance(self, row: Row, number: int | None) -> None:
        """A constraint and other samplers must know a token before the next. Outputs of one prompt part after it."""
        super().advance(row, number)
        self.is_blocked |= row.num_logits > 0 and (
            self.constraint is not None or self.extras is not None or bool(self.siblings)
        )

    def take(self, result: RowResult) -> str | None:
        if result.scores is not None and self.scores is not None:
            self.scores.receive(result.scores, result.tops)
        if self.finish_reason is not None or not result.tokens:  # its siblings go on, and share the scores
            return None
        wait(self._draft_masks)  # those of a step that was not launched may still be computed
        if self.constraint is not None and self.constraint.is_finished:  # it allows an empty output only
            return "stop"
        for place, token in enumerate(result.tokens):
            if (reason := self._add(token, result.logprobs[place : place + 1])) is not None:
                return reason
        return self._add_forced()

    def _add(self, token: int, logprobs: Sequence[Logprobs] = ()) -> str | None:
        """Add a token to the output. The reason if that finishes it."""
        if token in self.eos_ids:
            self.stop_token = token
            return "stop"
        self.tokens.append(token)
        if self._uniforms:  # a forced token takes one too, so that an output does not depend on what was forced
            self._uniforms.pop(0)
        else:
            self._draw()
        if self.seen is not None:
            self.seen.add(token)
        if self.extras is not None:
            self.extras.add(token)
        self.logprobs += logprobs
        if self.constraint is not None:
            self.constraint.accept(token)
            if self.constraint.is_finished:
                return "stop"
        return "length" if len(self.tokens) >= self.max_length else None

    def _add_forced(self) -> str | None:
        """Add the tokens that must come next. With log-probabilities each token is sampled, so that it has its own."""
        if self.constraint is None:
            return None
        if self.num_logprobs is None:
            for token in self.constraint.forced():
                if (reason := self._add(token)) is not None:
                    return reason
        self.mask = self._next_mask()
        return None

    def _next_mask(self) -> Future[Words | None] | Words | None:
        if self.constraint is None or self.constraint.is_finished:
            return self._allowed
        return self._masks.submit(self.constraint)

    def next_uniforms(self, count: int) -> Sequence[float]:
        """The random numbers by which the next tokens are sampled."""
        while len(self._uniforms) < count:
            self._uniforms.append(self._draw())
        return self._uniforms[:count]

    def _bias_at(self, place: int) -> tuple[Ints, Floats] | None:
        """The bias of the next token, or of one so many places after it."""
        bias = self._early_bias if len(self.tokens) + place < self.min_length else self._bias
        return bias if self.extras is None else self.extras.bias(bias)

    def _samples(self, drafts: Sequence[int] = ()) -> list[Sample]:
        """How the next token is sampled, and those after each of the drafts."""
        first = 0 if self.awaited is None else 1
        uniforms = self.next_uniforms(first + len(drafts) + 1)
        masks: Sequence[Future[Words | None] | Words | None] = [self.mask]
        if self.constraint is None:
            masks = [self.mask] * (len(drafts) + 1)
        elif drafts and isinstance(self.mask, Future):
            self._draft_masks = self._masks.submit_drafted(self.constraint, [*self._draft_masks, self.mask], drafts)
            masks = [self.mask, *self._draft_masks]
        return [
            Sample(
                self.params,
                uniforms[place],
                None if self.seen is None else self.seen.arrays(drafts[: place - first]),
                self._bias_at(place),
                mask,
                self.num_logprobs,
                None if self.seen is None else self.awaited,
                None if self.extras is None else self.extras.state,
            )
            for place, mask in zip_longest(range(first, first + len(drafts) + 1), masks)
        ]


def _without_eos(bias: tuple[Ints, Floats] | None, eos_ids: frozenset[int]) -> tuple[Ints, Floats]:
    """A bias after which no output ends."""
    values = {} if bias is None else dict(zip(bias[0].tolist(), bias[1].tolist(), strict=True))
    values |= dict.fromkeys(eos_ids, -np.inf)
    return np.array(list(values), np.int32), np.array(list(values.values()), np.float32)


def _ignore(delta: Delta) -> None:
    pass

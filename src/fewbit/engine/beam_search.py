"""Beam search: outputs of one prompt that go on from the likeliest texts, chosen among all of their continuations.

Beams are requests that share a `BeamGroup`. In each step every beam runs its last token and gets the likeliest next
ones. When all have theirs, the group chooses the best continuations: beams that were not chosen release their
sequences, and fork those of others, so that pages are copied only when they are written to. Scores, the treatment of
tokens that end an output, and the end of the search are those of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..cache.cache import Cache
from ..devices.batch import Row, RowResult, Sample
from ..errors import DtypeError, RequestError
from ..ops.sampling import SamplingParams
from ..validation import to_number
from .request import Generation, Request

GREEDY = SamplingParams(temperature=0)
EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """How beams are searched.

    Args:
        count: The number of beams.
        length_penalty: Scores are sums of log-probabilities, divided by the number of tokens to this power.
        early_stopping: True: end as soon as so many outputs are complete. False: when no beam looks as if it could
            become better. "never": when none can.
    """

    count: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "length_penalty", to_number(self.length_penalty, "length_penalty"))
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise DtypeError(f'early_stopping must be True, False or "never", not {self.early_stopping!r}')


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A complete output."""

    score: float
    tokens: list[int]  # those of the prompt included, without the one that ended it
    stop_token: int | None


@dataclass(frozen=True, slots=True)
class Continuation:
    """A beam and a token after it."""

    logprob: float  # the sum of all tokens of the output
    parent: int
    token: int


@dataclass(slots=True, eq=False)
class BeamGroup:
    """The beams of one prompt."""

    options: BeamOptions
    eos_ids: frozenset[int]
    max_length: int
    min_length: int
    vocab: int
    beams: list[Beam] = field(default_factory=list)
    tops: dict[Beam, tuple[Sequence[int], Sequence[float]]] = field(default_factory=dict)
    scores: list[float] = field(default_factory=lambda: [0.0])  # of the beams; at first they are all the same
    hypotheses: list[Hypothesis] = field(default_factory=list)  # the best first

    @property
    def num_kept(self) -> int:
        """Continuations that are looked at: so many that some beams go on whatever ends."""
        return min(max(2, 1 + len(self.eos_ids)) * self.options.count, self.options.count * self.vocab)

    @property
    def num_tops(self) -> int:
        """The likeliest tokens of each beam that are needed for it."""
        return min(self.num_kept + len(self.eos_ids), self.vocab)

    @property
    def is_ready(self) -> bool:
        return all(beam in self.tops and beam.sequence and not beam.num_remaining for beam in self.beams)

    def advance(self, cache: Cache) -> list[tuple[Request, str]]:
        """Go on with the best continuations, if all beams have theirs. The requests that this finishes, and why."""
        if any(beam.finish_reason is not None for beam in self.beams) or not self.is_ready:
            return []
        length = len(self.beams[0].tokens) + 1
        best = self._continuations(length)
        is_last = length >= self.max_length
        open_ones = [] if is_last else [one for one in best if one.token not in self.eos_ids][: self.options.count]
        self._complete(best[: self.options.count], length)
        self.tops = {}
        if self._has_ended(open_ones, length):
            return self._finish()
        self._go_on(open_ones, cache)
        return []

    def _continuations(self, length: int) -> list[Continuation]:
        """The best continuations of all beams."""
        found = [
            Continuation(score + logprob, number, token)
            for number, (beam, score) in enumerate(zip(self.beams, self.scores, strict=False))
            for token, logprob in zip(*self.tops[beam], strict=True)
            if token not in self.eos_ids or length > self.min_length
        ]
        return sorted(found, key=lambda one: -one.logprob)[: self.num_kept]

    def _complete(self, best: Sequence[Continuation], length: int) -> None:
        """Keep those that are complete, if they are among the best."""
        if self.options.early_stopping is True and len(self.hypotheses) == self.options.count:
            return
        weight = float(length - self.beams[0].prompt_tokens) ** self.options.length_penalty
        for one in best:
            ends, tokens = one.token in self.eos_ids, self.beams[one.parent].tokens
            if ends or length >= self.max_length:
                kept = tokens[:] if ends else [*tokens, one.token]
                self.hypotheses.append(Hypothesis(one.logprob / weight, kept, one.token if ends else None))
        self.hypotheses.sort(key=lambda one: -one.score)
        del self.hypotheses[self.options.count :]

    def _has_ended(self, open_ones: Sequence[Continuation], length: int) -> bool:
        """Whether nothing better can come, as far as the options look."""
        if not open_ones:
            return True
        if len(self.hypotheses) < self.options.count:
            return False
        longest = self.options.early_stopping == "never" and self.options.length_penalty > 0
        tokens = (self.max_length if longest else length) - self.beams[0].prompt_tokens
        best = open_ones[0].logprob / float(tokens) ** self.options.length_penalty
        return self.options.early_stopping is True or best <= self.hypotheses[-1].score

    def _finish(self) -> list[tuple[Request, str]]:
        found: list[tuple[Request, str]] = []
        for number, beam in enumerate(self.beams):
            one = self.hypotheses[min(number, len(self.hypotheses) - 1)]
            beam.tokens, beam.stop_token, beam.beam_score = one.tokens[:], one.stop_token, one.score
            found.append((beam, "length" if one.stop_token is None else "stop"))
        return found

    def _go_on(self, chosen: Sequence[Continuation], cache: Cache) -> None:
        """Give the beams the continuations, each with a sequence of its own."""
        sequences = [beam.sequence for beam in self.beams]
        tokens = [beam.tokens for beam in self.beams]
        parents = [one.parent for one in chosen]
        forks = [
            cache.fork(sequences[parent]) if parent in parents[:number] else sequences[parent]
            for number, parent in enumerate(parents)
        ]
        for parent, sequence in enumerate(sequences):
            if parent not in parents:
                cache.free(sequence)
        computed = self.beams[0].num_computed
        for beam, one, sequence in zip(self.beams, chosen, forks, strict=True):
            beam.tokens = [*tokens[one.parent], one.token]
            beam.sequence, beam.num_computed = sequence, computed
        self.scores = [one.logprob for one in chosen]


class Beam(Generation):
    """One of the texts that a search goes on from."""

    def __init__(self, prompt: list[int], group: BeamGroup, **options: Any) -> None:
        super().__init__(prompt, GREEDY, group.max_length, **options)
        self.group = group
        self.mates = group.beams  # they end together
        self.takes_drafts = False
        group.beams.append(self)

    def advance(self, row: Row, number: int) -> None:
        """Which token comes next is known when all beams of the group were fetched."""
        super().advance(row, number)
        self.is_blocked |= row.num_logits > 0

    def take(self, result: RowResult) -> str | None:
        if self.finish_reason is None and result.logprobs:
            top = result.logprobs[0]
            self.group.tops[self] = top.tokens.tolist(), top.logprobs.tolist()
        return None

    def end_step(self, cache: Cache) -> list[tuple[Request, str]]:
        return self.group.advance(cache)

    def _samples(self, drafts: Sequence[int] = ()) -> list[Sample]:
        return [Sample(GREEDY, 0.0, num_logprobs=self.group.num_tops)]


def refuse_beside_beams(given: dict[str, Any]) -> None:
    """Refuse options that change which tokens are likely, or tell of them."""
    if found := next((name for name, value in given.items() if value), None):
        raise RequestError(f"beams cannot be used together with {found}")

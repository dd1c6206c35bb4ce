"""Speculation in an engine: which requests get drafts in the next step, and what is learned from it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from time import perf_counter
from weakref import WeakKeyDictionary

from ..request import Generation, Request
from .drafter import Drafter, Prospect
from .lengths import AcceptanceRate, StepCosts, choose_lengths

PRIOR_TRIALS = 4.0  # what other requests count for beside a request's own guesses


class Speculation:
    """Gives requests their drafts.

    Args:
        drafter: What guesses tokens.
        is_adaptive: Whether the length of drafts follows from costs and acceptance. If not, all are as long as can be.
    """

    def __init__(self, drafter: Drafter, is_adaptive: bool = True) -> None:
        self.drafter, self.is_adaptive = drafter, is_adaptive
        self.costs = StepCosts()
        self.error: Exception | None = None  # that ended all guessing
        self.propose_seconds = 0.0  # that the drafts of the next step took, which is no part of its cost
        self._known_sizes = set[int]()  # of steps: the first of a size may be compiled, or recorded
        self._rates: dict[str, AcceptanceRate] = {}  # of all requests, by the kind of guess
        self._own: WeakKeyDictionary[Request, dict[str, AcceptanceRate]] = WeakKeyDictionary()
        self._kinds: WeakKeyDictionary[Request, str] = WeakKeyDictionary()

    def propose(self, active: Sequence[Request]) -> None:
        """Give active requests drafts for the next step."""
        begin = perf_counter()
        try:
            self._propose(active)
        except Exception as error:  # requests go on without it
            self.error = error
            warnings.warn(f"nothing is guessed any more: {error}", RuntimeWarning, stacklevel=2)
        self.propose_seconds = perf_counter() - begin

    def wants(self, active: Sequence[Request]) -> bool:
        """Whether the next step should wait for this one, since there will be drafts."""
        return any(self._plan(active)[1])

    def _propose(self, active: Sequence[Request]) -> None:
        requests, lengths = self._plan(active)
        if any(lengths):
            chosen = [(request, length) for request, length in zip(requests, lengths, strict=True) if length]
            drafts = self.drafter.propose([one for one, _ in chosen], [length for _, length in chosen])
            for (request, length), draft in zip(chosen, drafts, strict=True):
                request.draft = _until_eos(draft[:length], request.eos_ids)

    def record(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """So many tokens of a draft were right."""
        kind = self._kinds.get(request, "")
        for rates in (self._rates, self._own.setdefault(request, {})):
            rates.setdefault(kind, AcceptanceRate()).record(num_accepted, num_drafted)

    def record_cost(self, num_tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long. The first of a size says nothing: a device may prepare for it."""
        if num_tokens in self._known_sizes:
            self.costs.record(num_tokens, seconds)
        self._known_sizes.add(num_tokens)

    def _plan(self, active: Sequence[Request]) -> tuple[list[Generation], list[int]]:
        """The requests that write, and the length of their drafts. A step with parts of prompts has none."""
        if self.error is not None or any(not one.is_writing for one in active):
            return [], []
        requests = [one for one in active if isinstance(one, Generation) and _may_draft(one)]
        prospects = [self._prospect(one) for one in requests]
        lengths = [one.length for one in prospects]
        if self.is_adaptive and any(lengths):
            rates = [self._rate(*pair) for pair in zip(requests, prospects, strict=True)]
            lengths = choose_lengths(lengths, rates, len(active), self.costs, self.drafter.seconds)
        for request, prospect in zip(requests, prospects, strict=True):
            self._kinds[request] = prospect.kind
        return requests, lengths

    def _prospect(self, request: Generation) -> Prospect:
        room = request.max_length - len(request.tokens) - 1
        if room <= 0:
            return Prospect(0, "")
        length, kind = self.drafter.prospect(request)
        return Prospect(min(length, room), kind)

    def _rate(self, request: Generation, prospect: Prospect) -> float:
        usual = self._rates.get(prospect.kind, AcceptanceRate())
        own = self._own.get(request, {}).get(prospect.kind)
        return usual.value if own is None else own.joined(usual, PRIOR_TRIALS)


def _may_draft(request: Generation) -> bool:
    return (
        request.finish_reason is None
        and request.takes_drafts
        and not request.siblings
        and request.is_writing
        and (request.scores is None or request.scores.is_complete)
    )


def _until_eos(draft: Sequence[int], eos_ids: frozenset[int]) -> Sequence[int]:
    """Nothing follows a token that ends the output, so it is not guessed."""
    end = next((place for place, token in enumerate(draft) if token in eos_ids), len(draft))
    return draft[:end]

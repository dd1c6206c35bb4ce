"""The choice of the next tokens, from the logits of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..ops.sampling import Rule
from .contract import Chunk
from .request import Floats, Ints, Logprobs, Request, Scoring

Choice = tuple[Request, int, Logprobs | None]


class Sampler(Protocol):
    """A module that chooses tokens: `fewbit.ops.cpu`, or `fewbit.ops.sampling`, the slow reference."""

    def sample(
        self,
        logits: Floats,
        rules: Sequence[Rule],
        uniforms: Sequence[float],
        seen: Sequence[tuple[Ints, Ints] | None] | None = None,
        *,
        threads: int | None = None,
    ) -> tuple[Ints, Floats]: ...

    def log_probabilities(self, logits: Floats, tokens: Sequence[int], *, threads: int | None = None) -> Floats: ...

    def top_tokens(self, logits: Floats, count: int) -> tuple[Ints, Floats]: ...


def native() -> Sampler:
    """The native CPU code; it is loaded now."""
    from ..ops import cpu

    return cpu


class Chooser:
    """Asks a sampler for what each request wants to know."""

    def __init__(self, sampler: Sampler, threads: int | None) -> None:
        self._sampler = sampler
        self._threads = threads

    def choose(self, requests: list[Request], chunks: list[Chunk], logits: Floats) -> list[Choice]:
        """The next token of each request whose tokens have all been run. Texts to score come last, and are scored."""
        answering: list[Request] = []
        rows: list[int] = []  # of the logits, one for each of `answering`
        row = 0
        for request, chunk in zip(requests, chunks, strict=True):
            wanted = chunk.wanted
            if not wanted:
                continue
            if isinstance(request, Scoring):
                self._score(request, len(chunk.tokens), logits[row : row + wanted])
            else:
                members = request.members()  # answers to one prompt have the same logits
                answering += members
                rows += [row] * len(members)
            row += wanted
        if not rows:
            return []
        return self._sample(answering, logits[: len(rows)] if rows[-1] == len(rows) - 1 else logits[rows])

    def _sample(self, requests: list[Request], logits: Floats) -> list[Choice]:
        rules = [request.rule for request in requests]
        uniforms = [request.uniform() for request in requests]
        seen = [None if request.seen is None else request.seen.arrays() for request in requests]
        tokens, logprobs = self._sampler.sample(
            logits, rules, uniforms, seen if any(seen) else None, threads=self._threads
        )
        return [
            (request, token, None if request.top is None else self._logprobs(own, row, request.top))
            for request, token, own, row in zip(requests, tokens.tolist(), logprobs.tolist(), logits, strict=True)
        ]

    def _logprobs(self, own: float, logits: Floats, top: int) -> Logprobs:
        return Logprobs(own, *self._sampler.top_tokens(logits, top))

    def _score(self, request: Scoring, count: int, logits: Floats) -> None:
        targets = request.targets(count)
        request.take(self._sampler.log_probabilities(logits, targets, threads=self._threads))

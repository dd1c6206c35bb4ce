"""A drafter that knows what a toy will write, and guesses wrong at times."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fewbit.engine.request import Generation
from fewbit.engine.speculation.drafter import Prospect
from fewbit.ops import sampling

from ..toy import logits_of


class Guessing:
    """Guesses right with some probability, else any token.

    Args:
        vocab: Tokens of the toy.
        chance: That a guess is right, as far as masks and biases do not matter.
        max_tokens: Of a draft.
        seed: Of the choice of what is wrong.
    """

    def __init__(self, vocab: int, chance: float = 0.7, max_tokens: int = 4, seed: int = 0) -> None:
        self.vocab, self.chance, self.max_tokens = vocab, chance, max_tokens
        self._random = Random(seed)
        self.finished: list[Generation] = []

    def prospect(self, request: Generation) -> Prospect:
        return Prospect(self._random.randint(0, self.max_tokens), "guess")

    def seconds(self, length: int) -> float:
        return 0.0

    def propose(self, requests: Sequence[Generation], lengths: Sequence[int]) -> list[Sequence[int]]:
        return [self._guess(request, length) for request, length in zip(requests, lengths, strict=True)]

    def finish(self, request: Generation) -> None:
        self.finished.append(request)

    def _guess(self, request: Generation, length: int) -> list[int]:
        draft: list[int] = []
        uniforms = request.next_uniforms(length)
        for uniform in uniforms:
            if self._random.random() < self.chance:
                logits = logits_of([*request.tokens, *draft], self.vocab)[-1:]
                seen = None if request.seen is None else [request.seen.arrays(draft)]
                draft.append(int(sampling.sample(logits, [request.params], [uniform], seen)[0][0]))
            else:
                draft.append(self._random.randrange(self.vocab))
        return draft

"""What a step learns from, and its loss: texts that are learned, and answers that are preferred to others (DPO)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.functional import logsigmoid

from .model import TokenizedExample

BETA = 0.1  # how much a preference may move the model away from where it began


class Sample(Protocol):
    """One or two examples, and a loss from the log-probabilities of their learned tokens."""

    @property
    def examples(self) -> Sequence[TokenizedExample]: ...

    @property
    def weight(self) -> float:
        """What the loss is divided by, summed over a batch."""

    def loss(self, logprobs: Sequence[Any]) -> Any: ...


@dataclass(frozen=True)
class TextSample:
    """A text whose tokens are learned, each as much as any other; or, `by_text`, each text as much as any other."""

    example: TokenizedExample
    by_text: bool = False

    @property
    def examples(self) -> Sequence[TokenizedExample]:
        return (self.example,)

    @property
    def weight(self) -> float:
        return 1.0 if self.by_text else float(len(self.example.targets))

    def loss(self, logprobs: Sequence[Any]) -> Any:
        (scores,) = logprobs
        return -scores.mean() if self.by_text else -scores.sum()


@dataclass(frozen=True)
class PairSample:
    """An answer that is preferred to another one: DPO.

    Args:
        chosen: The better answer.
        rejected: The other one.
        reference: Log-probabilities of both by the model without the adapter.
        beta: Strength of the tie to that model.
    """

    chosen: TokenizedExample
    rejected: TokenizedExample
    reference: tuple[float, float]
    beta: float = BETA
    weight: float = 1.0

    @property
    def examples(self) -> Sequence[TokenizedExample]:
        return self.chosen, self.rejected

    def loss(self, logprobs: Sequence[Any]) -> Any:
        better, worse = (scores.sum() - known for scores, known in zip(logprobs, self.reference, strict=True))
        return -logsigmoid(self.beta * (better - worse))


@dataclass(frozen=True)
class VoteSample:
    """An answer that was good or bad, and no other to compare it with: the loss of a pair whose other half stays."""

    example: TokenizedExample
    is_good: bool
    reference: float
    beta: float = BETA
    weight: float = 1.0

    @property
    def examples(self) -> Sequence[TokenizedExample]:
        return (self.example,)

    def loss(self, logprobs: Sequence[Any]) -> Any:
        (scores,) = logprobs
        change = scores.sum() - self.reference
        return -logsigmoid(self.beta * (change if self.is_good else -change))


def token_count(sample: Sample) -> int:
    return sum(len(example.tokens) for example in sample.examples)


def packed(samples: Sequence[Sample], most: int) -> list[list[Sample]]:
    """Samples in steps of at most so many tokens, in order; a longer one is a step for itself."""
    steps: list[list[Sample]] = []
    size = most + 1
    for sample in samples:
        size += token_count(sample)
        if size > most:
            steps.append([])
            size = token_count(sample)
        steps[-1].append(sample)
    return steps


def as_float(value: Any) -> float:
    return float(torch.as_tensor(value).detach())

"""Samples of what readers said: pairs of answers to one conversation, corrections, and votes that stand alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import torch

from ..files.feedback import RatedAnswer
from .data import ExampleReader
from .model import TokenizedExample, TrainableModel
from .samples import PairSample, Sample, TextSample, VoteSample, as_float

MAX_PAIRS = 4  # of one conversation


def preference_samples(
    rated: Sequence[RatedAnswer], reader: ExampleReader, model: TrainableModel, seed: int = 0
) -> list[list[Sample]]:
    """The samples of each conversation.

    Every good answer is preferred to every bad one of its conversation, at most `MAX_PAIRS` of these pairs. A
    correction is learned, and preferred to what it corrects. Votes without a partner stand alone.
    """
    groups: dict[str, list[RatedAnswer]] = {}
    for one in rated:
        groups.setdefault(one.conversation, []).append(one)
    return [_of_conversation(group, reader, model, seed) for group in groups.values()]


def _of_conversation(
    group: Sequence[RatedAnswer], reader: ExampleReader, model: TrainableModel, seed: int
) -> list[Sample]:
    def example(text: str) -> TokenizedExample:
        return reader.answer(group[0].messages, text)

    good, bad = ([example(one.answer) for one in group if one.vote == vote] for vote in ("good", "bad"))
    pairs = list(product(good, bad))
    random.Random(seed).shuffle(pairs)
    corrected = [(example(one.correction), example(one.answer)) for one in group if one.correction]
    samples: list[Sample] = [_pair(model, *pair) for pair in [*pairs[:MAX_PAIRS], *corrected]]
    samples += [TextSample(better, by_text=True) for better, _ in corrected]
    if not pairs:
        samples += [VoteSample(one, True, reference(model, one)) for one in good]
        samples += [VoteSample(one, False, reference(model, one)) for one in bad]
    return samples


def _pair(model: TrainableModel, chosen: TokenizedExample, rejected: TokenizedExample) -> PairSample:
    return PairSample(chosen, rejected, (reference(model, chosen), reference(model, rejected)))


def reference(model: TrainableModel, example: TokenizedExample) -> float:
    """The log-probability of an answer by the model without an adapter."""
    with torch.no_grad():
        (scores,) = model.logprobs([example])
    return as_float(scores.sum())

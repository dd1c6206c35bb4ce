"""Logits, params and other inputs for tests of sampling."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fewbit.arrays import Floats, Ints
from fewbit.ops.sampling import SamplingParams, distribution
from fewbit.ops.sampling_arrays import Bias, Mask, Seen

EVERYTHING = SamplingParams(1, top_k=0, top_p=1, min_p=0)
GREEDY = SamplingParams(0)


def logit_rows(kind: str, rows: int, vocab: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, vocab), np.float32)
    if kind == "peaked":
        x = 3 * x
        x[:, rng.integers(0, vocab, min(vocab, 5))] += 9
    elif kind == "ties":
        x = np.round(x)
    elif kind == "equal":
        x[:] = x[:, :1]
    elif kind == "close":  # one far below, all others nearly the same
        x *= 1e-3
        x[:, 0] = -1e4
    elif kind == "great":
        x *= 1e30
    elif kind == "zeros":  # of both signs
        x = np.copysign(np.float32(0), x)
    elif kind == "masked":
        x[rng.random(x.shape) < 0.7] = -np.inf
        x[:, rng.integers(0, vocab)] = 1
    return x


KINDS = ["flat", "peaked", "ties", "equal", "close", "great", "zeros", "masked"]


def agrees(token: int, row: Floats, params: SamplingParams, uniform: float, slack: float = 1e-6) -> bool:
    """Whether a token is right for penalized logits, if sums of probabilities may be off by so much.

    Where the sum is that close to top_p, or a token to min_p, one more or one less may be kept.
    """
    if params.temperature == 0:
        return token == distribution(row, params)[0][0]
    ids, weights = distribution(row, replace(params, top_p=1, min_p=0))
    sums = np.cumsum(weights)

    def kept(by: float) -> float:
        count = len(ids) if params.top_p == 1 else int(np.searchsorted(sums, params.top_p + by)) + 1
        likely = int((weights >= params.min_p * weights[0] * (1 - 10 * by)).sum())
        return float(sums[max(1, min(count, likely, len(ids))) - 1])

    place = int(np.flatnonzero(ids == token)[0])
    before = sums[place - 1] if place else 0.0
    return bool(before <= uniform * kept(slack) + slack and sums[place] >= uniform * kept(-slack) - slack)


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    def some(values: list[float], least: float, most: float) -> float:
        return draw(st.sampled_from(values) | st.floats(least, most))

    return SamplingParams(
        temperature=some([0, 1, 1, 0.8, 1e-3, 1e-40, 100.0, 1e6], 0.1, 3),
        top_k=draw(st.sampled_from([0, 0, 1, 40]) | st.integers(0, 6000)),
        top_p=some([1, 1, 0.95, 0, 0.999999], 0, 1),
        min_p=some([0, 0, 0.05, 1, 1e-30], 0, 1),
        repetition_penalty=some([1, 1, 1.1], 0.5, 3),
        presence_penalty=some([0, 0, 0.5], -2, 2),
        frequency_penalty=some([0, 0, 0.5], -2, 2),
    )


def some_seen(rng: np.random.Generator, vocab: int, most: int = 300) -> Seen:
    ids = rng.permutation(vocab)[: rng.integers(0, min(vocab, most) + 1)].astype(np.int32)
    return ids, rng.integers(0, 4, len(ids)).astype(np.int32)


def sample_one(sampler: ModuleType, row: Any, params: SamplingParams, uniform: float = 0.0, seen: Any = None) -> int:
    tokens, _ = sampler.sample(np.asarray([row], np.float32), [params], [uniform], None if seen is None else [seen])
    return int(tokens[0])


def ints(*values: int) -> Ints:
    return np.array(values, np.int32)


def sampled(sampler: ModuleType, row: Any, params: SamplingParams, seen: Any = None) -> list[int]:
    """All tokens that some uniform number gives, in the order of these."""
    tokens = [sample_one(sampler, row, params, u, seen) for u in np.linspace(0, 0.9999, 200)]
    return list(dict.fromkeys(tokens))


def some_bias(rng: np.random.Generator, vocab: int, most: int = 300) -> Bias:
    ids = rng.permutation(vocab)[: rng.integers(0, min(vocab, most) + 1)].astype(np.int32)
    values = rng.normal(0, 3, len(ids)).astype(np.float32)
    values[rng.random(len(ids)) < 0.2] = -np.inf
    return ids, values


def mask_of(allowed: Any, vocab: int) -> Mask:
    """The mask of some token ids; bits past the last token are set: nobody may read them."""
    bits = np.ones(-(-vocab // 32) * 32, bool)
    bits[:vocab] = False
    bits[np.asarray(allowed, np.int64)] = True
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)

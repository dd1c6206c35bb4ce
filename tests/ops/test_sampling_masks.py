"""Bias and masks: what they change, and what they leave alone."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fewbit.errors import DataError, DtypeError, FewbitError, LogitsError, ShapeError
from fewbit.ops import cpu, sampling
from fewbit.ops.sampling import SamplingParams, biased, masked, penalized

from .sampling_cases import (
    EVERYTHING,
    GREEDY,
    KINDS,
    agrees,
    ints,
    logit_rows,
    mask_of,
    sampling_params,
    some_bias,
    some_seen,
)

VOCABS = st.integers(1, 3000) | st.sampled_from([1, 31, 32, 33, 1024, 49152])
EVERY = [SamplingParams(), GREEDY, EVERYTHING, SamplingParams(0.5, top_k=0, top_p=0.9), SamplingParams(min_p=1)]


def some_mask(rng: np.random.Generator, row: Any) -> Any:
    """One token that can be sampled, and half of the others, all of them, or none."""
    vocab = len(row)
    part = rng.choice([0, 0.5, 1])
    allowed = np.flatnonzero(rng.random(vocab) < part)
    return mask_of(np.append(allowed, rng.choice(np.flatnonzero(np.isfinite(row)))), vocab)


@pytest.mark.parametrize("isa", cpu.isas())
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_native_agrees_with_the_reference(isa: str, data: st.DataObject) -> None:
    vocab, kind = data.draw(VOCABS, "vocab"), data.draw(st.sampled_from(KINDS), "kind")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), "seed"))
    params = data.draw(st.lists(sampling_params(), min_size=1, max_size=4), "params")
    x, uniforms = logit_rows(kind, len(params), vocab, int(rng.integers(1000))), rng.random(len(params))
    bias = [some_bias(rng, vocab) if rng.random() < 0.5 else None for _ in params]
    rows = [biased(*one) for one in zip(x, bias, strict=True)]
    assume(all(np.isfinite(row).any() for row in rows))
    masks = [some_mask(rng, row) if rng.random() < 0.6 else None for row in rows]
    seen = [some_seen(rng, vocab) if rng.random() < 0.5 else None for _ in params]
    with cpu.forced_isa(isa):
        tokens, logprobs = cpu.sample(x, params, uniforms, seen, bias=bias, masks=masks, threads=2)
    for r, token in enumerate(tokens.tolist()):
        row = penalized(masked(rows[r], masks[r]), params[r], seen[r])
        assert np.isfinite(row[token])
        assert agrees(token, row, params[r], float(uniforms[r])), (token, params[r])
    np.testing.assert_allclose(logprobs, sampling.log_probabilities(x, tokens), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("vocab", [40, 3000])
@pytest.mark.parametrize("params", EVERY, ids=str)
def test_a_mask_of_one_token_gives_it(sampler: ModuleType, params: SamplingParams, vocab: int) -> None:
    x = logit_rows("peaked", 4, vocab, 1)
    allowed = [0, 31, 32, vocab - 1]
    tokens, logprobs = sampler.sample(
        x, [params] * 4, [0.1, 0.4, 0.7, 0.99], masks=[mask_of([t], vocab) for t in allowed]
    )
    assert tokens.tolist() == allowed
    np.testing.assert_allclose(logprobs, sampling.log_probabilities(x, allowed), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("params", EVERY, ids=str)
def test_a_mask_of_half_of_them_is_as_if_the_others_were_not_there(sampler: ModuleType, params: SamplingParams) -> None:
    x, rng = logit_rows("flat", 30, 500, 4), np.random.default_rng(0)
    uniforms = rng.random(30)
    allowed = [np.sort(rng.permutation(500)[:250]) for _ in x]
    tokens, _ = sampler.sample(x, [params] * 30, uniforms, masks=[mask_of(a, 500) for a in allowed])
    fewer = np.stack([row[a] for row, a in zip(x, allowed, strict=True)])
    places, _ = sampler.sample(fewer, [params] * 30, uniforms)
    assert tokens.tolist() == [int(a[i]) for a, i in zip(allowed, places, strict=True)]


def test_a_mask_of_all_changes_nothing(sampler: ModuleType) -> None:
    x = logit_rows("flat", 5, 333, 2)
    uniforms = np.random.default_rng(1).random(5)
    plain = sampler.sample(x, EVERY, uniforms)
    full = sampler.sample(x, EVERY, uniforms, masks=[mask_of(range(333), 333), None, *[mask_of(range(333), 333)] * 3])
    for one, other in zip(plain, full, strict=True):
        np.testing.assert_array_equal(one, other)


def test_bias_moves_the_greedy_token(sampler: ModuleType) -> None:
    x = np.log([[1, 2, 4]]).astype(np.float32)

    def greedy(*pairs: tuple[int, float]) -> int:
        ids, values = zip(*pairs, strict=True)
        bias = ints(*ids), np.array(values, np.float32)
        tokens, logprobs = sampler.sample(x, [GREEDY], [0.5], bias=[bias])
        np.testing.assert_allclose(np.exp(logprobs), np.exp(x[0, tokens]) / 7, rtol=1e-5)
        return int(tokens[0])

    assert greedy((0, 1.3)) == 2
    assert greedy((0, 1.4)) == 0
    assert greedy((2, -0.7)) == 1
    assert greedy((2, -np.inf)) == 1
    assert greedy((2, -np.inf), (1, -100)) == 0
    assert greedy((0, 3e38), (1, 3.4e38)) == 1


def test_bias_does_not_bring_back_what_cannot_be_sampled(sampler: ModuleType) -> None:
    x = np.array([[-np.inf, 0]], np.float32)
    assert sampler.sample(x, [GREEDY], [0], bias=[([0], [1e30])])[0].tolist() == [1]


def test_bias_comes_before_the_penalties(sampler: ModuleType) -> None:
    """A logit of -1 is 1 after its bias: the penalty of 2 makes it 0.5, not -2 and then 0."""
    x = np.array([[-1, 0.25]], np.float32)
    params = replace(GREEDY, repetition_penalty=2)
    assert sampler.sample(x, [params], [0], [(ints(0), ints(1))], bias=[([0], [2.0])])[0].tolist() == [0]


def test_rows_with_and_without(sampler: ModuleType) -> None:
    x = np.tile(np.log([1, 2, 4, 8]).astype(np.float32), (5, 1))
    tokens, logprobs = sampler.sample(
        x, [GREEDY] * 5, [0] * 5, bias=[None, ([0], [9]), None, ([3, 1], [-9, 5]), None],
        masks=[None, None, mask_of([0, 2], 4), mask_of([0, 2], 4), mask_of([1], 4)],
    )  # fmt: skip
    assert tokens.tolist() == [3, 0, 2, 2, 1]
    np.testing.assert_allclose(np.exp(logprobs), np.array([8, 1, 4, 4, 2]) / 15, rtol=1e-5)


def test_rows_that_allow_nothing_are_named(sampler: ModuleType) -> None:
    x = np.zeros((5, 70), np.float32)
    x[2, :64] = -np.inf
    masks = [None, mask_of([], 70), mask_of(range(64), 70), mask_of([69], 70), None]
    bias = [None] * 4 + [(np.arange(70), np.full(70, -np.inf))]
    with pytest.raises(LogitsError, match="bias and mask of row 1 leave no token") as caught:
        sampler.sample(x, [SamplingParams()] * 5, [0.5] * 5, masks=masks, bias=bias)
    assert caught.value.rows == [1, 2, 4]


X = np.zeros((2, 40), np.float32)
MASK = mask_of([3], 40)


@pytest.mark.parametrize(("error", "match", "options"), [
    (ShapeError, "bias must be given for each of 2 rows, 1", {"bias": [None]}),
    (ShapeError, "token ids and values", {"bias": [None, ([1],)]}),
    (ShapeError, "a value for each of 1 tokens", {"bias": [None, ([1], [1, 2])]}),
    (DtypeError, "tokens of the bias must be integers", {"bias": [None, ([0.5], [1])]}),
    (DtypeError, "values of the bias", {"bias": [None, ([1], ["a"])]}),
    (DataError, "bias of row 1: 40 is not from 0 to 39", {"bias": [None, ([40], [1])]}),
    (DataError, "bias of row 0: -1 is not from 0 to 39", {"bias": [([-1], [1]), None]}),
    (DataError, "bias of row 0: a token is given twice", {"bias": [([7, 7], [1, 1]), None]}),
    (DataError, "bias of row 0: a value is NaN or \\+infinity", {"bias": [([7], [np.nan]), None]}),
    (DataError, "bias of row 0: a value is NaN or \\+infinity", {"bias": [([7], [np.inf]), None]}),
    (ShapeError, "masks must be given for each of 2 rows, 3", {"masks": [None, None, MASK]}),
    (ShapeError, "mask of row 1 must hold 2 words of 32 tokens", {"masks": [None, MASK[:1]]}),
    (ShapeError, "mask of row 0 must hold 2 words", {"masks": [MASK[None], None]}),
    (DtypeError, "mask of row 0 must be uint32, not int64", {"masks": [MASK.astype(np.int64), None]}),
])  # fmt: skip
def test_what_is_refused(sampler: ModuleType, error: type[FewbitError], match: str, options: dict[str, Any]) -> None:
    with pytest.raises(error, match=match):
        sampler.sample(X, [SamplingParams()] * 2, [0.5] * 2, **options)

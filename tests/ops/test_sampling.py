"""Sampling: the reference by itself, and the native code beside it with each instruction set."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.ops import cpu, sampling
from fewbit.ops.sampling import SamplingParams, distribution, penalized

from .sampling_cases import (
    EVERYTHING,
    GREEDY,
    KINDS,
    agrees,
    ints,
    logit_rows,
    sample_one,
    sampled,
    sampling_params,
    some_seen,
)


@pytest.mark.parametrize("isa", cpu.isas())
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_native_agrees_with_the_reference(isa: str, data: st.DataObject) -> None:
    vocab = data.draw(st.integers(1, 5000) | st.sampled_from([1, 63, 64, 65, 1023, 1024, 1025, 49152]), "vocab")
    kind, seed = data.draw(st.sampled_from(KINDS), "kind"), data.draw(st.integers(0, 2**32), "seed")
    some = data.draw(st.lists(sampling_params(), min_size=1, max_size=4), "params")
    rng = np.random.default_rng(seed)
    x = logit_rows(kind, len(some), vocab, seed)
    uniforms = data.draw(
        st.lists(st.floats(0, 1, exclude_max=True), min_size=len(some), max_size=len(some)), "uniforms"
    )
    seen = [some_seen(rng, vocab) if rng.random() < 0.5 else None for _ in some]
    with cpu.forced_isa(isa):
        tokens, logprobs = cpu.sample(x, some, uniforms, seen, threads=data.draw(st.sampled_from([1, 2, 5]), "threads"))
    assert tokens.dtype == np.int32
    assert logprobs.dtype == np.float32
    for row, params, uniform, past, token in zip(x, some, uniforms, seen, tokens.tolist(), strict=True):
        changed = row if past is None else penalized(row, params, past)
        assert np.isfinite(row[token])
        assert agrees(token, changed, params, uniform), (token, params)
    np.testing.assert_allclose(logprobs, sampling.log_probabilities(x, tokens), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("vocab", [333, 49152])
@pytest.mark.parametrize("kind", ["flat", "peaked"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        GREEDY,
        EVERYTHING,
        SamplingParams(0.7, top_k=0, top_p=0.9, min_p=0),
        SamplingParams(1.5, top_k=0, top_p=1, min_p=0.1),
        SamplingParams(1, top_k=20000, top_p=0.99, min_p=0),
        SamplingParams(repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1),
    ],
    ids=str,
)
def test_native_is_nearly_always_the_same(params: SamplingParams, kind: str, vocab: int) -> None:
    rng = np.random.default_rng(3)
    count = 40
    x, uniforms = logit_rows(kind, count, vocab, 5), rng.random(count)
    seen = [some_seen(rng, vocab) for _ in range(count)]
    ours, ours_logprobs = cpu.sample(x, [params] * count, uniforms, seen)
    wanted, logprobs = sampling.sample(x, [params] * count, uniforms, seen)
    assert (ours != wanted).sum() <= 1
    np.testing.assert_allclose(ours_logprobs[ours == wanted], logprobs[ours == wanted], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_instruction_sets_and_threads_change_nothing(kind: str) -> None:
    x = logit_rows(kind, 8, 3001, 7)
    uniforms = np.random.default_rng(0).random(8)
    some = [
        SamplingParams(),
        EVERYTHING,
        GREEDY,
        SamplingParams(2, top_k=0),
        SamplingParams(1, top_k=900),
        SamplingParams(0.3, 0, 0.5, 0),
        SamplingParams(min_p=1),
        SamplingParams(),
    ]
    results = []
    for isa in cpu.isas():
        with cpu.forced_isa(isa):
            results += [cpu.sample(x, some, uniforms, threads=threads) for threads in (1, 2, 3)]
    for tokens, logprobs in results:
        np.testing.assert_array_equal(tokens, results[0][0])
        np.testing.assert_array_equal(logprobs, results[0][1])


@pytest.mark.parametrize(
    "params",
    [
        EVERYTHING,
        SamplingParams(),
        SamplingParams(0.7, top_k=0, top_p=0.8, min_p=0),
        SamplingParams(2, top_k=50, top_p=1, min_p=0),
        SamplingParams(1, top_k=0, top_p=1, min_p=0.1),
    ],
    ids=str,
)
def test_draws_follow_the_probabilities(sampler: ModuleType, params: SamplingParams) -> None:
    draws = 20_000
    rng = np.random.default_rng(11)
    row = 2 * rng.standard_normal(120, np.float32)
    x = np.tile(row, (draws, 1))
    ids, probabilities = distribution(row, params)
    tokens, _ = sampler.sample(x, [params] * draws, rng.random(draws))
    counts = np.bincount(tokens, minlength=120)
    assert counts[np.setdiff1d(np.arange(120), ids)].sum() == 0
    expected = draws * probabilities
    rare = expected < 10  # they are counted together
    pairs = [*zip(counts[ids][~rare], expected[~rare], strict=True)]
    if rare.any():
        pairs.append((counts[ids][rare].sum(), expected[rare].sum()))
    chi_square = sum((got - wanted) ** 2 / wanted for got, wanted in pairs)
    freedom = len(pairs) - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom) + 4


def test_temperature_0_takes_the_first_of_the_largest(sampler: ModuleType) -> None:
    assert sample_one(sampler, [1, 3, 3, 2], GREEDY, 0.99) == 1
    assert sample_one(sampler, [-0.0, 0.0], GREEDY) == 0
    assert sample_one(sampler, [-np.inf, -5], GREEDY) == 1
    wide = np.zeros(5000)
    wide[[4321, 4999]] = 1
    assert sample_one(sampler, wide, GREEDY) == 4321


def test_walks_from_likely_to_unlikely(sampler: ModuleType) -> None:
    row = np.log([1, 4, 2, 2, 1])
    assert sampled(sampler, row, EVERYTHING) == [1, 2, 3, 0, 4]
    assert [sample_one(sampler, row, EVERYTHING, u) for u in (0.39, 0.41, 0.59, 0.61, 0.79, 0.81)] == [1, 2, 2, 3, 3, 0]


def test_top_k_keeps_the_lower_id_of_ties(sampler: ModuleType) -> None:
    row = [1, 2, 2, 2, 0]
    for k, wanted in enumerate([[1], [1, 2], [1, 2, 3], [1, 2, 3, 0]], 1):
        assert sampled(sampler, row, replace(EVERYTHING, top_k=k)) == wanted
    assert sampled(sampler, row, replace(EVERYTHING, top_k=1000)) == [1, 2, 3, 0, 4]


def test_top_p_keeps_as_few_as_reach_it(sampler: ModuleType) -> None:
    row = np.log([8, 4, 2, 1, 1])
    for p, kept in [(0, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.9, 4), (0.95, 5), (1, 5)]:
        assert sampled(sampler, row, replace(EVERYTHING, top_p=p)) == list(range(kept)), p


def test_top_p_is_of_what_top_k_left(sampler: ModuleType) -> None:
    row = np.log([4, 3, 3])
    assert sampled(sampler, row, replace(EVERYTHING, top_k=2, top_p=0.56)) == [0]  # 4 of 7; all would be 4 of 10
    assert sampled(sampler, row, replace(EVERYTHING, top_p=0.56)) == [0, 1]


def test_min_p_is_of_the_likeliest(sampler: ModuleType) -> None:
    row = np.log([10, 5.1, 4.9, 1.1, 0.9])
    for p, kept in [(0.05, 5), (0.1, 4), (0.45, 3), (0.5, 2), (0.6, 1), (1, 1)]:
        assert sampled(sampler, row, replace(EVERYTHING, min_p=p)) == list(range(kept)), p
    assert sampled(sampler, row, replace(EVERYTHING, temperature=10, min_p=0.8)) == [0, 1, 2, 3]
    assert sampled(sampler, [1, 2, 2], replace(EVERYTHING, min_p=1)) == [1, 2]
    assert sample_one(sampler, np.zeros(2000), replace(EVERYTHING, min_p=1), 0.9999) == 1999


def test_temperature_flattens(sampler: ModuleType) -> None:
    row = np.log([9, 1])
    assert sample_one(sampler, row, EVERYTHING, 0.89) == 0
    assert sample_one(sampler, row, replace(EVERYTHING, temperature=2), 0.76) == 1  # 3 to 1
    assert sample_one(sampler, row, replace(EVERYTHING, temperature=1e-6), 0.9999) == 0


@pytest.mark.parametrize(("row", "penalty", "count", "token"), [
    ([2, 1.5], {"repetition_penalty": 2}, 0, 1),  # 2 / 2
    ([-1, -1.5], {"repetition_penalty": 2}, 0, 1),  # -1 * 2
    ([2, 1.5], {"presence_penalty": 1}, 0, 0),  # in the prompt only
    ([2, 1.5], {"presence_penalty": 1}, 5, 1),
    ([2, 1.5], {"frequency_penalty": 0.2}, 2, 0),
    ([2, 1.5], {"frequency_penalty": 0.2}, 3, 1),
    ([-np.inf, -9], {"presence_penalty": -1e6}, 1, 1),
])  # fmt: skip
def test_penalties(sampler: ModuleType, row: list[float], penalty: Any, count: int, token: int) -> None:
    params = SamplingParams(0, **penalty)
    assert sample_one(sampler, row, params, 0, (ints(0), ints(count))) == token
    assert sample_one(sampler, row, params, 0, (ints(), ints())) == int(np.argmax(row))


def test_penalties_do_not_change_the_log_probability(sampler: ModuleType) -> None:
    x = np.log([[1, 3]]).astype(np.float32)
    params = SamplingParams(0, presence_penalty=5)
    tokens, logprobs = sampler.sample(x, [params], [0.5], [(ints(1), ints(1))])
    assert tokens.tolist() == [0]
    np.testing.assert_allclose(logprobs, np.log([0.25]), atol=1e-6)


def test_rows_have_params_of_their_own(sampler: ModuleType) -> None:
    x = np.tile(np.log([1, 2, 4]).astype(np.float32), (4, 1))
    past = ints(2), ints(1)
    some = [GREEDY, EVERYTHING, SamplingParams(0, presence_penalty=2), SamplingParams(0, presence_penalty=2)]
    tokens, logprobs = sampler.sample(x, some, [0.9] * 4, [None, None, past, None])
    assert tokens.tolist() == [2, 0, 1, 2]
    np.testing.assert_allclose(np.exp(logprobs), [4 / 7, 1 / 7, 2 / 7, 4 / 7], rtol=1e-5)


def test_masked_tokens_are_never_sampled(sampler: ModuleType) -> None:
    row = np.full(3000, -np.inf)
    row[[17, 2999]] = [0, 1]
    for params in (
        GREEDY,
        SamplingParams(),
        EVERYTHING,
        replace(EVERYTHING, top_k=2999),
        SamplingParams(1e6, top_k=0, top_p=0.99),
    ):
        assert set(sampled(sampler, row, params)) <= {17, 2999}
    assert sampled(sampler, row, EVERYTHING) == [2999, 17]


def test_other_arrays_are_taken(sampler: ModuleType) -> None:
    x = np.log([[1, 2, 4], [4, 2, 1]])
    for logits in (x, x.astype(np.float16), x[::-1].astype(np.float32)[::-1], x.tolist()):
        tokens, logprobs = sampler.sample(logits, [GREEDY] * 2, np.zeros(2, np.float32))
        assert tokens.tolist() == [2, 0]
        np.testing.assert_allclose(np.exp(logprobs), 4 / 7, rtol=1e-3)
    assert sampler.sample(x[:1], [GREEDY], [0], [([2], [1])])[0].tolist() == [2]
    tokens, logprobs = sampler.sample(np.zeros((0, 5), np.float32), [], [])
    assert len(tokens) == len(logprobs) == 0


def test_log_probabilities(sampler: ModuleType) -> None:
    for kind in KINDS:
        x = logit_rows(kind, 6, 2500, 1).astype(np.float64)
        tokens = x.argsort(axis=1)[np.arange(6), [-1, -2, -10, -100, 1000, 0]]
        shifted = x - x.max(axis=1, keepdims=True)
        wanted = (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))[np.arange(6), tokens]
        ours = sampler.log_probabilities(x, tokens, threads=2)
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("vocab", [1, 64, 1500, 49152])
@pytest.mark.parametrize("kind", KINDS)
def test_top_tokens(sampler: ModuleType, kind: str, vocab: int) -> None:
    row = logit_rows(kind, 1, vocab, 2)[0]
    likeliest = np.argsort(-row, kind="stable")
    shifted = row.astype(np.float64) - row.max()
    wanted = (shifted - np.log(np.exp(shifted).sum()))[likeliest]
    for count in {0, 1, min(5, vocab), min(vocab, 700), vocab}:
        ids, logprobs = sampler.top_tokens(row, count)
        assert ids.dtype == np.int32
        assert logprobs.dtype == np.float32
        np.testing.assert_array_equal(ids, likeliest[:count])
        np.testing.assert_allclose(logprobs, wanted[:count], rtol=1e-6, atol=1e-6)

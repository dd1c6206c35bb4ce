"""Chains of samplers beside plain definitions over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.errors import ArgumentError, DataError, DtypeError, LogitsError
from fewbit.ops import cpu, sampling
from fewbit.ops.sampler_chain import DEFAULT_SAMPLERS, ChainState, ChainStep, SamplerChain, sample_chain, sampler_names
from fewbit.ops.samplers import CandidateLogits, ranked_ids
from fewbit.ops.sampling import SamplingParams, distribution

from .sampling_cases import logit_rows

ALL = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0)
LOGITS = np.log(np.array([30, 20, 15, 10, 8, 6, 5, 3, 2, 1], np.float32))
DRAWS = 4000


def softmax(x: Any) -> Any:
    e = np.exp(np.asarray(x, np.float64) - np.max(x))
    return e / e.sum()


def only(x: Any, keep: Any) -> Any:
    """The distribution of the tokens that are kept."""
    return softmax(np.where(keep, x, -np.inf))


def typical(x: Any, share: float) -> Any:
    p = softmax(x)
    entropy = -(p * np.log(p)).sum()
    keep, total = np.zeros(len(p), bool), 0.0
    for token in sorted(range(len(p)), key=lambda i: abs(-np.log(p[i]) - entropy)):
        keep[token] = True
        total += p[token]
        if total >= share:
            break
    return only(x, keep)


def n_sigma(x: Any, n: float) -> Any:
    return only(x, x >= x.max() - n * x.std())


def xtc(x: Any, chance: float, threshold: float) -> Any:
    p = softmax(x)
    above = np.flatnonzero(p >= threshold)
    keep = np.ones(len(p), bool)
    if len(above) > 1:
        keep[above] = False
        keep[min(above, key=lambda i: p[i])] = True
    return (1 - chance) * p + chance * only(x, keep)


def dynamic(x: Any, middle: float, radius: float, exponent: float) -> Any:
    p = softmax(x)
    share = -(p * np.log(p)).sum() / np.log(len(p))
    low, high = max(0, middle - radius), middle + radius
    return softmax(x / (low + (high - low) * share**exponent))


def mirostat(x: Any, mu: float) -> Any:
    keep = -np.log2(softmax(x)) <= mu
    keep[np.argmax(x)] = True
    return only(x, keep)


CASES: list[tuple[dict[str, Any], Callable[[Any], Any]]] = [
    ({"typical_p": 0.5}, lambda x: typical(x, 0.5)),
    ({"typical_p": 0.9}, lambda x: typical(x, 0.9)),
    ({"top_n_sigma": 1.0}, lambda x: n_sigma(x, 1.0)),
    ({"xtc_probability": 0.5, "xtc_threshold": 0.1}, lambda x: xtc(x, 0.5, 0.1)),
    ({"xtc_probability": 1.0, "xtc_threshold": 0.6}, softmax),
    ({"dynatemp_range": 0.5}, lambda x: dynamic(x, 1, 0.5, 1)),
    ({"dynatemp_range": 2, "dynatemp_exponent": 2}, lambda x: dynamic(x, 1, 2, 2)),
    ({"mirostat": 2, "mirostat_tau": 1.5}, lambda x: mirostat(x, 3.0)),
    ({"samplers": ["temperature", lambda row: row * 2]}, lambda x: softmax(2 * x)),
]


def drawn(logits: Any, chain: SamplerChain, params: SamplingParams = ALL, seed: int = 1) -> Any:
    """How often each token is sampled, each time as the first of an output."""
    rng, counts = np.random.default_rng(seed), np.zeros(len(logits), int)
    for _ in range(DRAWS):
        step = ChainStep(params, ChainState(chain, rng.random()))
        counts[sample_chain(logits, step, rng.random(), top_tokens=cpu.top_tokens)] += 1
    return counts


def chi_square(counts: Any, expected: Any) -> tuple[float, int]:
    assert not counts[expected < 1e-12].any(), (counts, expected)
    kept = expected >= 1e-12
    means = expected[kept] * counts.sum()
    return float(((counts[kept] - means) ** 2 / means).sum()), int(kept.sum()) - 1


@pytest.mark.parametrize(("given", "expected"), CASES)
def test_each_sampler_draws_from_its_plain_definition(given: dict[str, Any], expected: Callable[[Any], Any]) -> None:
    logits = LOGITS[np.random.default_rng(0).permutation(len(LOGITS))]
    found, freedom = chi_square(drawn(logits, SamplerChain(**given)), expected(logits.astype(np.float64)))
    assert found < freedom + 5 * np.sqrt(2 * freedom) + 5


def exact(logits: Any, chain: SamplerChain, params: SamplingParams = ALL, **given: Any) -> dict[int, float]:
    """The distribution itself: which token is sampled in which part of [0, 1)."""
    grid = (np.arange(2000) + 0.5) / 2000
    step = ChainStep(params, ChainState(chain, 0.0), **given)
    tokens = [sample_chain(logits, step, u) for u in grid]
    return {int(t): tokens.count(t) / len(grid) for t in set(tokens)}


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_the_default_order_is_that_of_plain_sampling(data: st.DataObject) -> None:
    """With samplers that have no effect a chain samples the same token as without one."""
    vocab, seed = data.draw(st.integers(1, 3000)), data.draw(st.integers(0, 2**32))
    row = logit_rows(data.draw(st.sampled_from(["flat", "peaked"])), 1, vocab, seed)
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0, 0.3, 1, 2.5])),
        top_k=data.draw(st.sampled_from([0, 1, 5, 40])),
        top_p=data.draw(st.sampled_from([0.1, 0.9, 1])),
        min_p=data.draw(st.sampled_from([0, 0.05, 0.5])),
        repetition_penalty=data.draw(st.sampled_from([1, 1.3])),
    )
    rng = np.random.default_rng(seed)
    seen = rng.permutation(vocab)[: vocab // 3].astype(np.int32), np.ones(vocab // 3, np.int32)
    step = ChainStep(params, ChainState(SamplerChain()), seen)
    for uniform in rng.random(3):
        token = sample_chain(row[0], step, uniform, top_tokens=cpu.top_tokens)
        plain = sampling.sample(row, [params], [uniform], [seen])[0][0]
        ids, p = distribution(sampling.penalized(row[0], params, seen), params)
        sums = np.append(0, np.cumsum(p))
        place = int(np.flatnonzero(ids == token)[0])
        assert token == plain or min(abs(sums[place] - uniform), abs(sums[place + 1] - uniform)) < 1e-5


def test_the_order_matters_and_can_be_set() -> None:
    early = exact(LOGITS, SamplerChain(samplers=["temperature", "top_p"]), SamplingParams(3, 0, 0.5, 0))
    late = exact(LOGITS, SamplerChain(samplers=["top_p", "temperature"]), SamplingParams(3, 0, 0.5, 0))
    assert len(early) > len(late) == 2
    unlisted = exact(LOGITS, SamplerChain(samplers=["temperature"]), SamplingParams(1, 1, 0.1, 0.9))
    assert len(unlisted) == len(LOGITS)


def test_dry_and_penalties_change_logits() -> None:
    state = ChainState(SamplerChain(dry_multiplier=1))
    state.dry = np.array([0, 3], np.int32), np.array([50, 1], np.float32)
    step = ChainStep(ALL, state)
    tokens = {sample_chain(LOGITS, step, u) for u in np.linspace(0, 0.999, 500)}
    assert tokens == set(range(1, 10))


def test_mirostat_keeps_the_surprise_near_its_aim() -> None:
    rng, tau = np.random.default_rng(0), 3.0
    logits = (rng.standard_normal(2000) * 3).astype(np.float32)
    state = ChainState(SamplerChain(mirostat=2, mirostat_tau=tau))
    p, surprises = softmax(logits), []
    for _ in range(2000):
        token = sample_chain(logits, ChainStep(SamplingParams(1), state), rng.random())
        surprises.append(-np.log2(p[token]))
        state.accept(rng.random())
    assert abs(np.mean(surprises[200:]) - tau) < 1.5
    before = state.mu
    sample_chain(logits, ChainStep(ALL, state), 0.5)  # a step that is run again changes nothing
    assert state.mu == before


def test_bias_and_mask_come_before_all() -> None:
    step = ChainStep(ALL, ChainState(SamplerChain(typical_p=0.99)))
    bias = np.array([4], np.int32), np.array([40], np.float32)
    assert sample_chain(LOGITS, step, 0.5, bias=bias) == 4
    assert sample_chain(LOGITS, step, 0.5, mask=np.array([1 << 7], np.uint32)) == 7
    with pytest.raises(LogitsError, match="leave no token"):
        sample_chain(LOGITS, step, 0.5, mask=np.array([0], np.uint32))
    with pytest.raises(LogitsError, match="NaN"):
        sample_chain(np.array([1, np.nan], np.float32), step, 0.5)


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda row: row[:3], "must return 10 logits"),
        (lambda row: row * np.nan, "NaN"),
        (lambda row: "x", "failed"),
        (lambda row: row - np.inf, "left no token"),
    ],
)
def test_what_functions_return_is_checked(function: Any, what: str) -> None:
    with pytest.raises(DataError, match=what):
        sample_chain(LOGITS, ChainStep(ALL, ChainState(SamplerChain(samplers=[function]))), 0.5)


def test_a_function_cannot_change_the_row_behind_its_back() -> None:
    before = LOGITS.copy()

    def spoil(row: Any) -> Any:
        row[:] = 0
        return np.log(softmax(before))

    sample_chain(LOGITS, ChainStep(ALL, ChainState(SamplerChain(samplers=[spoil]))), 0.5)
    assert (before == LOGITS).all()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"typical_p": 1.5}, ArgumentError),
        ({"xtc_threshold": "x"}, DtypeError),
        ({"mirostat": 3}, ArgumentError),
        ({"dry_base": 0.5}, ArgumentError),
        ({"dry_allowed_length": 1.5}, DtypeError),
        ({"samplers": ["top_q"]}, ArgumentError),
        ({"samplers": "top_k"}, DtypeError),
        ({"samplers": [3]}, DtypeError),
        ({"samplers": ["top_k", "top_k"]}, ArgumentError),
        ({"dynatemp_range": True}, DtypeError),
    ],
)
def test_wrong_parameters_are_refused(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        SamplerChain(**given)


def test_names_of_others() -> None:
    theirs = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
    assert set(sampler_names(theirs)) == set(DEFAULT_SAMPLERS)
    assert sampler_names(["top-k", "nucleus", "typ", "minp", "Temp"]) == (
        "top_k", "top_p", "typical_p", "min_p", "temperature",
    )  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False) | st.just(-np.inf), min_size=1))
def test_ranking_is_a_stable_sort(values: list[float]) -> None:
    row = np.array(values, np.float32)
    np.testing.assert_array_equal(ranked_ids(row), np.argsort(-row, kind="stable"))
    left = CandidateLogits(row.copy())
    ids, logits = left.ranked(3)
    np.testing.assert_array_equal(logits, row[ids])
    assert len(ids) == min(3, int(np.isfinite(row).sum()))

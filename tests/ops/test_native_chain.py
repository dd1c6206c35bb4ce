"""The native chain of samplers draws the same tokens as the one in NumPy, and what is wrong is the same error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit import _native
from fewbit.errors import DataError, FewbitError, LogitsError
from fewbit.ops import cpu
from fewbit.ops.sampler_chain import DEFAULT_SAMPLERS, ChainState, ChainStep, SamplerChain, sample_chain
from fewbit.ops.sampling import SamplingParams

from .sampling_cases import logit_rows

KINDS = ["flat", "peaked", "ties", "close", "masked"]


@st.composite
def chains(draw: st.DrawFn) -> SamplerChain:
    order = draw(st.permutations(DEFAULT_SAMPLERS)) if draw(st.booleans()) else DEFAULT_SAMPLERS
    return SamplerChain(
        samplers=order[: draw(st.integers(0, 9))] if draw(st.booleans()) else order,
        typical_p=draw(st.sampled_from([1, 0, 0.3, 0.9])),
        top_n_sigma=draw(st.sampled_from([0, 0.4, 2])),
        xtc_probability=draw(st.sampled_from([0, 1])),
        xtc_threshold=draw(st.sampled_from([0, 0.003, 0.11, 0.6])),
        dry_multiplier=1,
        mirostat=draw(st.sampled_from([0, 0, 0, 2])),
        mirostat_tau=draw(st.sampled_from([0, 1.3, 4])),
        dynatemp_range=draw(st.sampled_from([0, 0.5, 2])),
        dynatemp_exponent=draw(st.sampled_from([1, 0.6])),
    )


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        temperature=draw(st.sampled_from([0, 1e-31, 0.3, 1, 1.7, 1e5])),
        top_k=draw(st.sampled_from([0, 0, 1, 5, 40, 3000])),
        top_p=draw(st.sampled_from([0, 0.513, 0.917, 1])),
        min_p=draw(st.sampled_from([0, 0.051, 0.503, 1])),
        repetition_penalty=draw(st.sampled_from([1, 1.3])),
        presence_penalty=draw(st.sampled_from([0, 0.7])),
    )


def some_tokens(rng: np.random.Generator, vocab: int) -> Any:
    return rng.permutation(vocab)[: rng.integers(0, min(vocab, 9))].astype(np.int32)


@settings(deadline=None, max_examples=250)
@given(chains(), params(), st.sampled_from(KINDS), st.integers(1, 6000), st.integers(0, 2**32))
def test_it_is_the_plain_chain(chain: SamplerChain, params: SamplingParams, kind: str, vocab: int, seed: int) -> None:
    row, rng = logit_rows(kind, 1, vocab, seed)[0], np.random.default_rng(seed)
    dry, seen, bias = (some_tokens(rng, vocab) for _ in range(3))
    mask = rng.integers(0, 2**32, -(-vocab // 32), np.uint32) if seed % 3 == 0 else None
    changes: dict[str, Any] = {"bias": (bias, rng.normal(size=len(bias)).astype(np.float32)), "mask": mask}
    state = ChainState(chain, 0.0, (dry, rng.random(len(dry)).astype(np.float32)))
    step = ChainStep(params, state, (seen, np.ones(len(seen), np.int32)))

    def drawn(sample: Any, uniform: float) -> Any:
        try:
            return sample(row, step, uniform, **changes)
        except FewbitError as error:
            return type(error), str(error)

    for uniform in rng.random(3):
        expected = drawn(sample_chain, uniform)
        mu, state.next_mu = state.next_mu, state.mu
        token = drawn(cpu.sample_chain, uniform)
        if token == expected:
            assert state.next_mu == pytest.approx(mu, abs=1e-3)
        else:  # between two tokens
            nearby = [min(max(uniform + change, 0), 1 - 1e-9) for change in (-1e-5, 1e-5)]
            assert token in [drawn(sample_chain, one) for one in nearby]


def test_a_wide_vocabulary_is_ranked_as_far_as_it_takes() -> None:
    """A flat row, of which most tokens are needed; equal logits are taken by their ids."""
    row = np.round(np.random.default_rng(0).standard_normal(40_000) * 4).astype(np.float32)
    for options in ({"typical_p": 0.9}, {"samplers": ["top_p"]}, {"samplers": []}, {"mirostat": 2, "mirostat_tau": 8}):
        step = ChainStep(SamplingParams(1, 0, 0.93, 0), ChainState(SamplerChain(**options)))
        for uniform in (0, 0.2, 0.7, 0.9991):
            assert cpu.sample_chain(row, step, uniform) == sample_chain(row, step, uniform)


def test_every_instruction_set_draws_the_same(isa: str) -> None:
    row, found = logit_rows("peaked", 1, 5000, 3)[0], []
    for name in ("scalar", isa):
        cpu.use_isa(name)
        for options in ({"top_n_sigma": 0.7}, {"typical_p": 0.6}, {"dynatemp_range": 0.5}, {"mirostat": 2}):
            step = ChainStep(SamplingParams(0.8, 0, 0.95, 0.01), ChainState(SamplerChain(**options)))
            found.append([cpu.sample_chain(row, step, uniform) for uniform in np.linspace(0, 0.999, 40)])
    assert found[:4] == found[4:]


def test_functions_take_the_slow_way() -> None:
    step = ChainStep(SamplingParams(0), ChainState(SamplerChain(samplers=[lambda row: -row, "temperature"])))
    assert cpu.sample_chain(np.array([3, 1, 2], np.float32), step, 0.5) == 1


@pytest.mark.parametrize(
    ("row", "given", "why"),
    [
        ([1, np.nan], {}, "NaN"),
        ([1, np.inf], {}, "NaN or"),
        ([-np.inf, -np.inf], {}, "leave no token"),
        ([1, 2], {"mask": np.zeros(1, np.uint32)}, "leave no token"),
    ],
)
def test_rows_without_a_token(row: list[float], given: dict[str, Any], why: str) -> None:
    step = ChainStep(SamplingParams(1), ChainState(SamplerChain()))
    for sample in (sample_chain, cpu.sample_chain):
        with pytest.raises(LogitsError, match=why):
            sample(np.array(row, np.float32), step, 0.5, **given)


def test_sizes_and_parameters_are_checked_natively() -> None:
    row, none = np.zeros(4, np.float32), [None] * 11
    packed = SamplingParams(1).packed + np.array([1, 0, 0, 0.1, 0, 10, 0, 1.0]).tobytes()
    assert _native.sample_chain(row, b"\3", packed, 0.5, *none)[0] in range(4)
    for order, numbers, uniform, why in (
        (b"\x09", packed, 0.5, "sampler"),
        (b"", packed[:-8], 0.5, "bytes of the params"),
        (b"", packed, 1.0, "uniform"),
        (b"", packed[:56] + np.array([2, 0, 0, 0.1, 0, 10, 0, 1.0]).tobytes(), 0.5, "typical_p"),
        (b"", packed[:56] + np.array([1, 0, 0, 0.1, 0, np.nan, 0, 1.0]).tobytes(), 0.5, "mu"),
    ):
        with pytest.raises(ValueError, match=why):
            _native.sample_chain(row, order, numbers, uniform, *none)
    step = ChainStep(SamplingParams(1), ChainState(SamplerChain(dry_multiplier=1), 1.0, (np.array([4]), np.ones(1))))
    with pytest.raises(DataError, match="dry"):
        cpu.sample_chain(row, step, 0.5)

"""Sampling on a GPU against the reference: fresh data, ragged sizes, results poisoned before."""

from __future__ import annotations

import numpy as np
import pytest

from fewbit.errors import ArgumentError, DataError
from fewbit.ops import cuda
from fewbit.ops.cuda.kernels_sampling import MAX_VOCAB
from fewbit.ops.cuda.sampling import UNUSED, GpuSampler, pack_samples
from fewbit.ops.cuda.values import Launcher, Rows
from fewbit.ops.sampling import SamplingParams

from ..ops.sampling_cases import EVERYTHING, GREEDY, KINDS, ints, logit_rows
from .sampling_cases import at, expect_right, sample, some_sample

pytestmark = pytest.mark.cuda
rng = np.random.default_rng(0)


SMALL = [(kind, vocab) for kind in KINDS for vocab in (1, 5, 127, 129, 2048, 2049, 30_000)]
LARGE = [("flat", 128_256), ("peaked", 128_256), ("ties", 128_256), ("equal", 128_256), ("flat", 262_208)]


@pytest.mark.parametrize(("kind", "vocab"), SMALL + LARGE)
def test_tokens_are_those_of_the_reference(device: cuda.Session, kind: str, vocab: int) -> None:
    logits = logit_rows(kind, 3, vocab, int(rng.integers(2**32)))
    samples = [some_sample(rng, 3, vocab) for _ in range(6)]
    results, raw = sample(device, logits, samples, 8, padding=int(rng.integers(5)))
    assert raw[:, 6:8].tolist() == [[0, 0], [0, 0], [UNUSED, UNUSED]]
    assert expect_right(logits, samples, results) >= 5


@pytest.mark.parametrize("params", [
    GREEDY,
    SamplingParams(),
    SamplingParams(1, top_k=0, top_p=0.95, min_p=0),
    SamplingParams(1, top_k=0, top_p=1, min_p=0.01),
    SamplingParams(1, top_k=5000, top_p=0.99, min_p=0),
    EVERYTHING,
], ids=str)  # fmt: skip
@pytest.mark.parametrize("scale", [1, 4])
def test_one_row_and_many_numbers(device: cuda.Session, params: SamplingParams, scale: int) -> None:
    logits = scale * logit_rows("flat", 1, 128256, int(rng.integers(2**32)))
    samples = [at(0, params, float(uniform)) for uniform in rng.random(8)]
    results, _ = sample(device, logits, samples)
    assert expect_right(logits, samples, results) >= 7


@pytest.mark.parametrize("listed", [True, False])
def test_the_last_token_is_counted(device: cuda.Session, listed: bool) -> None:
    logits = logit_rows("flat", 1, 30_000, int(rng.integers(2**32)))
    best = int(np.argmax(logits))
    params = SamplingParams(0, repetition_penalty=1.5, presence_penalty=0.25, frequency_penalty=0.5)
    told = at(0, params, 0, (ints(best), ints(1)))
    ahead = at(0, params, 0, (ints(best), ints(0)) if listed else None, last=1)
    results, _ = sample(device, logits, [told, ahead], previous=[17, best])
    assert results[0] == results[1]
    expect_right(logits, [told], results[:1])


def test_rows_that_nothing_can_be_sampled_from(device: cuda.Session) -> None:
    logits = logit_rows("flat", 4, 50_000, int(rng.integers(2**32)))
    logits[1, 49_999], logits[2, 7], logits[3] = np.nan, np.inf, -np.inf
    samples = [at(row, params, 0.5) for params in (GREEDY, EVERYTHING, SamplingParams()) for row in range(4)]
    samples += [at(0, EVERYTHING, 0.5, mask=np.zeros(-(-50_000 // 32), np.uint32)), at(0, GREEDY, 2)]
    results, _ = sample(device, logits, samples)
    expect_right(logits, samples, results)
    assert sum(isinstance(result, DataError) for result in results) == 11


def test_the_same_every_time_whatever_else_is_there(device: cuda.Session) -> None:
    logits = logit_rows("peaked", 3, 100_000, int(rng.integers(2**32)))
    samples = [some_sample(rng, 3, 100_000) for _ in range(12)]
    first, _ = sample(device, logits, samples)
    for _ in range(5):
        assert [*map(str, sample(device, logits, samples, 16)[0])] == [*map(str, first)]
    alone = [sample(device, logits, [one])[0][0] for one in samples]
    assert [*map(str, alone)] == [*map(str, first)]


def test_tokens_may_be_those_of_the_step_before(device: cuda.Session) -> None:
    """A sampler's own tokens are read as `previous` by its next launch."""
    logits = logit_rows("flat", 1, 9000, int(rng.integers(2**32)))
    params = SamplingParams(0, presence_penalty=100)
    sampler, given, run = GpuSampler(device, 1, 9000), device.array(logits), Launcher(device, device.stream)
    rows, found = Rows(given.pointer, 9000, 9000), []
    for last in (None, 0):
        words = device.array(pack_samples([at(0, params, 0, last=last)], 9000, 1).data.view(np.int32))
        sampler.launch(run, rows, words.pointer, 1)
        found.append(int(sampler.download()[0, 0]))
    assert found == np.argsort(-logits[0], kind="stable")[:2].tolist()


def test_what_does_not_fit_is_one_sentence(device: cuda.Session) -> None:
    with pytest.raises(ArgumentError, match=f"from 1 to {MAX_VOCAB} tokens"):
        GpuSampler(device, 1, MAX_VOCAB + 1)
    sampler, run = GpuSampler(device, 1, 100), Launcher(device, device.stream)
    with pytest.raises(ArgumentError, match="rows of 99 and 1 samples were given"):
        sampler.launch(run, Rows(0, 99, 99), 0, 1)
    with pytest.raises(ArgumentError, match="rows of 100 and 2 samples were given"):
        sampler.launch(run, Rows(0, 100, 100), 0, 2)

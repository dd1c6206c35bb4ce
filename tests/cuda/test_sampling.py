"""Sampling on a GPU, without one: how samples are packed, and the kernels themselves run on this machine."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.errors import ArgumentError, DataError, DtypeError, ShapeError
from fewbit.ops.cuda.sampling import PARAMS, UNUSED, pack_samples
from fewbit.ops.sampling import SamplingParams

from ..ops.sampling_cases import EVERYTHING, GREEDY, KINDS, ints, logit_rows, mask_of
from .emulator.device import EmulatedGpu, EmulatedSession
from .sampling_cases import at, expect_right, sample, some_sample

PENALIZED = SamplingParams(0, repetition_penalty=1.5, presence_penalty=0.25, frequency_penalty=0.5)


@pytest.fixture(scope="module")
def device() -> EmulatedSession:
    if sys.platform != "linux" or not shutil.which("g++"):
        pytest.skip("kernels run here with g++ on Linux")
    return EmulatedGpu().session()


def test_a_slot_is_as_large_as_in_the_kernels() -> None:
    assert PARAMS.itemsize == 96
    assert PARAMS.fields is not None
    assert [PARAMS.fields[name][1] for name in ("temperature", "row", "mask_at", "needs_total")] == [40, 56, 80, 92]


def test_parts_of_different_lengths_follow_the_slots() -> None:
    seen, bias = (ints(3, 1), ints(0, 7)), (ints(2), np.array([0.5], np.float32))
    samples = [
        at(4, PENALIZED, 0.25, seen, bias, mask_of([1, 33], 40)),
        at(5, SamplingParams(0.5, top_k=40, top_p=0.75, min_p=0.125), 0.5, seen, last=1),
    ]
    words, errors, count = pack_samples(samples, 40, 3)
    assert count == 3
    slots = words[: 3 * 24].view(PARAMS)
    assert errors == {}
    assert slots["row"].tolist() == [4, 5, -1]
    first, second, _ = slots
    assert (first["uniform"], first["repetition_penalty"], first["temperature"]) == (0.25, 1.5, 0)
    assert words[first["seen_at"] :][:4].tolist() == [3, 1, 0, 7]
    assert words[first["bias_at"] :][0] == 2
    assert words[first["bias_at"] + 1 :][:1].view(np.float32) == 0.5
    assert words[first["mask_at"] :][:2].tolist() == mask_of([1, 33], 40).tolist()
    assert (first["seen_count"], first["bias_count"], first["changes"], first["last"]) == (2, 1, 1, -1)
    assert len(words) == 3 * 24 + 4 + 2 + 2
    assert (second["by"], second["min_p"], second["top_p"], second["spare"]) == (2, 0.125, 0.75, 0.25)
    assert (second["top_k"], second["needs_total"]) == (0, 1)  # 40 of 40 are all
    assert (second["changes"], second["last"], second["seen_count"]) == (0, -1, 0)  # there is no penalty


def test_the_last_token_counts_where_there_are_penalties() -> None:
    samples = [at(0, PENALIZED, 0, last=7), at(0, GREEDY, 0, last=7), at(0, PENALIZED, 0)]
    slots = pack_samples(samples, 9).data.view(PARAMS)
    assert slots["last"].tolist() == [7, -1, -1]
    assert slots["changes"].tolist() == [1, 0, 0]


def test_what_cannot_be_sampled_ends_alone() -> None:
    bias = ints(1), np.array([np.nan], np.float32)
    samples = [
        at(0, GREEDY, 1.0),
        at(1, GREEDY, 0.5),
        at(2, GREEDY, 0.5, (ints(1, 9), ints(0, 0))),
        at(3, GREEDY, 0.5, (ints(1, 1), ints(0, 0))),
        at(4, GREEDY, 0.5, (ints(1), ints(-1))),
        at(5, GREEDY, 0.5, None, bias),
    ]
    words, errors, _ = pack_samples(samples, 9)
    assert words[: 6 * 24].view(PARAMS)["row"].tolist() == [-1, 1, -1, -1, -1, -1]
    assert {s: str(error) for s, error in errors.items()} == {
        0: "uniform number of row 0: 1 is not at least 0 and less than 1",
        2: "seen tokens of row 0: 9 is not from 0 to 8",
        3: "seen tokens of row 0: a token is given twice",
        4: "seen tokens of row 0: a count is negative",
        5: "bias of row 0: a value is NaN or +infinity",
    }
    assert all(isinstance(error, DataError) for error in errors.values())


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="2 samples do not fit in 1 slot"):
        pack_samples([at(0, GREEDY, 0)] * 2, 9, 1)
    with pytest.raises(ShapeError, match="must hold 1 words"):
        pack_samples([at(0, GREEDY, 0, mask=np.zeros(2, np.uint32))], 9)
    with pytest.raises(DtypeError, match="uint32"):
        pack_samples([at(0, GREEDY, 0, mask=np.zeros(1, np.int32))], 9)


@settings(deadline=None, max_examples=20)
@given(
    vocab=st.integers(1, 5000) | st.sampled_from([1, 127, 128, 129, 2047, 2048, 2049, 9001]),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32),
    count=st.integers(1, 3),
)
def test_kernels_agree_with_the_reference(
    device: EmulatedSession, vocab: int, kind: str, seed: int, count: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = logit_rows(kind, 2, vocab, seed)
    samples = [some_sample(rng, 2, vocab) for _ in range(count)]
    results, raw = sample(device, logits, samples, count + 1)
    assert raw[:, count].tolist() == [0, 0, UNUSED]
    expect_right(logits, samples, results)


@pytest.mark.parametrize("params", [
    SamplingParams(),
    replace(EVERYTHING, top_p=0.95),
    EVERYTHING,
    SamplingParams(1, top_k=3000, top_p=0.9, min_p=0),
    SamplingParams(1, top_k=0, top_p=1, min_p=1e-3),
], ids=str)  # fmt: skip
def test_kernels_nearly_always_give_the_same(device: EmulatedSession, params: SamplingParams) -> None:
    logits = 3 * logit_rows("flat", 1, 20_000, 5)
    samples = [at(0, params, uniform) for uniform in np.random.default_rng(4).random(6)]
    results, _ = sample(device, logits, samples)
    assert expect_right(logits, samples, results) >= 5


@pytest.mark.parametrize("listed", [True, False])
def test_the_last_token_is_counted(device: EmulatedSession, listed: bool) -> None:
    logits = logit_rows("flat", 1, 3000, 3)
    best = int(np.argmax(logits))
    logits[0, best] = 4
    seen = (ints(5, best), ints(1, 0)) if listed else (ints(5), ints(1))
    now = (ints(5, best), ints(1, 1))
    for params in (PENALIZED, replace(PENALIZED, temperature=0.7)):
        told, ahead = at(0, params, 0.3, now), at(0, params, 0.3, seen, last=1)
        results, _ = sample(device, logits, [told, ahead], previous=[17, best])
        assert results[0] == results[1]
        expect_right(logits, [told], results[:1])


def test_rows_that_nothing_can_be_sampled_from(device: EmulatedSession) -> None:
    logits = logit_rows("flat", 5, 3000, 3)
    logits[1, 2999], logits[2, 7], logits[3] = np.nan, np.inf, -np.inf
    nothing = np.zeros(-(-3000 // 32), np.uint32)
    samples = [at(row, params, 0.5) for params in (GREEDY, EVERYTHING) for row in range(5)]
    samples += [at(0, EVERYTHING, 0.5, mask=nothing), at(0, GREEDY, 2)]
    results, _ = sample(device, logits, samples)
    expect_right(logits, samples, results)
    assert sum(isinstance(result, DataError) for result in results) == 8


def test_other_samples_change_nothing(device: EmulatedSession) -> None:
    logits = logit_rows("peaked", 3, 2500, 9)
    samples = [some_sample(np.random.default_rng(seed), 3, 2500) for seed in range(5)]
    together, _ = sample(device, logits, samples, 8)
    alone = [sample(device, logits, [one])[0][0] for one in samples]
    assert together == alone

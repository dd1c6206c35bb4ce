"""Samples for tests of sampling on a GPU, and whether their results are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fewbit.arrays import Floats, Ints
from fewbit.devices.batch import Sample
from fewbit.errors import DataError
from fewbit.ops import cuda, sampling
from fewbit.ops.cuda.sampling import GpuSampler, decoded, pack_samples
from fewbit.ops.cuda.values import Launcher, Rows
from fewbit.ops.sampling import SamplingParams, biased, masked, penalized

from ..ops.sampling_cases import agrees, mask_of, some_bias, some_seen

Result = tuple[int, float] | DataError


def some_params(rng: np.random.Generator) -> SamplingParams:
    def some(values: Sequence[float], least: float, most: float) -> float:
        return float(rng.choice(values) if rng.random() < 0.6 else rng.uniform(least, most))

    return SamplingParams(
        temperature=some([0, 1, 1, 0.8, 1e-3, 1e-40, 100, 1e6], 0.1, 3),
        top_k=int(rng.choice([0, 0, 1, 40, rng.integers(0, 6000)])),
        top_p=some([1, 1, 0.95, 0, 0.999999], 0, 1),
        min_p=some([0, 0, 0.05, 1, 1e-30, 1e-60], 0, 1),
        repetition_penalty=some([1, 1, 1.1], 0.5, 3),
        presence_penalty=some([0, 0, 0.5], -2, 2),
        frequency_penalty=some([0, 0, 0.5], -2, 2),
    )


def at(index: int, *args: Any, **options: Any) -> tuple[int, Sample]:
    """A sample from the logits with an index."""
    return index, Sample(*args, **options)


def some_sample(rng: np.random.Generator, rows: int, vocab: int) -> tuple[int, Sample]:
    allowed = rng.permutation(vocab)[: rng.integers(1, vocab + 1)]
    return at(
        int(rng.integers(rows)),
        some_params(rng),
        float(rng.choice([rng.random(), rng.random(), 0, 1 - 1e-10, 1 - 2**-53])),
        some_seen(rng, vocab) if rng.random() < 0.5 else None,
        some_bias(rng, vocab) if rng.random() < 0.3 else None,
        mask_of(allowed, vocab) if rng.random() < 0.3 else None,
    )


def reference(row: Floats, one: Sample) -> Result:
    try:
        tokens, logprobs = sampling.sample(
            row[None], [one.params], [one.uniform], [one.seen], bias=[one.bias], masks=[one.mask]
        )
    except DataError as error:
        return error
    return int(tokens[0]), float(logprobs[0])


def expect_right(logits: Floats, samples: Sequence[tuple[int, Sample]], results: Sequence[Result]) -> int:
    """Each result is the reference's, but where sums of probabilities are as good as equal; how many are the same."""
    same = 0
    for (index, one), found in zip(samples, results, strict=True):
        row = logits[index]
        wanted = reference(row, one)
        if isinstance(wanted, DataError) or isinstance(found, DataError):
            assert (type(found), str(found)) == (type(wanted), str(wanted))
            same += 1
            continue
        changed = penalized(masked(biased(row, one.bias), one.mask), one.params, one.seen)
        assert np.isfinite(changed[found[0]])
        assert agrees(found[0], changed, one.params, one.uniform), (found, wanted, one.params)
        own = float(sampling.log_probabilities(row[None], [found[0]])[0])
        np.testing.assert_allclose(found[1], own, rtol=1e-6, atol=1e-6)
        same += found[0] == wanted[0]
    return same


def sample(
    device: cuda.Session,
    logits: Floats,
    samples: Sequence[tuple[int, Sample]],
    slots: int | None = None,
    previous: Sequence[int] = (0,),
    padding: int = 0,
) -> tuple[list[Result], Ints]:
    """Rows with so much between them that nobody may read, results poisoned."""
    vocab = logits.shape[1]
    count = slots or len(samples)
    sampler = GpuSampler(device, count + 2, vocab)
    packed = pack_samples(samples, vocab, slots)
    assert sampler.fits(packed)
    given = device.array(np.pad(logits, ((0, 0), (0, padding)), constant_values=np.nan))
    words, before = device.array(packed.data.view(np.int32)), device.array(np.array(previous, np.int32))
    device.fill(sampler.results, 0xFF, sampler.nbytes)
    run = Launcher(device, device.stream)
    sampler.launch(run, Rows(given.pointer, vocab, vocab + padding), words.pointer, count, before.pointer)
    results = sampler.download()
    assert (results[:, count:] == -1).all()
    return decoded(results, len(samples), packed.errors), results

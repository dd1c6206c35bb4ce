"""Sampling on WebGPU beside the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.devices.batch import Sample
from fewbit.ops import sampling
from fewbit.ops.sampling import SamplingParams
from fewbit.ops.webgpu import Gpu
from fewbit.ops.webgpu.device import Dispatch
from fewbit.ops.webgpu.multiply import ONE
from fewbit.ops.webgpu.sampling import pack_samples, sample, sampled_tokens

pytestmark = pytest.mark.webgpu
VOCAB = 1003
PARAMS = (
    SamplingParams(temperature=0), SamplingParams(), SamplingParams(top_k=0), SamplingParams(top_k=400),
    SamplingParams(top_k=0, top_p=1, min_p=0), SamplingParams(temperature=2, top_k=5, top_p=0, min_p=0),
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2),
    SamplingParams(top_k=300, top_p=1, min_p=0.2),
)  # fmt: skip


def sampled(gpu: Gpu, logits: Floats, samples: list[tuple[int, Sample]]) -> list[int | Exception]:
    packed, vocab = pack_samples(samples, logits.shape[1]), logits.shape[1]
    x, params, count = gpu.array(logits), gpu.array(packed.data), len(samples)
    own, results = gpu.array(np.full(count * vocab, np.nan, np.float32)), gpu.allocate(8 * count)
    values = {"vocab": vocab, "x_offset": 0, "x_stride": vocab}
    gpu.run([Dispatch(sample(), (x, params, own, results), values, (("samples", 1), ONE, ONE))], {"samples": count})
    return sampled_tokens(gpu.download(results, 8 * count).view(np.int32).reshape(-1, 2), packed.errors)


def wanted(logits: Floats, one: Sample) -> int:
    given: dict[str, Any] = {"bias": [one.bias], "masks": [one.mask]}
    return int(sampling.sample(logits[None], [one.params], [one.uniform], [one.seen], **given)[0][0])


def test_tokens_are_those_of_the_reference(gpu: Gpu) -> None:
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal((48, VOCAB)) * 3).astype(np.float32)
    logits[3, :500], logits[4] = -np.inf, np.round(logits[4])
    samples = []
    for row in range(48):
        params = PARAMS[row % len(PARAMS)]
        seen = (np.array([1, 2, 5], np.int32), np.array([0, 1, 3], np.int32)) if params.has_penalties else None
        bias = (np.array([7, 8], np.int32), np.array([5, -3], np.float32)) if row % 3 == 0 else None
        mask = rng.integers(0, 2**32, -(-VOCAB // 32), dtype=np.uint32) if row % 4 == 0 else None
        samples.append((row, Sample(params, float(rng.random()), seen, bias, mask)))
    assert sampled(gpu, logits, samples) == [wanted(logits[row], one) for row, one in samples]


def test_rows_that_nothing_can_be_sampled_from(gpu: Gpu) -> None:
    logits = np.zeros((4, 40), np.float32)
    logits[0, 7], logits[1], logits[2, 3] = np.nan, -np.inf, np.inf
    nothing = np.zeros(2, np.uint32)
    greedy = SamplingParams(temperature=0)
    samples = [(row, Sample(greedy, 0.5, mask=nothing if row == 3 else None)) for row in range(4)]
    samples.append((0, Sample(greedy, 0.5, bias=(np.array([99], np.int32), np.ones(1, np.float32)))))
    found = sampled(gpu, logits, samples)
    assert all(isinstance(one, fb.FewbitError) for one in found)
    assert "holds NaN or +infinity" in str(found[0])
    assert "all are -infinity" in str(found[1])
    assert "leave no token" in str(found[3])
    assert "99 is not from 0 to 39" in str(found[4])

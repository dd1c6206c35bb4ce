"""The JavaScript runtime asks the sampler on the GPU for what Python asks it for."""

from __future__ import annotations

from typing import Any

import numpy as np

from fewbit.devices.batch import Sample
from fewbit.ops.sampling import SamplingParams
from fewbit.ops.webgpu.sampling import FIELDS, pack_samples

from .runtime import call

NAMES = {
    "temperature": "temperature", "topK": "top_k", "topP": "top_p", "minP": "min_p",
    "repetitionPenalty": "repetition_penalty", "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}  # fmt: skip
VOCAB = 100


def random_params(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "temperature": float(rng.choice([0, 1e-40, 0.3, 1, 2])), "topK": int(rng.choice([0, 1, 40, VOCAB, 1000])),
        "topP": float(rng.choice([0, 0.5, 0.95, 1])), "minP": float(rng.choice([0, 0.05, 1])),
        "repetitionPenalty": float(rng.choice([1, 1.3])), "presencePenalty": float(rng.choice([0, -0.5])),
        "frequencyPenalty": float(rng.choice([0, 0.7])),
    }  # fmt: skip


def test_words_of_samples() -> None:
    rng, cases, expected = np.random.default_rng(0), [], []
    for _ in range(200):
        given, uniform = random_params(rng), float(rng.random())
        prompt, output = (rng.integers(0, VOCAB, size).tolist() for size in (5, rng.integers(0, 9)))
        params = SamplingParams(**{NAMES[name]: value for name, value in given.items()})
        ids = list(dict.fromkeys([*prompt, *output]))
        seen = np.array(ids, np.int32), np.array([output.count(one) for one in ids], np.int32)
        packed = pack_samples([(0, Sample(params, uniform, seen=seen))], VOCAB)
        assert packed.errors == {}
        expected.append(packed.data.tolist())
        cases.append({"params": given, "uniform": uniform, "prompt": prompt, "output": output})
    asked = {"cases": cases, "fields": list(FIELDS.items()), "vocab": VOCAB}
    assert call(("samples", asked))[0] == expected


def test_wrong_settings_and_plans_of_another_version() -> None:
    one = {"uniform": 0.5, "prompt": [1], "output": []}
    fields = list(FIELDS.items())
    found = call(
        ("samples", {"cases": [{**one, "params": {"temperature": -1}}], "fields": fields, "vocab": 2}),
        ("samples", {"cases": [{**one, "params": {"repetitionPenalty": 0}}], "fields": fields, "vocab": 2}),
        ("samples", {"cases": [{**one, "params": {"topP": "much"}}], "fields": fields, "vocab": 2}),
        ("samples", {"cases": [{**one, "params": {}}], "fields": [["mood", "u32"]], "vocab": 2}),
        ("chosen", [[7, 0]]),
        ("chosen", [[0, 1]]),
        ("chosen", [[0, 3]]),
    )
    assert found[0] == "temperature must be from 0 to 1000000, got -1"
    assert found[1] == "repetitionPenalty must be from 0.000001 to 1000000, got 0"
    assert "topP" in found[2]
    assert found[3] == "the plan's sampler asks for mood: it was made by another version"
    assert found[4] == [7]
    assert found[5] == "the model's logits are not numbers: the file may be damaged"
    assert found[6] == "the penalties leave no token that can be sampled"

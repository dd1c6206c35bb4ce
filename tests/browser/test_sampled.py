"""The JavaScript runtime samples as `fewbit.ops.sampling`."""

from __future__ import annotations

import numpy as np

from fewbit.ops.sampling import SamplingParams, sample

from .runtime import call


def test_tokens_of_the_same_numbers() -> None:
    rng = np.random.default_rng(0)
    cases, expected = [], []
    for number in range(400):
        vocab = int(rng.choice([1, 2, 5, 100]))
        logits = (rng.standard_normal(vocab) * rng.choice([0.1, 1, 10])).astype(np.float32)
        if number % 5 == 0:
            logits = np.round(logits)  # ties
        if number % 7 == 0:
            logits[1:] = np.where(rng.random(vocab - 1) < 0.5, -np.inf, logits[1:])
        names = {
            "temperature": float(rng.choice([0, 0.3, 1, 2])), "top_k": int(rng.choice([0, 1, 3, 40])),
            "top_p": float(rng.choice([0, 0.5, 0.95, 1])), "min_p": float(rng.choice([0, 0.05, 0.5, 1])),
        }  # fmt: skip
        uniform = float(rng.random())
        expected.append(int(sample(logits[None], [SamplingParams(**names)], [uniform])[0][0]))
        given = {
            "temperature": names["temperature"],
            "topK": names["top_k"],
            "topP": names["top_p"],
            "minP": names["min_p"],
        }
        cases.append({"logits": [max(-3e38, float(one)) for one in logits], "params": given, "uniform": uniform})
    assert call(("sampled", cases))[0] == expected


def test_wrong_settings_and_logits() -> None:
    one = {"logits": [0, 1], "uniform": 0.5}
    found = call(
        ("sampled", [{**one, "params": {"temperature": -1}}]),
        ("sampled", [{**one, "params": {"topP": "much"}}]),
        ("sampled", [{**one, "logits": [0, None], "params": {}}]),
    )
    assert found[0] == "temperature must be from 0 to 1000000, got -1"
    assert "topP" in found[1]
    assert isinstance(found[2], list)  # null is 0 in an array of floats

"""Evaluation and calibration on a GPU beside those of the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fewbit as fb

from ..cli.tiny import write_tiny
from ..evaluation.reference import TEXT

pytestmark = pytest.mark.cuda
ZOO = Path(__file__).parents[1] / "zoo"


def test_perplexity_and_divergence(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "a.gguf", format="q8_0")
    (here,) = fb.evaluate(path, TEXT[:64], ctx=32, activations="exact")
    (there,) = fb.evaluate(path, TEXT[:64], ctx=32, device="cuda", against=path)
    np.testing.assert_allclose(there.scores.logprobs, here.scores.logprobs, atol=0.05)
    assert there.divergence is not None
    assert there.divergence.mean < 1e-3


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_moments(name: str) -> None:
    path = ZOO / name / "model.gguf"
    tokens = [int(token) for token in np.load(ZOO / name / "golden.npz")["tokens"]]
    here = fb.calibrate(path, tokens, activations="exact").imatrix
    there = fb.calibrate(path, tokens, device="cuda").imatrix
    assert set(here) == set(there)
    for tensor, entry in here.entries.items():
        assert entry.counts.tolist() == there.entries[tensor].counts.tolist()
        np.testing.assert_allclose(there.entries[tensor].sums, entry.sums, rtol=0.05, atol=0.05 * entry.sums.max())

"""Greedy text of every architecture beside llama.cpp's, on the same tiny files: see tests/zoo/greedy.py."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fewbit.devices.batch import Row
from fewbit.models import architectures, open_model

from ..loading import load
from .test_zoo import ZOO

TIE = 1e-3  # of a logit: as far apart llama.cpp's own sums may turn the order


@pytest.mark.parametrize("name", sorted(path.parent.name for path in ZOO.glob("*/greedy.json")))
def test_greedy_text_is_that_of_llama_cpp(name: str) -> None:
    golden = json.loads((ZOO / name / "greedy.json").read_text())
    file = open_model(ZOO / name / "model.gguf")
    assert file.architecture in architectures()
    loaded = load(file, activations="exact", kv="f32")
    sequence, tokens = loaded.cache.new(), list(golden["prompt"])
    for expected, gap in zip(golden["tokens"], golden["gaps"], strict=True):
        (logits,) = loaded.forward([Row(sequence, tokens, 1)])
        best = int(np.argmax(logits))
        if best != expected:
            assert gap <= TIE, f"{best} instead of {expected}, which was the best by {gap}"
            return  # what follows another token is another text
        tokens = [best]

"""Models that see on a GPU: encoders and the text models behind them beside transformers in f32 (tests/vision_zoo)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.encoding import ImageEncoder
from fewbit.images import open_picture
from fewbit.load_options import LoadOptions

from ..models.vision.test_zoo import logits_in_steps, prompt_of
from ..models.vision.zoo import NAMES, encoder_file, error, golden, opened, question

pytestmark = pytest.mark.cuda
ROWS = 1.5e-3  # the largest error of a value of an encoder's rows, beside the largest value: products are in f16
LOGITS = 0.06  # root mean square beside that of what is expected, with int16 activations and K and V in f16
TIE = 0.02  # likewise
SMALL: dict[str, Any] = {"kv": "f16", "cache_bytes": 1 << 22, "max_seqs": 4, "max_batched_tokens": 512}


def on_gpu(name: str, **options: Any) -> fb.LLM:
    return opened(f"{name}/model.gguf", **{"device": "cuda", "activations": "int16", **SMALL, **options})


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def llm(name: str) -> fb.LLM:
    return on_gpu(name)


def rms(got: Floats, expected: Floats) -> float:
    assert got.shape == expected.shape
    assert np.isfinite(got).all()
    return float(np.sqrt(np.square(got - expected).mean() / np.square(expected).mean()))


def test_rows_of_pictures_are_those_of_transformers(name: str) -> None:
    encoder, data = ImageEncoder(encoder_file(f"{name}/model.gguf"), LoadOptions(device="cuda")), golden(name)
    rows = []
    for key in ("first", "second"):
        picture = open_picture(data[key])
        rows.append(encoder.encode(encoder.model.prepare(picture))[0])
    assert error(np.concatenate(rows), data["features"]) < ROWS


@pytest.mark.parametrize("sizes", [[1000], [7, 3], [1]], ids=["whole", "chunks", "one by one"])
def test_logits_are_near_those_of_transformers(name: str, llm: fb.LLM, sizes: list[int]) -> None:
    tokens, embedded = prompt_of(llm, name)
    assert rms(logits_in_steps(llm, tokens, embedded, sizes), golden(name)["logits"]) < LOGITS


def test_greedy_text_is_that_of_transformers(name: str, llm: fb.LLM) -> None:
    """But where the CPU's two likeliest tokens are nearer to each other than 16-bit products are exact. The second time
    the prompt is in the cache, and steps of decoding are captured."""
    data, asked = golden(name), {"max_tokens": 16, "temperature": 0}
    wanted = opened(f"{name}/model.gguf").chat(question(name), logprobs=2, **asked)
    assert [*wanted.tokens] == data["greedy"].tolist()[: len(wanted.tokens)]
    for _ in range(2):
        answer = llm.chat(question(name), **asked)
        place = next((i for i, (a, b) in enumerate(zip(answer.tokens, wanted.tokens, strict=False)) if a != b), None)
        if place is None:
            assert len(answer.tokens) == len(wanted.tokens)
        else:
            best, second = wanted.logprobs[place].top[:2]
            assert best.logprob - second.logprob < TIE * np.sqrt(np.square(data["logits"]).mean())

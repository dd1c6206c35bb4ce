"""Models that see on a GPU: encoders and the text models behind them beside transformers in f32 (tests/vision_zoo)."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit import encoding
from fewbit.arrays import Floats
from fewbit.encoding import ImageEncoder
from fewbit.images import open_picture
from fewbit.load_options import LoadOptions
from fewbit.models.vision import gemma4v

from ..models.vision.test_zoo import logits_in_steps, prompt_of
from ..models.vision.zoo import NAMES, encoder_file, error, golden, opened, question
from ..vision_zoo.pixels import MANY

pytestmark = pytest.mark.cuda
IS_EMULATED = bool(os.environ.get("FEWBIT_EMULATE_CUDA"))
# The largest error of a value of an encoder's rows, beside the largest value. A product takes both sides in f16, each
# rounded by 2^-11 / sqrt(3) of its value, root mean square: 4e-4 for both. Some 16 products and attentions follow each
# other, which is 16e-4 of the mean if nothing passes them by, and a value in a thousand has 3.3 times as much. The
# largest value is about 3 times the mean. So 2e-3 is to be expected at worst; bf16 would have 8 times as much.
ROWS = 2e-3
LOGITS = 0.06  # root mean square beside that of what is expected, with int16 activations and K and V in f16
TIE = 0.02  # likewise
SMALL: dict[str, Any] = {"kv": "f16", "cache_bytes": 1 << 22, "max_seqs": 4, "max_batched_tokens": 1024}
FEW = 12  # tokens of an image of Gemma 4 in the emulator, which has 264 elsewhere; the CPU then tells what is expected


def on_gpu(name: str, **options: Any) -> fb.LLM:
    return seeing_less(opened(f"{name}/model.gguf", **{"device": "cuda", "activations": "int16", **SMALL, **options}))


def on_cpu(name: str) -> fb.LLM:
    return seeing_less(opened(f"{name}/model.gguf"))


def seeing_less(llm: fb.LLM) -> fb.LLM:
    encoder = llm._images._encoder
    assert encoder is not None
    limit(encoder)
    return llm


def limit(encoder: ImageEncoder) -> None:
    """Let it see as much as the emulator can compute in time."""
    encoder.load()
    if IS_EMULATED and isinstance(encoder.model, gemma4v.Model):
        encoder.model.max_tokens = FEW


def has_fewer(name: str) -> bool:
    return IS_EMULATED and name.startswith("gemma4")


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def llm(name: str) -> fb.LLM:
    return on_gpu(name)


def rms(got: Floats, expected: Floats) -> float:
    assert got.shape == expected.shape
    asked = ~np.isnan(got).all(axis=1)
    assert asked.mean() > 0.25
    got, expected = got[asked], expected[asked]
    assert np.isfinite(got).all()
    return float(np.sqrt(np.square(got - expected).mean() / np.square(expected).mean()))


def rows_of_pictures(name: str, options: LoadOptions) -> Floats:
    encoder = ImageEncoder(encoder_file(f"{name}/model.gguf"), options)
    limit(encoder)
    pictures = (encoder.model.prepare(open_picture(golden(name)[key])) for key in ("first", "second"))
    return np.concatenate([encoder.encode(picture)[0] for picture in pictures])


def test_rows_of_pictures_are_those_of_transformers(name: str) -> None:
    exact = LoadOptions(device="cpu", activations="exact")
    expected = rows_of_pictures(name, exact) if has_fewer(name) else golden(name)["features"]
    assert error(rows_of_pictures(name, LoadOptions(device="cuda")), expected) < ROWS


def logits(llm: fb.LLM, name: str, sizes: list[int]) -> Floats:
    """As many as the golden ones are, if a prompt is long."""
    found = logits_in_steps(llm, *prompt_of(llm, name), sizes)
    return found[:: -(-len(found) // MANY)]


@pytest.mark.parametrize("sizes", [[1000], [7, 3], [1]], ids=["whole", "chunks", "one by one"])
def test_logits_are_near_those_of_transformers(name: str, llm: fb.LLM, sizes: list[int]) -> None:
    expected = logits(on_cpu(name), name, [1000]) if has_fewer(name) else golden(name)["logits"]
    assert rms(logits(llm, name, sizes), expected) < LOGITS


def test_greedy_text_is_that_of_transformers(name: str, llm: fb.LLM) -> None:
    """But where the CPU's two likeliest tokens are nearer to each other than 16-bit products are exact. The second time
    the prompt is in the cache, and steps of decoding are captured."""
    data, asked = golden(name), {"max_tokens": 16, "temperature": 0}
    wanted = on_cpu(name).chat(question(name), logprobs=2, **asked)
    if not has_fewer(name):
        assert [*wanted.tokens] == data["greedy"].tolist()[: len(wanted.tokens)]
    for _ in range(2):
        answer = llm.chat(question(name), **asked)
        place = next((i for i, (a, b) in enumerate(zip(answer.tokens, wanted.tokens, strict=False)) if a != b), None)
        if place is None:
            assert len(answer.tokens) == len(wanted.tokens)
        else:
            best, second = wanted.logprobs[place].top[:2]
            assert best.logprob - second.logprob < TIE * np.sqrt(np.square(data["logits"]).mean())


@pytest.mark.parametrize("name", ["gemma3", "qwen3vl_merger"])
def test_slices_change_no_bit(name: str) -> None:
    encoder = ImageEncoder(encoder_file(f"{name}/model.gguf"), LoadOptions(device="cuda"))
    tower, _ = encoder.load()
    image = encoder.model.prepare(open_picture(golden(name)["first"]))
    whole = tower.step(image)
    assert whole.run(60.0)
    expected = whole.values().copy()
    sliced, slices = tower.step(image), 1
    while not sliced.run(0.0):
        slices += 1
    assert slices > 3
    assert np.array_equal(sliced.values(), expected)


def test_memory_that_grows_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    options, file = LoadOptions(device="cuda"), encoder_file("pixtral/model.gguf")
    whole, growing = ImageEncoder(file, options), ImageEncoder(file, options)
    whole.load()
    monkeypatch.setattr(encoding, "LEAST_PATCHES", 16)
    tower, _ = growing.load()
    sizes = [tower.executor.max_batched_tokens]
    for key in ("second", "first", "second"):
        image = whole.model.prepare(open_picture(golden("pixtral")[key]))
        assert np.array_equal(growing.encode(image)[0], whole.encode(image)[0])
        sizes.append(tower.executor.max_batched_tokens)
    assert sizes == [16, 32, 64, 64]

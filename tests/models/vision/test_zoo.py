"""Encoders and the text models behind them beside transformers in f32, on tiny random models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.devices.batch import Row
from fewbit.encoding import ImageEncoder
from fewbit.engine.embedded import EmbeddedPrompt
from fewbit.images import open_picture
from fewbit.load_options import LoadOptions
from fewbit.models.vision import projectors
from fewbit.models.vision.siglip import Siglip

from ...vision_zoo.pixels import MANY
from .zoo import FOLDER, NAMES, SOURCES, encoder_file, error, golden, opened, question

EXACT = 1e-4  # the largest error of a value, beside the largest value
LOGITS = 1e-3
WHOLE = 512  # tokens of the largest step


def test_the_zoo_has_every_encoder() -> None:
    configs = [encoder_file(source).config for source in SOURCES]
    found = {config.get("projector_type", config.get("vision.projector_type")).replace(".", "_") for config in configs}
    assert found == set(projectors())


@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.parametrize("source", SOURCES)
def test_rows_of_pictures_are_those_of_transformers(source: str, device: str) -> None:
    options = LoadOptions(device=device, activations="exact" if device == "cpu" else None)
    encoder, data = ImageEncoder(encoder_file(source), options), golden(source.split("/", maxsplit=1)[0])
    rows = []
    for key in ("first", "second"):
        picture = open_picture(data[key])
        rows.append(encoder.encode(encoder.model.prepare(picture))[0])
    assert error(np.concatenate(rows), data["features"]) < EXACT


def prompt_of(llm: fb.LLM, name: str) -> tuple[list[int], EmbeddedPrompt]:
    plan = llm.plan_chat(question(name))
    embedded = llm._images.embed(plan.images, plan.prompt)
    assert embedded is not None
    for one in embedded.pending():
        one.encode()
    return plan.prompt, embedded


def logits_in_steps(llm: fb.LLM, tokens: list[int], embedded: EmbeddedPrompt, sizes: Sequence[int]) -> Floats:
    """The logits of a prompt that is cut into steps; those that would cut a span are longer. NaN: more than a step
    gives."""
    sequence, rows, first = llm.loaded.cache.new(), [], 0
    while first < len(tokens):
        count = min(sizes[len(rows) % len(sizes)], len(tokens) - first)
        count = max(embedded.uncut(first, count), embedded.needed(first))
        inputs = embedded.row_inputs(first, count)
        asked = min(count, llm.loaded.executor.max_logits)
        got = llm.loaded.forward([Row(sequence, tokens[first : first + count], asked, inputs=inputs)])
        rows.append(np.pad(got, [(count - asked, 0), (0, 0)], constant_values=np.nan))
        first += count
    return np.concatenate(rows)


@pytest.mark.parametrize("sizes", [[WHOLE], [1], [7, 3]], ids=["whole", "one by one", "chunks"])
@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str, device: str, sizes: list[int]) -> None:
    llm, data = opened(f"{name}/model.gguf", device=device), golden(name)
    tokens, embedded = prompt_of(llm, name)
    logits = logits_in_steps(llm, tokens, embedded, sizes)
    assert error(logits[:: -(-len(logits) // MANY)], data["logits"]) < LOGITS


@pytest.mark.parametrize("name", NAMES)
def test_logits_from_safetensors_are_those_of_transformers(name: str) -> None:
    llm, data = opened(f"{name}/hf"), golden(name)
    tokens, embedded = prompt_of(llm, name)
    logits = logits_in_steps(llm, tokens, embedded, [WHOLE])
    assert error(logits[:: -(-len(logits) // MANY)], data["logits"]) < LOGITS


@pytest.mark.parametrize("source", SOURCES)
def test_prompts_and_greedy_text_are_those_of_transformers(source: str) -> None:
    name = source.split("/", maxsplit=1)[0]
    llm, data = opened(source), golden(name)
    assert llm.plan_chat(question(name)).prompt == data["tokens"].tolist()
    assert llm.chat_prompt(question(name)) == data["tokens"].tolist()
    for _ in range(2):  # from the cache the second time
        answer = llm.chat(question(name), max_tokens=16, temperature=0)
        assert [*answer.tokens] == data["greedy"].tolist()[: len(answer.tokens)]
        assert answer.finish_reason == "stop" or len(answer.tokens) == 16


@pytest.mark.parametrize("name", NAMES)
def test_8_bit_activations_are_near(name: str) -> None:
    llm, data = opened(f"{name}/model.gguf", activations=None), golden(name)
    tokens, embedded = prompt_of(llm, name)
    got = logits_in_steps(llm, tokens, embedded, [WHOLE])
    got = got[:: -(-len(got) // MANY)]
    assert np.sqrt(np.square(got - data["logits"]).mean() / np.square(data["logits"]).mean()) < 0.1


def test_an_encoder_of_another_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = FOLDER / "gemma3" / "model.gguf"
    monkeypatch.setattr(Siglip, "width", 48)
    with pytest.raises(fb.RequestError, match="gives rows of 48 values, and the model takes 32"):
        fb.LLM(path)


def test_a_model_of_embeddings_takes_no_images() -> None:
    with pytest.raises(fb.RequestError, match="a model that writes text"):
        fb.LLM(FOLDER.parent / "zoo" / "bert" / "model.gguf", mmproj=FOLDER / "gemma3" / "mmproj.gguf")


def test_an_encoder_is_no_model() -> None:
    with pytest.raises(fb.FileError, match="this is an image encoder; load its model, and name this file as mmproj"):
        fb.LLM(FOLDER / NAMES[0] / "mmproj.gguf")


def test_a_text_model_is_no_encoder() -> None:
    path = FOLDER / NAMES[0] / "model.gguf"
    with pytest.raises(fb.FileError, match="this is no image encoder"):
        fb.LLM(path, mmproj=path)

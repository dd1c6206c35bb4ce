"""Checkpoints of the zoo in other forms that are published: names of tensors, settings, quantized matrices."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.encoding import ImageEncoder, open_encoder
from fewbit.files.safetensors import read_safetensors
from fewbit.images import open_picture
from fewbit.load_options import LoadOptions
from fewbit.models.vision import load_vision

from ..test_prequantized import safetensors, write_pair
from .zoo import FOLDER, golden, question

EXACT: dict[str, Any] = {"kv": "f32", "activations": "exact"}
# What transformers before and since 4.52 calls the parts of a model.
OLDER = {r"^model\.visual\.": "visual.", r"^model\.language_model\.": "model."}
NEWER = {
    r"^visual\.": "model.visual.", r"^model\.(layers|norm|embed_tokens)": r"model.language_model.\1",
    r"^vision_tower\.": "model.vision_tower.", r"^multi_modal_projector\.": "model.multi_modal_projector.",
    r"^language_model\.model\.": "model.language_model.", r"^language_model\.lm_head": "lm_head",
}  # fmt: skip


def renamed(name: str, folder: Path, names: dict[str, str]) -> Path:
    """A folder of the zoo whose tensors have other names."""
    shutil.copytree(FOLDER / name / "hf", folder)
    tensors, dtypes = {}, {}
    for old, tensor in read_safetensors(FOLDER / name / "hf").items():
        new = old
        for pattern, replacement in names.items():
            new = re.sub(pattern, replacement, new)
        tensors[new] = tensor.dequantize()
    assert tensors.keys() != read_safetensors(FOLDER / name / "hf").keys()
    (folder / "model.safetensors").write_bytes(safetensors(tensors, dtypes))
    return folder


def changed(folder: Path, file: str, change: Any) -> None:
    path = folder / file
    settings = json.loads(path.read_text())
    change(settings)
    path.write_text(json.dumps(settings))


def check_answer(name: str, folder: Path) -> None:
    with fb.LLM(folder, **EXACT) as llm:
        answer = llm.chat(question(name), max_tokens=16, temperature=0)
    assert [*answer.tokens] == golden(name)["greedy"].tolist()[: len(answer.tokens)]


@pytest.mark.parametrize("name", ["gemma3", "llava_pixtral", "pixtral", "qwen2vl_merger", "qwen2_5vl_merger"])
def test_newer_names(name: str, tmp_path: Path) -> None:
    check_answer(name, renamed(name, tmp_path / "hf", NEWER))


@pytest.mark.parametrize("name", ["qwen3vl_merger", "qwen35"])
def test_older_names(name: str, tmp_path: Path) -> None:
    check_answer(name, renamed(name, tmp_path / "hf", OLDER))


@pytest.mark.parametrize("kind", ["type", "rope_type"])
def test_sections_of_rope_as_qwen_published_them(kind: str, tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER / "qwen2vl_merger" / "hf", tmp_path / "hf")

    def change(config: dict[str, Any]) -> None:
        text = config.pop("text_config", config)
        rope = text.pop("rope_parameters")
        scaling = {kind: "mrope" if kind == "type" else "default", "mrope_section": rope["mrope_section"]}
        config |= text | {"rope_theta": rope["rope_theta"], "rope_scaling": scaling}
        config["architectures"] = ["Qwen2VLForConditionalGeneration"]

    changed(folder, "config.json", change)
    check_answer("qwen2vl_merger", folder)


def test_the_settings_of_a_processor_alone(tmp_path: Path) -> None:
    """Newer checkpoints have those of its images in processor_config.json, others in preprocessor_config.json."""
    for name in ("processor_config.json", "preprocessor_config.json"):
        folder = shutil.copytree(FOLDER / "idefics3" / "hf", tmp_path / name)
        (folder / name).unlink()
        check_answer("idefics3", folder)


def test_processors_that_do_not_normalize(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER / "idefics3" / "hf", tmp_path / "hf")
    settings = {"do_normalize": False}
    for name in ("processor_config.json", "preprocessor_config.json"):
        changed(folder, name, lambda found: found.get("image_processor", found).update(settings))
    image = load_vision(open_encoder(folder)).prepare(open_picture(np.full((64, 64, 3), 51, np.uint8)))
    np.testing.assert_allclose(image.patches, 0.2, rtol=1e-5)


def rows_of(folder: Path, name: str) -> Floats:
    encoder = ImageEncoder(open_encoder(folder), LoadOptions(activations="exact"))
    return encoder.encode(encoder.model.prepare(open_picture(golden(name)["first"])))[0]


@pytest.mark.parametrize("name", ["pixtral", "idefics3"])
def test_matrices_that_a_library_quantized(name: str, tmp_path: Path) -> None:
    packed, plain = (rows_of(folder, name) for folder in write_pair(tmp_path, "fp8", FOLDER / name / "hf"))
    assert np.isfinite(plain).all()
    np.testing.assert_allclose(packed, plain, rtol=1e-4, atol=1e-4 * np.abs(plain).max())

"""`quantize_model` of image encoders, and of the text models beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.encoding import ImageEncoder, open_encoder
from fewbit.images import open_picture
from fewbit.load_options import LoadOptions

from ..models.vision.wide import write_wide_encoder
from ..models.vision.zoo import FOLDER, NAMES, golden, question

SPLIT = ("qwen2vl_merger", "qwen2_5vl_merger")  # whose Q, K and V llama.cpp's converter splits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoders")


def formats(path: Path) -> dict[str, str]:
    return {name: tensor.format.name for name, tensor in fb.read_gguf(path).tensors.items()}


def test_names_metadata_and_what_stays_floats(folder: Path) -> None:
    source = write_wide_encoder("pixtral", folder / "mmproj-pixtral.gguf")
    out = folder / "mmproj-pixtral-q8_0.gguf"
    made = fb.quantize_model(source, out, "q8_0", mmproj=True)
    before, after = fb.read_gguf(source), fb.read_gguf(out)
    assert [*after.tensors] == [*before.tensors]
    assert (after.architecture, after.metadata["general.file_type"]) == ("clip", 7)
    assert dict(after.config).keys() == dict(before.config).keys()
    floats = {item.name for item in made.tensors if item.is_matrix and item.format.name != "q8_0"}
    assert floats == {"v.patch_embd.weight", "mm.patch_merger.weight"}
    assert {formats(out)[name] for name in floats} == {"f32"}


def test_what_gemma_3_transposes_stays_as_it_is(folder: Path) -> None:
    source = write_wide_encoder("gemma3", folder / "mmproj-gemma.gguf")
    fb.quantize_model(source, folder / "f16.gguf", "f16", mmproj=True)
    fb.quantize_model(folder / "f16.gguf", folder / "q4.gguf", "q4_k", mmproj=True)
    found = formats(folder / "q4.gguf")
    assert found["mm.input_projection.weight"] == found["v.patch_embd.weight"] == "f16"
    assert found["v.position_embd.weight"] == found["v.blk.0.ln1.weight"] == "f32"
    assert found["v.blk.0.attn_q.weight"] == found["v.blk.1.ffn_down.weight"] == "q4_k"


def test_mixes_choose_among_the_layers(folder: Path) -> None:
    source = write_wide_encoder("idefics3", folder / "mmproj-idefics.gguf")
    fb.quantize_model(source, folder / "mix.gguf", "q4_k_m", mmproj=True, tensors={"attn_out": "q8_0"})
    found = formats(folder / "mix.gguf")
    assert found["v.blk.1.attn_v.weight"] == found["v.blk.1.ffn_down.weight"] == "q6_k"
    assert (found["v.blk.1.attn_q.weight"], found["v.blk.1.attn_out.weight"]) == ("q4_k", "q8_0")


@pytest.mark.parametrize("name", NAMES)
def test_encoders_of_folders_as_llama_cpp_writes_them(name: str, folder: Path) -> None:
    out = folder / f"mmproj-of-{name}.gguf"
    fb.quantize_model(FOLDER / name / "hf", out, "keep", mmproj=True)
    ours, theirs = fb.read_gguf(out), fb.read_gguf(FOLDER / name / "mmproj.gguf")
    if name not in SPLIT:
        assert ours.tensors.keys() == theirs.tensors.keys()
        different = {key for key, one in ours.tensors.items() if one.format != theirs.tensors[key].format}
        assert different <= {"mm.input_projection.weight"}  # f16 there, f32 here, since it was bf16
    assert ours.metadata["general.type"] == theirs.metadata["general.type"]
    assert ours.config["has_vision_encoder"] is True
    for key in ("vision.block_count", "vision.embedding_length", "vision.projection_dim", "vision.image_mean"):
        np.testing.assert_allclose(ours.config[key], theirs.config[key], rtol=1e-6)
    files, exact = (out, FOLDER / name / "hf"), LoadOptions(activations="exact")
    encoders = (ImageEncoder(open_encoder(path), exact) for path in files)
    picture = open_picture(golden(name)["first"])
    got, expected = (encoder.encode(encoder.model.prepare(picture)) for encoder in encoders)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_folders_with_both_say_that_the_text_model_is_written(folder: Path) -> None:
    source = FOLDER / "qwen2vl_merger" / "hf"
    with pytest.warns(UserWarning, match="only the text model is written, not its image encoder; `mmproj` writes that"):
        fb.quantize_model(source, folder / "both-text.gguf", "bf16")
    fb.quantize_model(source, folder / "both-mmproj.gguf", "keep", mmproj=True)
    llm = fb.LLM(folder / "both-text.gguf", mmproj=folder / "both-mmproj.gguf", kv="f32", activations="exact")
    answer = llm.chat(question("qwen2vl_merger"), max_tokens=16, temperature=0)
    assert [*answer.tokens] == golden("qwen2vl_merger")["greedy"].tolist()[: len(answer.tokens)]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [("mmproj.gguf", {}, "this is an image encoder, not a model of text; the option mmproj quantizes it"),
     ("model.gguf", {"mmproj": True}, "this is no image encoder, it is a gemma3 model"),
     ("mmproj.gguf", {"mmproj": True, "format": None, "bits": 4.0, "text": "A text."}, "reads no text"),
     ("mmproj.gguf", {"mmproj": True, "importance": {"v.blk.0.attn_q.weight": np.ones(24)}}, "reads no text"),
     ("mmproj.gguf", {"mmproj": True, "tensors": {"patch_embd": "q8_0"}}, "no matrix has a name with 'patch_embd'")],
)  # fmt: skip
def test_what_is_refused(model: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(fb.FewbitError, match=message):
        fb.quantize_model(FOLDER / "gemma3" / model, tmp_path / "out.gguf", **{"format": "q8_0", **options})
    assert not list(tmp_path.iterdir())


def test_a_folder_without_an_encoder(tmp_path: Path) -> None:
    with pytest.raises(fb.FileError, match="this folder has no image encoder that is known"):
        fb.quantize_model(FOLDER.parent / "zoo" / "llama" / "hf", tmp_path / "out.gguf", mmproj=True)

"""What encoders are told by config.json and by the headers of files: activations, towers, and what is left out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.encoding import ImageEncoder, encoder_of, open_encoder
from fewbit.images import open_picture
from fewbit.load_options import LoadOptions
from fewbit.models import open_model
from fewbit.models.directory import read_config
from fewbit.models.vision import load_vision
from fewbit.models.vision.activation import ACTIVATIONS

from .zoo import FOLDER, golden


def with_config(name: str, folder: Path, change: dict[str, Any], part: str = "vision_config") -> Path:
    """A folder of the zoo with another config.json."""
    shutil.copytree(FOLDER / name / "hf", folder, dirs_exist_ok=True)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    (config[part] if part else config).update(change)
    path.write_text(json.dumps(config))
    return folder


def with_flags(name: str, path: Path, flags: dict[str, bool]) -> Path:
    source = fb.read_gguf(FOLDER / name / "mmproj.gguf")
    metadata = {key: value for key, value in source.metadata.items() if not key.startswith("clip.use_")}
    fb.write_gguf(path, metadata | {f"clip.use_{key}": value for key, value in flags.items()}, source.tensors)
    return path


def rows_of(path: Path, name: str = "idefics3") -> np.ndarray:
    encoder = ImageEncoder(open_encoder(path), LoadOptions(device="numpy"))
    return encoder.encode(encoder.model.prepare(open_picture(golden(name)["first"])))[0]


@pytest.mark.parametrize("name", ["idefics3", "pixtral"])
def test_activations_by_config(name: str, tmp_path: Path) -> None:
    """Each gives rows of its own, with a gate and without."""
    rows = {one: rows_of(with_config(name, tmp_path / one, {"hidden_act": one}), name) for one in ACTIVATIONS}
    usual = "silu" if name == "pixtral" else "gelu_pytorch_tanh"
    np.testing.assert_allclose(rows[usual], golden(name)["features"][: len(rows[usual])], atol=1e-3)
    found = [*rows.values()]
    assert all(np.abs(a - b).max() > 1e-5 for i, a in enumerate(found) for b in found[:i])
    near = np.abs(rows["gelu"] - rows["gelu_pytorch_tanh"]).max()
    assert near < 0.1 * np.abs(rows["gelu"] - rows["silu"]).max()


@pytest.mark.parametrize(
    ("flags", "name"),
    [({"gelu": True}, "gelu_pytorch_tanh"), ({"silu": True}, "silu"), ({}, "quick_gelu"),
     ({"gelu": False, "silu": False}, "quick_gelu")],
)  # fmt: skip
def test_activations_by_the_flags_of_gguf(flags: dict[str, bool], name: str, tmp_path: Path) -> None:
    got = rows_of(with_flags("idefics3", tmp_path / "mmproj.gguf", flags))
    expected = rows_of(with_config("idefics3", tmp_path / "hf", {"hidden_act": name}))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_what_gguf_says_of_gelu_is_the_familys(tmp_path: Path) -> None:
    """Pixtral's is exact: the converter writes the flag for "gelu" alone."""
    got = rows_of(with_flags("llava_pixtral", tmp_path / "mmproj.gguf", {"gelu": True}), "llava_pixtral")
    np.testing.assert_allclose(got, golden("llava_pixtral")["features"][: len(got)], atol=1e-3)


def test_unknown_activations(tmp_path: Path) -> None:
    known = "there are: gelu, gelu_pytorch_tanh, quick_gelu, silu"
    for name, change in (("idefics3", {"hidden_act": "relu"}), ("gemma4", {"hidden_activation": "relu"})):
        folder = with_config(name, tmp_path / name, change)
        with pytest.raises(fb.FileError, match=f"the activation 'relu' are not known; {known}"):
            load_vision(open_encoder(folder))
    folder = with_config("pixtral", tmp_path / "projector", {"projector_hidden_act": "tanh"}, "")
    with pytest.raises(fb.FileError, match="the activation 'tanh' are not known"):
        load_vision(open_encoder(folder))
    with pytest.raises(fb.FileError, match=r"cannot have both clip\.use_gelu and clip\.use_silu"):
        load_vision(open_encoder(with_flags("idefics3", tmp_path / "both.gguf", {"gelu": True, "silu": True})))


@pytest.mark.parametrize(
    ("change", "part", "message"),
    [({"model_type": "clip_vision_model"}, "vision_config", "the vision tower must be a pixtral, it is 'clip_vision"),
     ({"vision_feature_layer": -2}, "", "vision_feature_layer must be -1, the rows after the last layer; it is -2"),
     ({"vision_feature_select_strategy": "default"}, "", "must be \"full\"")],
)  # fmt: skip
def test_llava_with_what_pixtral_is_not(change: dict[str, Any], part: str, message: str, tmp_path: Path) -> None:
    folder = with_config("llava_pixtral", tmp_path, change, part)
    with pytest.raises(fb.FileError, match=message):
        encoder_of(folder)
    with pytest.warns(UserWarning, match=message):
        llm = fb.LLM(folder)
    with pytest.raises(fb.RequestError, match="the model reads text only"):
        llm.chat([{"role": "user", "content": [golden("llava_pixtral")["first"]]}])


def test_llava_with_another_text_model(tmp_path: Path) -> None:
    folder = with_config("llava_pixtral", tmp_path, {"model_type": "qwen2"}, "text_config")
    with pytest.raises(fb.FileError, match="LlavaForConditionalGeneration' checkpoints are known, but not with this"):
        open_model(folder)


def test_what_published_text_configs_leave_out(tmp_path: Path) -> None:
    """As transformers' MistralConfig has it: the community's Pixtral names neither heads nor much else."""
    (tmp_path / "config.json").write_text(json.dumps({
        "architectures": ["LlavaForConditionalGeneration"],
        "text_config": {"model_type": "mistral", "hidden_size": 5120, "head_dim": 128, "sliding_window": None},
    }))  # fmt: skip
    config = read_config(tmp_path / "config.json")
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["hidden_size"]) == (32, 8, 5120)
    assert config["sliding_window"] is None


def test_theta_of_either_version(tmp_path: Path) -> None:
    usual = load_vision(open_encoder(FOLDER / "llava_pixtral" / "hf"))
    for number, change in enumerate([{"rope_theta": 100.0, "rope_parameters": None},
                                     {"rope_parameters": {"rope_theta": 100.0}}]):  # fmt: skip
        model = load_vision(open_encoder(with_config("llava_pixtral", tmp_path / str(number), change)))
        assert model.blk[0].attn.rope.inv_freq[1] != usual.blk[0].attn.rope.inv_freq[1]  # type: ignore[attr-defined]
        assert model.blk[0].attn.rope.inv_freq[1] == pytest.approx(100.0 ** (-4 / 12))  # type: ignore[attr-defined]

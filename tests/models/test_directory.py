"""Folders with a checkpoint of transformers: the same tensors, hyperparameters and tokens as their GGUF twins."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewbit.errors import FewbitError, FileError, MissingError, PathError, ShapeError, TokenizerError
from fewbit.files.gguf import read_gguf
from fewbit.models import architectures, open_model
from fewbit.models.adapter import DECODER_TENSORS, Adapter
from fewbit.text.tokenizer import Tokenizer

from ..files.safetensors_bytes import packed
from ..zoo.records import RECORDS
from .test_zoo import ZOO

TEXTS = ("Hello the ring of and 123\n\n x", "in the  thing's ending\u00e9\u6f22\u5b57<|user|>[SEP]")

NAMES = sorted(record.name for record in RECORDS)


@pytest.fixture(params=NAMES)
def twins(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    name: str = request.param
    return read_gguf(ZOO / name / "model.gguf"), open_model(ZOO / name / "hf")


def test_tensors_are_those_of_the_gguf_file(twins: tuple[Any, Any]) -> None:
    gguf, folder = twins
    assert folder.architecture == gguf.architecture
    assert sorted(folder.tensors) == sorted(gguf.tensors)
    for name, expected in gguf.tensors.items():
        got, info = folder.tensors[name], folder.infos[name]
        assert (info.shape, info.format) == (got.shape, got.format)
        assert got.shape == expected.shape
        np.testing.assert_allclose(got.dequantize(), expected.dequantize(), rtol=1e-6)
        folder.forget(name)


def test_tokens_are_those_of_the_gguf_file(twins: tuple[Any, Any]) -> None:
    gguf, folder = (Tokenizer.from_metadata(file.tokenizer()) for file in twins)
    assert without_padding(folder.vocabulary.tokens) == without_padding(gguf.vocabulary.tokens)
    assert (folder.bos_id, folder.eos_id) == (gguf.bos_id, gguf.eos_id)
    for text in TEXTS:
        assert folder.encode(text) == gguf.encode(text)
        ids = folder.encode(text, parse_special=True)
        assert ids == gguf.encode(text, parse_special=True)
        assert folder.decode(ids) == gguf.decode(ids)


def without_padding(tokens: list[str]) -> list[str]:
    """Names that converters give to rows of the table that no token has are not the same everywhere."""
    return [token for token in tokens if not re.fullmatch(r"▁?\[PAD\d+\]", token)]


# What can be wrong


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ZOO / "llama" / "hf", tmp_path / "llama"))


def change(path: Path, **values: Any) -> Path:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return path.parent


def test_any_file_of_the_folder_will_do(llama: Path) -> None:
    for path in (llama, llama / "config.json", llama / "model.safetensors"):
        assert open_model(path).path == llama
    assert repr(open_model(llama)) == "<Directory llama: llama, 21 tensors>"


def test_tensors_that_need_no_change_share_the_map(llama: Path) -> None:
    file = open_model(llama)
    assert not file.tensors["blk.0.attn_v.weight"].stored.flags.owndata
    assert file.tensors["blk.0.attn_v.weight"].format.name == "bf16"
    with pytest.raises(MissingError, match="there is no tensor 'x' among its 21"):
        file.tensors["x"]
    file.close()
    with pytest.raises(PathError, match="the file is closed"):
        file.tensors["blk.0.attn_v.weight"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architectures": ["NopeForCausalLM"]}, "'NopeForCausalLM' checkpoints are not known; there are: .*Llama"),
        ({"architectures": None}, "must name the model's class in architectures"),
        ({"architectures": [3]}, "must name the model's class"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "quantized by 'aqlm', which is not read; there are: awq"),
        ({"num_attention_heads": "x", "head_dim": None}, r"config.json does not fit llama models"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": "x"}}, r"config.json does not fit llama models"),
        ({"rope_parameters": {"rope_type": "longrope"}}, r"does not fit llama models: 'long_factor' is missing"),
    ],
)
def test_a_wrong_config(llama: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(FileError, match=message):
        open_model(change(llama / "config.json", **values))


@pytest.mark.parametrize("heads", [0, 3, 1000, "x", None])
def test_heads_that_do_not_fit(llama: Path, heads: Any) -> None:
    file = open_model(change(llama / "config.json", num_attention_heads=heads))
    with pytest.raises(FewbitError, match=r"blk.0.attn_q.weight does not fit llama models"):
        file.tensors["blk.0.attn_q.weight"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1, "a": 2}', "3"])
def test_no_config(llama: Path, text: str) -> None:
    (llama / "config.json").write_text(text)
    with pytest.raises(FileError, match=r"config.json"):
        open_model(llama)
    (llama / "config.json").unlink()
    with pytest.raises(PathError, match=r"config.json: there is no such file"):
        open_model(llama)


def test_the_part_about_text(llama: Path) -> None:
    given = json.loads((llama / "config.json").read_text())
    text = {key: given.pop(key) for key in ("hidden_size", "num_hidden_layers", "rope_parameters")}
    (llama / "config.json").write_text(json.dumps(given | {"text_config": text | {"architectures": ["X"]}}))
    assert open_model(llama).config["block_count"] == 2
    assert open_model(llama).config["rope.freq_base"] == 10000.0


def test_names_that_are_not_known_are_kept(llama: Path) -> None:
    (llama / "model.safetensors").write_bytes(packed({"model.layers.0.strange": np.ones(2, np.float32)}))
    assert list(open_model(llama).tensors) == ["model.layers.0.strange"]


def test_experts(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ZOO / "mixtral" / "hf", tmp_path / "mixtral"))
    name = "model.layers.0.block_sparse_moe.experts.{}.w1.weight"
    ones = np.ones((2, 2), np.float32)
    (folder / "model.safetensors").write_bytes(packed({name.format(0): ones, name.format(2): ones}))
    with pytest.raises(FileError, match=r"of blk.0.ffn_gate_exps.weight .* the experts \[0, 2\]; some are missing"):
        open_model(folder)
    (folder / "model.safetensors").write_bytes(packed({name.format(0): ones, name.format(1): ones[:1]}))
    with pytest.raises(ShapeError, match=r"the experts of blk.0.ffn_gate_exps.weight have different shapes"):
        open_model(folder).tensors["blk.0.ffn_gate_exps.weight"]


def test_two_names_for_one_tensor() -> None:
    names = ["model.norm.weight", "norm.weight"]
    with pytest.raises(FileError, match=r"norm.weight and norm.weight would both become output_norm.weight"):
        Adapter((), tensors=DECODER_TENSORS).recipes(names, {})


def test_tied_embeddings_and_parts_that_see(llama: Path) -> None:
    recipes = Adapter(()).recipes(["lm_head.weight", "model.vision_tower.x", "model.language_model.norm.weight"], {})
    assert sorted(recipes) == ["output.weight", "output_norm.weight"]
    assert not Adapter(()).recipes(["lm_head.weight"], {"tie_word_embeddings": True})


def test_every_adapter_belongs_to_one_architecture() -> None:
    from importlib import import_module

    modules = [import_module(f"fewbit.models.{name.replace('-', '_')}") for name in architectures()]
    names = [name for module in modules if hasattr(module, "HF") for name in module.HF.architectures]
    assert {name for name in names if names.count(name) > 1} == {"NemotronHForCausalLM"}  # with experts or without
    assert len(set(names)) > 20


# Tokenizers


def test_no_tokenizer(llama: Path) -> None:
    (llama / "tokenizer.json").unlink()
    (llama / "tokenizer.model").write_bytes(b"")
    with pytest.raises(PathError, match=r"tokenizer.json is missing; tokenizer.model alone is not supported"):
        open_model(llama).tokenizer()


@pytest.mark.parametrize("model", [None, {}, {"type": "WordLevel"}, {"type": "BPE", "vocab": {"a": -1}},
                                   {"type": "BPE", "vocab": {"a": 1 << 40}}, {"type": "BPE", "vocab": []},
                                   {"type": "BPE", "vocab": {}, "merges": [["a"]]}, {"type": "Unigram", "vocab": 3},
                                   {"type": "BPE", "vocab": {"a": 0}, "merges": ["b c"]}])  # fmt: skip
def test_a_wrong_tokenizer(llama: Path, model: Any) -> None:
    change(llama / "tokenizer.json", model=model)
    with pytest.raises(TokenizerError):
        Tokenizer.from_metadata(open_model(llama).tokenizer())


def test_what_stands_beside_the_tokenizer(llama: Path) -> None:
    change(llama / "tokenizer_config.json", chat_template=[{"name": "default", "template": "a"},
                                                           {"name": "tools", "template": "b"}])  # fmt: skip
    (llama / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [282, 287], "temperature": 0.6, "top_k": 20, "do_sample": True, "x": 1})
    )
    words = open_model(llama).tokenizer()
    assert words["general.sampling.temp"] == 0.6
    assert words["general.sampling.top_k"] == 20
    tokenizer = Tokenizer.from_metadata(words)
    assert {282, 287} <= tokenizer.end_of_generation
    assert tokenizer.chat_templates == {"default": "a", "tools": "b"}
    (llama / "chat_template.jinja").write_text("c")
    assert open_model(llama).template() == "c"

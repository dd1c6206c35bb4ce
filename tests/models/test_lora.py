"""Adapters of PEFT and of GGUF beside the logits of PEFT, and beside merged weights."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.devices.batch import AdapterMix, LoadedAdapter, Row
from fewbit.files.lora import read_adapter
from fewbit.files.safetensors import read_safetensors
from fewbit.loading import Loaded
from fewbit.models import open_model
from fewbit.models.lora import find_family, gguf_names, transformers_config

from ..loading import load

ZOO = Path(__file__).parents[1] / "zoo"
MODELS = sorted(path.parent.name for path in ZOO.glob("*/adapter.npz"))
CONVERTED = sorted(path.parent.name for path in ZOO.glob("*/adapter.gguf"))


def adapted_logits(loaded: Loaded, path: Path, tokens: list[int], weight: float = 1.0) -> Floats:
    assert loaded.adapters is not None
    found = loaded.adapters.read(path)
    mix = AdapterMix(((LoadedAdapter("a", found.key, loaded.executor.place_adapter(found.terms)), weight),))
    return loaded.forward([Row(loaded.cache.new(), tokens, len(tokens), adapter=mix)]).copy()


def tokens_of(name: str) -> list[int]:
    tokens: list[int] = np.load(ZOO / name / "golden.npz")["tokens"].tolist()
    return tokens


def error(got: Floats, expected: Floats) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def test_eight_families_have_an_adapter() -> None:
    assert len(MODELS) >= 8
    assert len(CONVERTED) >= 5


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_peft(name: str, device: str) -> None:
    options: dict[str, Any] = {"exact": True} if device == "cpu" else {}
    loaded = load(open_model(ZOO / name / "model.gguf"), device=device, kv="f32", **options)
    expected = np.load(ZOO / name / "adapter.npz")["logits"]
    plain = np.load(ZOO / name / "golden.npz")["logits"]
    assert error(plain, expected) > 0.05
    assert error(adapted_logits(loaded, ZOO / name / "adapter", tokens_of(name)), expected) < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_of_transformers_takes_the_same_adapter(name: str) -> None:
    loaded = load(open_model(ZOO / name / "hf"), exact=True, kv="f32")
    expected = np.load(ZOO / name / "adapter.npz")["logits"]
    assert error(adapted_logits(loaded, ZOO / name / "adapter", tokens_of(name)), expected) < 1e-4


@pytest.mark.parametrize("name", CONVERTED)
def test_adapters_of_llama_cpps_converter(name: str) -> None:
    loaded = load(open_model(ZOO / name / "model.gguf"), exact=True, kv="f32")
    expected = np.load(ZOO / name / "adapter.npz")["logits"]
    assert error(adapted_logits(loaded, ZOO / name / "adapter.gguf", tokens_of(name)), expected) < 1e-4


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_weights_scale_an_adapter(name: str) -> None:
    """The terms of half the weight, twice, are those of the whole."""
    loaded = load(open_model(ZOO / name / "model.gguf"), exact=True, kv="f32")
    assert loaded.adapters is not None
    found = loaded.adapters.read(ZOO / name / "adapter")
    one, two = (LoadedAdapter(str(i), "", loaded.executor.place_adapter(found.terms)) for i in range(2))
    row = Row(loaded.cache.new(), tokens_of(name), 3, adapter=AdapterMix(((one, 0.25), (two, 0.75))))
    expected = np.load(ZOO / name / "adapter.npz")["logits"][-3:]
    assert error(loaded.forward([row]), expected) < 1e-4
    assert error(adapted_logits(loaded, ZOO / name / "adapter", tokens_of(name), 0.0)[-3:], expected) > 0.05


def test_keys_stand_for_values(tmp_path: Path) -> None:
    loaded = load(open_model(ZOO / "llama" / "model.gguf"))
    assert loaded.adapters is not None
    read = loaded.adapters.read
    first = read(ZOO / "llama" / "adapter").key
    assert first == read(ZOO / "llama" / "adapter" / "adapter_config.json").key
    folder = shutil.copytree(ZOO / "llama" / "adapter", tmp_path / "a")
    edit(folder, lora_alpha=8)
    assert read(folder).key != first


# What does not fit


def edit(folder: Path, **changed: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ZOO / "llama" / "adapter", tmp_path / "adapter"))


@pytest.fixture(scope="module")
def llama() -> Loaded:
    return load(open_model(ZOO / "llama" / "model.gguf"))


def refused(loaded: Loaded, path: Path, why: str) -> None:
    assert loaded.adapters is not None
    with pytest.raises(fb.FewbitError, match=why) as caught:
        loaded.adapters.read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"use_dora": True}, "DoRA is not supported"),
        ({"use_qalora": True}, "QALoRA is not supported"),
        ({"lora_bias": True}, "LoRA with biases"),
        ({"alora_invocation_tokens": [1]}, "activated LoRA"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "LoRA of parameters such as fused experts"),
        ({"trainable_token_indices": [1]}, "training of single tokens"),
        ({"layer_replication": [[0, 1]]}, "replication of layers"),
        ({"bias": "all"}, "adapters that train biases"),
        ({"peft_type": "IA3"}, "adapters of type 'IA3' are not supported; 'LORA' is"),
        ({"peft_type": None}, "adapters of type None"),
        ({"r": 0}, "r must be a whole number from 1 to 8192, it is 0"),
        ({"r": 4}, "the rank of .* is 3, adapter_config.json says 4"),
        ({"rank_pattern": {"q_proj": 7}}, "is 3, adapter_config.json says 7"),
        ({"rank_pattern": {".*q_proj": 7}}, "the regular expression '.*q_proj' is not supported"),
        ({"rank_pattern": [1]}, "rank_pattern must be an object"),
        ({"lora_alpha": "x"}, "lora_alpha must be a number, it is 'x'"),
        ({"lora_alpha": 10**400}, "lora_alpha must be a number"),
        ({"alpha_pattern": {"q_proj": None}}, "alpha_pattern must be a number"),
    ],
    ids=str,
)
def test_configs_that_are_refused(llama: Loaded, folder: Path, changed: dict[str, Any], why: str) -> None:
    edit(folder, **changed)
    refused(llama, folder, why)


def write_tensors(folder: Path, change: Any) -> None:
    """The folder's tensors after `change`, a function of their dictionary."""
    path = folder / "adapter_model.safetensors"
    tensors = {name: read_safetensors(path)[name].dequantize() for name in read_safetensors(path)}
    change(tensors)
    header, data = {}, b""
    for name, values in tensors.items():
        raw = np.ascontiguousarray(values, np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t.pop(f"{Q}.lora_A.weight"), "lora_A of .* is missing"),
        (lambda t: t.pop(f"{Q}.lora_B.weight"), "lora_B of .* is missing"),
        (lambda t: t.update({f"{Q}.lora_A.weight": np.zeros((3, 8))}), r"of 64 x 8, the model's has 64 x 32"),
        (lambda t: t.update({f"{Q}.lora_B.weight": np.zeros((60, 3))}), r"of 60 x 32|does not fit"),
        (lambda t: t.update({f"{Q}.lora_B.weight": np.zeros((64, 5))}), "adapter_config.json says 3"),
        (lambda t: t.update({f"{Q}.lora_A.weight": np.zeros((5, 32))}), "must have the same rank"),
        (lambda t: t.update({f"{Q}.lora_A.weight": np.zeros(3)}), "must be matrices"),
        (lambda t: t.update({f"{Q}.lora_A.weight": np.full((3, 32), np.nan)}), "A holds values that are not finite"),
        (lambda t: t.update({f"{Q}.lora_magnitude_vector": np.zeros(64)}), "no part of plain LoRA"),
        (lambda t: t.update({"base_model.model.model.norm.weight": np.ones(32)}), "no matrix that adapters can change"),
        (lambda t: t.update({"base_model.model.lm_head.weight": np.ones((9, 32))}), "of 9 x 32, the model's has"),
        (lambda t: t.clear(), "the adapter changes nothing"),
        (
            lambda t: t.update({f"{Q}s.lora_A.weight": np.zeros((3, 32)), f"{Q}s.lora_B.weight": np.zeros((64, 3))}),
            "is not in the model; is the adapter for another model",
        ),
    ],
)
def test_tensors_that_are_refused(llama: Loaded, folder: Path, change: Any, why: str) -> None:
    write_tensors(folder, change)
    refused(llama, folder, why)


def test_files_that_are_refused(llama: Loaded, folder: Path, tmp_path: Path) -> None:
    refused(llama, tmp_path / "nothing", "there is no such file or folder")
    refused(llama, tmp_path, "there is no adapter_config.json in it")
    refused(llama, ZOO / "llama" / "model.gguf", "not an adapter: general.type is 'model'")
    refused(llama, ZOO / "qwen2" / "adapter", "the model's has|not in the model|does not fit")
    refused(llama, ZOO / "gemma2" / "adapter.gguf", "the adapter is for 'gemma2' models, this is 'llama'")
    whole = (folder / "adapter_model.safetensors").read_bytes()
    (folder / "adapter_model.safetensors").write_bytes(whole[: len(whole) // 2])
    refused(llama, folder, "the download may be incomplete")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    refused(llama, folder, "is a pickle")
    (folder / "adapter_config.json").write_text("{")
    refused(llama, folder, "not valid JSON")


@pytest.mark.parametrize(
    ("metadata", "drop", "why"),
    [
        ({"adapter.type": "control_vector"}, "", "adapters of type 'control_vector' are not supported"),
        ({"adapter.alora.invocation_tokens": [1, 2]}, "", "activated LoRA"),
        ({"adapter.lora.alpha": "a"}, "", "adapter.lora.alpha must be a number"),
        ({"general.architecture": 5}, "", "general.architecture must be a name"),
        ({}, "blk.0.attn_q.weight.lora_b", "blk.0.attn_q.weight.lora_b' is missing beside"),
        ({}, "blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_a' is missing beside"),
    ],
)
def test_gguf_files_that_are_refused(
    llama: Loaded, tmp_path: Path, metadata: dict[str, Any], drop: str, why: str
) -> None:
    file = fb.read_gguf(ZOO / "llama" / "adapter.gguf")
    tensors = {name: tensor for name, tensor in file.tensors.items() if name != drop}
    fb.write_gguf(tmp_path / "a.gguf", {**file.metadata, **metadata}, tensors)
    refused(llama, tmp_path / "a.gguf", why)
    with_norm = {**tensors, "blk.0.attn_norm.weight": np.ones(32, np.float32)}
    if not drop and not metadata:
        fb.write_gguf(tmp_path / "b.gguf", {**file.metadata}, with_norm)
        refused(llama, tmp_path / "b.gguf", "changes of norms are not supported")


def test_damaged_files_are_refused_or_read(llama: Loaded, folder: Path) -> None:
    """Bytes that change at random never do more than raise an error of ours."""
    random = np.random.default_rng(0)
    assert llama.adapters is not None
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        whole = (folder / name).read_bytes()
        for _ in range(60):
            damaged = bytearray(whole)
            damaged[int(random.integers(min(len(whole), 3000)))] = int(random.integers(256))
            (folder / name).write_bytes(damaged)
            with suppress(fb.FewbitError):
                llama.adapters.read(folder)
        (folder / name).write_bytes(whole)


def test_names_become_those_of_the_model() -> None:
    file = open_model(ZOO / "phi3" / "model.gguf")
    named = gguf_names(read_adapter(ZOO / "phi3" / "adapter"), file)
    assert named.architecture == "phi3"
    assert {"blk.0.attn_qkv.weight", "blk.1.ffn_up.weight"} <= named.factors.keys()
    family = find_family("llama")
    assert family is not None
    config = transformers_config(family, {"attention.head_count": 4, "attention.head_count_kv": 2, "block_count": 3})
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["num_hidden_layers"]) == (4, 2, 3)

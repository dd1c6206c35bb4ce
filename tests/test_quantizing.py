"""Quantizing when a model is loaded: formats by tensor, memory by chunks, and a file that is found again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit import quantizing
from fewbit.errors import DataError, DtypeError, FileError, FormatError, OutOfMemory, PathError
from fewbit.files.hub import folder as cache
from fewbit.models import open_model
from fewbit.quantizing import MIXES, choose, known_formats, quantized, read_mix

from .files.safetensors_bytes import packed

ZOO = Path(__file__).parent / "zoo"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEWBIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "quantized"


def test_every_matrix_is_packed_and_the_rest_is_f32() -> None:
    file = open_model(ZOO / "llama" / "hf")
    made = quantized(file, "q8_0")
    assert (made.architecture, sorted(made.tensors)) == ("llama", sorted(file.tensors))
    for name, tensor in made.tensors.items():
        given = file.tensors[name]
        expected = fb.quantize(given.dequantize(), "q8_0") if len(given.shape) > 1 else None
        assert tensor == expected if expected is not None else tensor.format.name == "f32"
    assert {key: made.config[key] for key in file.config} == pytest.approx(file.config)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = quantized(open_model(ZOO / name / "hf"), "q4_0", keep=False)
    monkeypatch.setattr(quantizing, "CHUNK_VALUES", 100)
    parts = quantized(open_model(ZOO / name / "hf"), "q4_0", keep=False)
    assert all(parts.tensors[name] == tensor for name, tensor in whole.tensors.items())


def test_it_is_made_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int, int | None]] = []
    made = quantized(open_model(ZOO / "llama" / "hf"), "Q8_0", progress=lambda *call: calls.append(call))
    assert made.path.is_relative_to(home)
    assert made.path.name == "hf-q8_0.gguf"
    assert calls[0] == ("quantizing to q8_0", 0, calls[0][2])
    assert calls[-1] == ("quantizing to q8_0", calls[0][2], calls[0][2])
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)
    monkeypatch.setattr(quantizing, "_write", None)
    assert quantized(open_model(ZOO / "llama" / "hf"), "q8_0").path == made.path


def test_a_damaged_file_is_made_again_and_another_model_is_another_file() -> None:
    made = quantized(open_model(ZOO / "llama" / "hf"), "q8_0")
    made.path.write_bytes(b"GGUF")
    again = quantized(open_model(ZOO / "llama" / "hf"), "q8_0")
    assert again.path == made.path
    assert len(again.tensors) == 21
    assert quantized(open_model(ZOO / "llama-linear" / "hf"), "q8_0").path != made.path
    assert quantized(open_model(ZOO / "llama" / "hf"), "q4_0").path != made.path


def test_a_changed_tokenizer_is_another_file(tmp_path: Path) -> None:
    folder = shutil.copytree(ZOO / "llama" / "hf", tmp_path / "model")
    made = quantized(open_model(folder), "q8_0")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": "mended"}))
    again = quantized(open_model(folder), "q8_0")
    assert again.path != made.path
    assert again.tokenizer()["tokenizer.chat_template"] == "mended"


def test_not_kept(home: Path) -> None:
    made = quantized(open_model(ZOO / "llama" / "hf"), "q8_0", keep=False)
    assert made.tensors["output.weight"].dequantize().shape == (288, 32)
    assert not list(home.rglob("*.gguf"))


def test_a_gguf_file_too() -> None:
    made = quantized(open_model(ZOO / "llama" / "model.gguf"), "q8_0")
    assert made.tensors["output.weight"].format.name == "q8_0"
    with pytest.raises(FileError, match="quantized already, mostly to q8_0; format is for models in f32"):
        quantized(made, "q4_0")


def test_formats_of_a_mix() -> None:
    mix = MIXES["q4_k_m"]
    shapes = {"blk.3.attn_v.weight": (8, 256), "blk.3.attn_q.weight": (8, 256), "token_embd.weight": (8, 256)}
    assert [choose(mix, name, shape, 16, False).name for name, shape in shapes.items()] == ["q4_k"] * 3
    assert choose(mix, "token_embd.weight", (8, 256), 16, True).name == "q6_k"
    assert choose(mix, "blk.15.attn_v.weight", (8, 256), 16, True).name == "q6_k"
    assert choose(mix, "blk.0.ffn_down_exps.weight", (4, 8, 256), 16, True).name == "q6_k"
    assert choose(mix, "blk.0.ffn_gate_inp.weight", (4, 256), 16, True).name == "f32"
    assert choose(mix, "blk.0.attn_q.weight", (4, 32), 16, True).name == "q8_0"
    assert choose(mix, "blk.0.attn_q.weight", (4, 33), 16, True).name == "f16"


@pytest.mark.parametrize("name", known_formats())
def test_every_format_can_be_loaded(name: str) -> None:
    made = quantized(open_model(ZOO / "llama" / "hf"), name, keep=False)
    assert made.tensors["blk.0.attn_q.weight"].format.name in (read_mix(name)[1].usual, "q8_0")


def test_wrong_formats() -> None:
    with pytest.raises(FormatError, match=r"no format 'q9' to load a model in; there are: q3_k_m, .*q4_k_m.*q8_0"):
        read_mix("q9")
    with pytest.raises(FormatError, match="no format 'int8'"):
        read_mix("int8")
    with pytest.raises(DtypeError, match='a name like "q4_k_m", not int'):
        read_mix(3)


def write_checkpoint(folder: Path, value: float) -> Path:
    shutil.copytree(ZOO / "llama" / "hf", folder)
    weights = np.full((4, 32), value, np.float32)
    (folder / "model.safetensors").write_bytes(packed({"model.embed_tokens.weight": weights}))
    return folder


def test_numbers_that_cannot_be_packed(tmp_path: Path, home: Path) -> None:
    file = open_model(write_checkpoint(tmp_path / "m", np.inf))
    with pytest.raises(DataError, match=r"tensor token_embd.weight cannot be quantized: "):
        quantized(file, "q8_0")
    assert not [path for path in home.rglob("*") if path.is_file()]


def test_too_little_memory_or_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = open_model(write_checkpoint(tmp_path / "m", 1.0))

    def full(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(quantizing, "_encoded", full)
        with pytest.raises(OutOfMemory, match=r"no memory to quantize tensor token_embd.weight; close other programs"):
            quantized(file, "q8_0")
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))  # type: ignore[attr-defined]
    with pytest.raises(PathError, match=r"m-q8_0.gguf needs 136 bytes, the disk has 0 left"):
        quantized(file, "q8_0")


def test_llm(tmp_path: Path) -> None:
    calls: list[str] = []
    with fb.LLM(ZOO / "llama" / "hf", format="q8_0", progress=lambda what, *_: calls.append(what)) as llm:
        assert llm.model_name == "hf"
        first = llm.generate("the ring", max_tokens=8, temperature=0)
    assert set(calls) == {"quantizing to q8_0"}
    with fb.LLM(ZOO / "llama" / "hf", format="q8_0") as llm:
        assert llm.generate("the ring", max_tokens=8, temperature=0).tokens == first.tokens
    with pytest.raises(DtypeError, match="keep must be True or False"):
        fb.LLM(ZOO / "llama" / "hf", format="q8_0", keep="no")  # type: ignore[arg-type]

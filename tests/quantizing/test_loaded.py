"""Quantizing when a model is loaded: formats by tensor, memory by chunks, and a file that is found again."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.errors import DataError, DtypeError, FileError, FormatError, OutOfMemory, PathError
from fewbit.files.hub import folder as cache
from fewbit.formats import all_formats, get
from fewbit.models import open_model
from fewbit.quantizing import MIXES, known_formats, loaded, pieces, quantized, read_mix
from fewbit.quantizing.mixes import FALLBACKS, ModelSizes, choose, fitting

from ..files.safetensors_bytes import packed
from ..models.random_llama import llama

ZOO = Path(__file__).parents[1] / "zoo"


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
    whole = quantized(open_model(ZOO / name / "hf"), "q8_0", keep=False)
    monkeypatch.setattr(pieces, "CHUNK_VALUES", 100)
    parts = quantized(open_model(ZOO / name / "hf"), "q8_0", keep=False)
    assert all(parts.tensors[name] == tensor for name, tensor in whole.tensors.items())


def test_it_is_made_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int, int | None]] = []
    made = quantized(open_model(ZOO / "llama" / "hf"), "Q8_0", progress=lambda *call: calls.append(call))
    assert made.path.is_relative_to(home)
    assert made.path.name == "hf-q8_0.gguf"
    assert calls[0] == ("quantizing to q8_0", 0, calls[0][2])
    assert calls[-1] == ("quantizing to q8_0", calls[0][2], calls[0][2])
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)
    monkeypatch.setattr(loaded, "write_tensors", None)
    assert quantized(open_model(ZOO / "llama" / "hf"), "q8_0").path == made.path


def test_a_damaged_file_is_made_again_and_another_model_is_another_file() -> None:
    made = quantized(open_model(ZOO / "llama" / "hf"), "q8_0")
    made.path.write_bytes(b"GGUF")
    again = quantized(open_model(ZOO / "llama" / "hf"), "q8_0")
    assert again.path == made.path
    assert len(again.tensors) == 21
    assert quantized(open_model(ZOO / "llama-linear" / "hf"), "q8_0").path != made.path
    assert quantized(open_model(ZOO / "llama" / "hf"), "f16").path != made.path


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


def test_without_keep_a_kept_file_is_used_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = quantized(open_model(ZOO / "llama" / "hf"), "q8_0")
    monkeypatch.setattr(loaded, "write_tensors", None)
    assert quantized(open_model(ZOO / "llama" / "hf"), "q8_0", keep=False).path == kept.path
    assert kept.path.exists()


def test_without_keep_a_damaged_file_stays_as_it_is() -> None:
    kept = quantized(open_model(ZOO / "llama" / "hf"), "q8_0")
    kept.path.write_bytes(b"GGUF")
    made = quantized(open_model(ZOO / "llama" / "hf"), "q8_0", keep=False)
    assert len(made.tensors) == 21
    assert kept.path.read_bytes() == b"GGUF"
    assert sorted(path.name for path in kept.path.parent.iterdir()) == ["hf-q8_0.gguf"]


def test_a_gguf_file_too() -> None:
    made = quantized(open_model(ZOO / "llama" / "model.gguf"), "q8_0")
    assert made.tensors["output.weight"].format.name == "q8_0"
    with pytest.raises(FileError, match="quantized already, mostly to q8_0; format is for models in f32"):
        quantized(made, "q4_0")


def test_the_format_of_most_weights_is_named(tmp_path: Path) -> None:
    metadata, tensors = llama(vocab=300, layers=8, format="q4_1")  # the embeddings are the largest of all matrices
    tensors["token_embd.weight"] = fb.quantize(tensors["token_embd.weight"], "q8_0")
    fb.write_gguf(tmp_path / "mixed.gguf", metadata, tensors)
    with pytest.raises(FileError, match="quantized already, mostly to q4_1;"):
        quantized(open_model(tmp_path / "mixed.gguf"), "q4_0")


def test_formats_of_a_mix() -> None:
    mix = MIXES["q4_k_m"]
    shapes = {"blk.3.attn_v.weight": (8, 256), "blk.3.attn_q.weight": (8, 256), "token_embd.weight": (8, 256)}
    assert [choose(mix, name, shape, ModelSizes(16)).name for name, shape in shapes.items()] == ["q4_k"] * 3
    assert choose(mix, "token_embd.weight", (8, 256), ModelSizes(16, is_tied=True)).name == "q6_k"
    assert choose(mix, "blk.15.attn_v.weight", (8, 256), ModelSizes(16, is_tied=True)).name == "q6_k"
    assert choose(mix, "blk.0.ffn_down_exps.weight", (4, 8, 256), ModelSizes(16, is_tied=True)).name == "q6_k"
    assert choose(mix, "blk.0.ffn_gate_inp.weight", (4, 256), ModelSizes(16, is_tied=True)).name == "f32"


def test_embeddings_stay_when_a_format_is_for_trained_weights() -> None:
    mix = read_mix("tq2_0")[1]
    names = ["token_embd.weight", "output.weight", "blk.0.attn_v.weight"]
    assert [choose(mix, name, (8, 256), ModelSizes(4)).name for name in names] == ["q4_k", "q6_k", "tq2_0"]


@pytest.mark.parametrize("name", [name for name in known_formats() if name not in MIXES])
def test_formats_fall_back_to_smaller_blocks(name: str) -> None:
    fmt = get(name)
    fallback = fitting(fmt, 32 * 3)
    assert fallback == (fmt if fmt.block <= 32 else get(FALLBACKS[name]))
    assert fmt.bits_per_weight <= fallback.bits_per_weight < fmt.bits_per_weight + 3.4
    assert fitting(fmt, 33).name == (name if fmt.block == 1 else "f16")
    assert fitting(fmt, 256) == fmt


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose matrices are 576 values wide, and some of them 1536: no multiple of 256, and one."""
    path = tmp_path_factory.mktemp("narrow") / "narrow.gguf"
    shapes = {"hidden": 576, "feed_forward": 1536, "heads": 9, "kv_heads": 3, "vocab": 300, "layers": 4}
    fb.write_gguf(path, *llama(format="f16", tied=True, **shapes))  # type: ignore[arg-type]
    return path


def bits_per_weight(file: Any) -> float:
    shapes = [info.shape for info in file.infos.values()]
    return 8 * sum(tensor.nbytes for tensor in file.tensors.values()) / sum(int(np.prod(shape)) for shape in shapes)


@pytest.mark.parametrize(
    ("name", "bits", "fallback"),
    [("q3_k_m", 5.0, "q4_0"), ("q4_k_m", 6.5, "q5_0"), ("q4_k", 5.6, "q5_0"), ("q5_k_m", 7, "q5_1"),
     ("q2_k", 4.4, "q4_0"), ("iq4_xs", 4.6, "iq4_nl"), ("q6_k", 8.2, "q8_0")],
)  # fmt: skip
def test_widths_that_are_no_multiple_of_256(narrow: Path, name: str, bits: float, fallback: str) -> None:
    with pytest.warns(UserWarning, match=f"^{name}: .* matrices fall back, since") as caught:
        made = quantized(open_model(narrow), name)
    assert bits_per_weight(made) < bits
    assert f"{bits_per_weight(made):.2f} bits per weight" in str(caught[0].message)
    assert len(caught) == 1
    assert made.tensors["blk.1.attn_q.weight"].format.name == fallback
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantized(open_model(narrow), name)  # found: nothing falls back


def test_fallbacks_are_counted(narrow: Path) -> None:
    expected = (
        "q4_k_m: 25 of 29 matrices fall back, since their rows are not whole blocks: 22 from q4_k to q5_0, "
        "3 from q6_k to q8_0; the model takes "
    )
    with pytest.warns(UserWarning, match=expected):
        quantized(open_model(narrow), "q4_k_m")


@pytest.mark.parametrize("name", [name for name in known_formats() if get(read_mix(name)[1].usual).made_for])
def test_formats_for_trained_weights_warn_of_other_models(tmp_path: Path, name: str) -> None:
    metadata, tensors = llama(hidden=256, feed_forward=512, format="f16")
    fb.write_gguf(tmp_path / "usual.gguf", metadata, tensors)
    made_for = all_formats()[name].made_for
    for _ in range(2):  # also when it is found in the cache
        with pytest.warns(UserWarning, match=f"{name} is made for {made_for}: .* change by .*%.*q4_k_m") as caught:
            quantized(open_model(tmp_path / "usual.gguf"), name)
        assert len(caught) == 1


@pytest.mark.parametrize("name", ["q1_0", "q2_0", "tq1_0", "tq2_0"])
def test_models_trained_in_a_format_lose_nothing(tmp_path: Path, name: str) -> None:
    metadata, tensors = llama(hidden=256, feed_forward=512, format="f32")
    for key, tensor in tensors.items():
        if key.startswith("blk.") and len(tensor.shape) > 1:
            signs = np.sign(np.asarray(tensor))
            zeros = 0 if name == "q1_0" else abs(np.asarray(tensor)) < 0.02
            tensors[key] = np.where(zeros, 0, signs * 0.03125).astype(np.float32)
    fb.write_gguf(tmp_path / "trained.gguf", metadata, tensors)
    made = quantized(open_model(tmp_path / "trained.gguf"), name)  # a warning would be an error
    assert made.tensors["blk.0.attn_q.weight"].format.name == name
    assert np.array_equal(made.tensors["blk.0.attn_q.weight"], tensors["blk.0.attn_q.weight"])


@pytest.mark.parametrize("name", known_formats())
@pytest.mark.filterwarnings("ignore:.*fall back", "ignore:.*is made for")
def test_every_format_can_be_loaded(name: str) -> None:
    made = quantized(open_model(ZOO / "llama" / "hf"), name, keep=False)
    assert made.tensors["blk.0.attn_q.weight"].format == fitting(get(read_mix(name)[1].usual), 32)


def test_wrong_formats() -> None:
    with pytest.raises(FormatError, match=r"no format 'q9' to quantize a model to; there are: iq1_s, .*q4_k_m.*q8_0"):
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


def test_numbers_that_cannot_be_packed_in_a_sample(tmp_path: Path) -> None:
    metadata, tensors = llama(hidden=256, feed_forward=512, format="f32")
    weights = np.asarray(tensors["blk.0.attn_q.weight"])
    weights[3, 5] = np.nan
    fb.write_gguf(tmp_path / "nan.gguf", metadata, tensors | {"blk.0.attn_q.weight": weights})
    with pytest.raises(DataError, match=r"tensor blk.0.attn_q.weight cannot be quantized: "):
        quantized(open_model(tmp_path / "nan.gguf"), "tq2_0")


def test_too_little_memory_or_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = open_model(write_checkpoint(tmp_path / "m", 1.0))

    def full(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(pieces, "packed_chunk", full)
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

"""What is read from model files, and which files are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.errors import FileError, MissingError, ShapeError
from fewbit.files.model import ModelFile
from fewbit.models import load_model, open_model
from fewbit.models.checkpoint import Checkpoint
from fewbit.ops.specs import AttentionSpec

from .random_llama import llama


def opened(folder: Path, metadata: dict[str, Any], tensors: dict[str, Any]) -> ModelFile:
    fb.write_gguf(folder / "model.gguf", metadata, tensors)
    return open_model(folder / "model.gguf")


def test_loaded(tmp_path: Path) -> None:
    loaded = load_model(opened(tmp_path, *llama(layers=3, attention__sliding_window=7)))
    assert loaded.config is loaded.model.config
    assert (loaded.config.vocab, loaded.config.ctx, loaded.config.layers) == (61, 512, 3)
    assert loaded.graph.specs == (AttentionSpec(2, 16, 16, window=7),) * 3
    assert loaded.graph.result.width == 61


def test_values_of_another_length_than_keys(tmp_path: Path) -> None:
    metadata, tensors = llama(attention__key_length=16, attention__value_length=8, layers=1)
    rows = np.ones((16, 64), np.float32)
    tensors |= {"blk.0.attn_v.weight": rows, "blk.0.attn_output.weight": np.ones((64, 32), np.float32)}
    assert load_model(opened(tmp_path, metadata, tensors)).graph.specs == (AttentionSpec(2, 16, 8),)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_step_reads_all_but_a_table_of_embeddings(tmp_path: Path, tied: bool) -> None:
    file = opened(tmp_path, *llama(tied=tied, biases=True))
    total = sum(tensor.nbytes for tensor in file.tensors.values())
    table = 0 if tied else file.tensors["token_embd.weight"].nbytes
    assert load_model(file).step_bytes == total - table


def test_a_row_of_a_matrix(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    file = Checkpoint(opened(tmp_path, {"general.architecture": "llama"}, {"rows": rows}))
    np.testing.assert_array_equal(file.row("rows", 4, 1), rows[1])
    assert file.step_bytes == 16
    for columns, number, words in ((5, 0, "must be any x 5"), (4, 3, "must have 4 rows")):
        with pytest.raises(ShapeError, match=words):
            file.row("rows", columns, number)


def test_what_is_prepared(tmp_path: Path) -> None:
    """Matrices that inputs are multiplied by, and no others."""
    file, prepared = opened(tmp_path, *llama(layers=1)), []

    def prepare(w: fb.QuantTensor) -> fb.QuantTensor:
        prepared.append(w.shape)
        return fb.QuantTensor.from_bytes(w.to_bytes(), w.shape, w.format)

    model: Any = load_model(file, prepare).model
    attention, feed_forward = [(64, 64), (32, 64), (32, 64), (64, 64)], [(96, 64), (96, 64), (64, 96)]
    assert prepared == [*attention, *feed_forward, (61, 64)]
    assert np.array_equal(model.blk[0].ffn.ffn_up.weight.dequantize(), file.tensors["blk.0.ffn_up.weight"].dequantize())


def test_parts_of_a_fused_tensor_share_its_bytes(tmp_path: Path) -> None:
    tensors = {"ab.weight": np.arange(96, dtype=np.float32).reshape(6, 16), "ab.bias": np.arange(6, dtype=np.float32)}
    model = opened(tmp_path, {"general.architecture": "a"}, tensors)
    file, shared = Checkpoint(model), model.tensors["ab.weight"].stored
    first, second = (file.weight("ab.weight", 6, 16, part) for part in ((0, 4), (4, 6)))
    assert (first.shape, second.shape) == ((4, 16), (2, 16))
    assert np.shares_memory(first.stored, shared)
    assert np.shares_memory(second.stored, shared)
    np.testing.assert_array_equal(second.dequantize(), tensors["ab.weight"][4:])
    assert file.vector("ab.bias", 6, (4, 6)).tolist() == [4, 5]
    assert file.step_bytes == 4 * (96 + 2)
    with pytest.raises(ShapeError, match=r"ab\.weight must be 5 x 16, it is 6 x 16"):
        file.weight("ab.weight", 5, 16, (0, 2))


def test_hyperparameters_of_each_layer(tmp_path: Path) -> None:
    metadata = {
        "general.architecture": "a",
        "a.one": 3,
        "a.two": np.array([4, 5], np.int32),
        "a.slides": np.array([True, False]),
        "a.on": False,
    }
    file = Checkpoint(opened(tmp_path, metadata, {}))
    assert (file.sizes("one", 2), file.sizes("two", 2), file.sizes("none", 2, default=7)) == ([3, 3], [4, 5], [7, 7])
    assert (file.flags("slides", 2), file.flags("one", 4)) == ([True, False], [True, True, False, True])
    assert (file.flag("on", True), file.flag("none", True)) == (False, True)
    for wrong in (lambda: file.sizes("two", 3), lambda: file.sizes("two", 2, least=5), lambda: file.sizes("slides", 2)):
        with pytest.raises(FileError, match=r"must be . whole numbers from . to .*, one for each layer, it is \["):
            wrong()
    for key, layers in (("slides", 3), ("two", 2)):
        with pytest.raises(FileError, match=f"{key} must be true or false for each of {layers} layers"):
            file.flags(key, layers)
    with pytest.raises(FileError, match=r"a\.one must be true or false, it is 3"):
        file.flag("one", True)


def test_hyperparameters(tmp_path: Path) -> None:
    metadata = {
        "general.architecture": "a",
        "a.size": 3,
        "a.sizes": np.array([4, 4], np.int32),
        "a.number": 2.5,
        "a.word": "b",
        "a.flag": True,
    }
    file = Checkpoint(opened(tmp_path, metadata, {}))
    assert (file.size("size"), file.size("sizes"), file.size("none", default=9)) == (3, 4, 9)
    assert (file.number("number"), file.number("size"), file.word("word", "c")) == (2.5, 3.0, "b")
    assert (file.has("size"), file.has("a.size")) == (True, False)
    for read in (file.size, file.number):
        with pytest.raises(FileError, match=r"a\.flag must be a .*number.*, it is True"):
            read("flag")
    with pytest.raises(FileError, match=r"a\.size must be a whole number from 4 to"):
        file.size("size", least=4)
    with pytest.raises(FileError, match=r"a\.size must be a word, it is 3"):
        file.word("size", "c")
    with pytest.raises(MissingError, match=r"a\.none is missing"):
        file.number("none")


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "near": ({"general.architecture": "qwen4"}, {}, FileError, "'qwen4' is not known, .* is 'qwen3'; .*docs/adding"),
    "far": ({"general.architecture": "xyz"}, {}, FileError, "'xyz' is not known, known are: .*llama.*docs/adding"),
    "no architecture": ({"general.architecture": 3}, {}, FileError, "must be a name, it is 3"),
    "part": ({"general.architecture": "checkpoint"}, {}, FileError, "'checkpoint' is not known"),
    "no sizes": ({"llama.block_count": None}, {}, MissingError, "llama.block_count is missing"),
    "no layers": ({"llama.block_count": 0}, {}, FileError, "llama.block_count must be a whole number from 1"),
    "many layers": ({"llama.block_count": 3}, {}, MissingError, "tensor blk.2.attn_q.weight is missing"),
    "few layers": ({"llama.block_count": 1}, {}, FileError, "do not have: blk.1.attn_norm.weight.* and 6 more"),
    "word": ({"llama.embedding_length": "64"}, {}, FileError, "must be a whole number .*, it is '64'"),
    "negative": ({"llama.embedding_length": -64}, {}, FileError, "must be a whole number"),
    "huge": ({"llama.embedding_length": 1 << 40}, {}, FileError, "must be a whole number"),
    "shape": ({"llama.embedding_length": 128}, {}, ShapeError, "blk.0.attn_q.weight must be 128 x 128, it is 64 x 64"),
    "heads": ({"llama.attention.head_count_kv": 3}, {}, FileError, "4 heads cannot share 3 heads"),
    "uneven": ({"llama.attention.head_count": 5, "llama.attention.head_count_kv": 5}, {}, FileError, "evenly"),
    "layers differ": (
        {"llama.attention.head_count_kv": np.array([2, 1], np.int32)}, {}, FileError, "the same number for all layers",
    ),
    "eps": ({"llama.attention.layer_norm_rms_epsilon": -1.0}, {}, FileError, "a number of at least 0"),
    "nan": ({"llama.rope.freq_base": float("nan")}, {}, FileError, "rope.freq_base must be a number"),
    "rope": ({"llama.rope.dimension_count": 17}, {}, FileError, "must be even and at most 16, it is 17"),
    "scaling": ({"llama.rope.scaling.type": "ntk"}, {}, FileError, "'ntk' is not supported; .*longrope"),
    "no factors": ({"llama.rope.scaling.type": "longrope"}, {}, MissingError, "rope_factors_short.weight is missing"),
    "experts": ({"llama.expert_count": 8}, {}, MissingError, "llama.expert_used_count is missing"),
    "more experts used than there are": (
        {"llama.expert_count": 8, "llama.expert_used_count": 9}, {}, FileError, "a whole number from 1 to 8",
    ),
    "groups of experts": (
        {"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_group_count": 3}, {}, FileError,
        "2 of 8 experts cannot be chosen from 1 of 3 groups",
    ),
    "scores of experts": (
        {"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_gating_func": 9}, {}, FileError,
        "expert_gating_func must be 1 to 3, it is 9",
    ),
    "no matrices of experts": (
        {"llama.expert_count": 8, "llama.expert_used_count": 2}, {}, MissingError, "ffn_gate_inp.weight is missing",
    ),
    "missing": ({}, {"output_norm.weight": None}, MissingError, "tensor output_norm.weight is missing"),
    "extra": ({}, {"blk.0.attn_q_norm.weight": np.ones(16, np.float32)}, FileError, "do not have: blk.0.attn_q_norm"),
    "matrix": ({}, {"output_norm.weight": np.ones((2, 32), np.float32)}, ShapeError, "must hold 64 values"),
    "vector": ({}, {"output.weight": np.ones(64, np.float32)}, ShapeError, "must be 61 x 64, it is 64"),
    "freqs": ({}, {"rope_freqs.weight": np.zeros(8, np.float32)}, FileError, "must hold positive numbers"),
}  # fmt: skip


@pytest.mark.parametrize(("metadata", "tensors", "kind", "text"), WRONG.values(), ids=WRONG.keys())
def test_wrong_files(
    tmp_path: Path, metadata: dict[str, Any], tensors: dict[str, Any], kind: type[Exception], text: str
) -> None:
    known, weights = llama()
    for target, changes in ((known, metadata), (weights, tensors)):
        for name, value in changes.items():
            if value is None:
                del target[name]
            else:
                target[name] = value
    with pytest.raises(kind, match=text):
        load_model(opened(tmp_path, known, weights))

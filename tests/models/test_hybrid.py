"""Models with recurrent layers: what else their files may hold, and which files are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.devices.batch import Row
from fewbit.errors import FileError, MissingError, ShapeError
from fewbit.models import load_model, open_model
from fewbit.ops.specs import AttentionSpec, RecurrentSpec

from ..loading import load

ZOO = Path(__file__).parents[1] / "zoo"
TOKENS = [5, 17, 3, 200, 5, 9, 41]


def changed(folder: Path, name: str, metadata: dict[str, Any], tensors: dict[str, Any] | None = None) -> Path:
    """A model of the zoo with other values; None leaves one out."""
    file = fb.read_gguf(ZOO / name / "model.gguf")
    values = dict(file.metadata) | {f"{name}.{key}": value for key, value in metadata.items()}
    kept = dict(file.tensors) | (tensors or {})
    path = folder / "model.gguf"
    fb.write_gguf(
        path,
        {key: value for key, value in values.items() if value is not None},
        {key: value for key, value in kept.items() if value is not None},
    )
    return path


def logits(path: Path, device: str, **options: Any) -> Floats:
    loaded = load(open_model(path), device=device, kv="f32", **options)
    return loaded.forward([Row(loaded.cache.new(), TOKENS, len(TOKENS))]).copy()


def test_what_layers_keep() -> None:
    conv, state = 4 * 128 * 3, 4 * 4 * 16 * 16
    specs = load_model(open_model(ZOO / "qwen35/model.gguf")).graph.specs
    assert specs == (*[RecurrentSpec(conv + state)] * 3, AttentionSpec(1, 16, 16))
    specs = load_model(open_model(ZOO / "lfm2/model.gguf")).graph.specs
    assert specs == (RecurrentSpec(4 * 32 * 2), AttentionSpec(1, 16, 16), RecurrentSpec(4 * 32 * 2))


def test_layers_that_draft_are_left_out(tmp_path: Path) -> None:
    draft = {f"blk.4.{part}.weight": np.ones((32, 64), np.float32) for part in ("nextn.eh_proj", "ffn_up")}
    path = changed(tmp_path, "qwen35", {"block_count": 5, "nextn_predict_layers": 1}, draft)
    np.testing.assert_array_equal(logits(path, "numpy"), logits(ZOO / "qwen35/model.gguf", "numpy"))


def test_older_files_have_one_matrix_for_each_head(tmp_path: Path) -> None:
    """Of q, k, v and the gate, in Qwen3-Next."""
    file = fb.read_gguf(ZOO / "qwen3next/model.gguf")
    qkv, z = (file.tensors[f"blk.0.attn_{part}.weight"].dequantize() for part in ("qkv", "gate"))
    q, k, v = np.split(qkv, [32, 64])
    parts = [part.reshape(2, -1, 32) for part in (q, k, v, z)]
    tensors = {"blk.0.attn_qkv.weight": None, "blk.0.attn_gate.weight": None,
               "blk.0.ssm_in.weight": np.concatenate(parts, axis=1).reshape(-1, 32)}  # fmt: skip
    path = changed(tmp_path, "qwen3next", {}, tensors)
    expected = logits(ZOO / "qwen3next/model.gguf", "numpy")
    np.testing.assert_allclose(logits(path, "numpy"), expected, atol=1e-4)
    np.testing.assert_allclose(logits(path, "cpu", activations="exact"), expected, atol=1e-4)


def test_logits_by_a_matrix_of_their_own(tmp_path: Path) -> None:
    table = fb.read_gguf(ZOO / "lfm2/model.gguf").tensors["token_embd.weight"]
    path = changed(tmp_path, "lfm2", {}, {"output.weight": table.dequantize() * np.float32(2)})
    np.testing.assert_allclose(logits(path, "numpy"), 2 * logits(ZOO / "lfm2/model.gguf", "numpy"), rtol=1e-5)


def test_a_window(tmp_path: Path) -> None:
    path = changed(tmp_path, "lfm2", {"attention.sliding_window": 3})
    expected = logits(path, "numpy")
    assert np.abs(expected - logits(ZOO / "lfm2/model.gguf", "numpy")).max() > 0.01
    np.testing.assert_allclose(logits(path, "cpu", activations="exact"), expected, atol=1e-4)


def test_groups_have_norms_of_their_own(tmp_path: Path) -> None:
    """Two groups in a Mamba layer, whose B, C and weights of the norm are alike or not."""
    file, random = fb.read_gguf(ZOO / "granitehybrid/model.gguf"), np.random.default_rng(0)

    def twice(rows: Floats) -> Floats:  # z, x, B, C, dt; or x, B, C
        start = len(rows) - (36 if len(rows) == 164 else 32)
        b, c = rows[start : start + 16], rows[start + 16 : start + 32]
        return np.concatenate([rows[:start], b, b, c, c, rows[start + 32 :]])

    tensors: dict[str, Any] = {}
    for part in ("ssm_in.weight", "ssm_conv1d.weight", "ssm_conv1d.bias"):
        tensors[f"blk.0.{part}"] = twice(file.tensors[f"blk.0.{part}"].dequantize())
    norm = random.standard_normal((2, 32)).astype(np.float32)
    path = changed(tmp_path, "granitehybrid", {"ssm.group_count": 2}, {**tensors, "blk.0.ssm_norm.weight": norm})
    expected = logits(path, "numpy")
    np.testing.assert_allclose(logits(path, "cpu", activations="exact"), expected, atol=1e-4 * np.abs(expected).max())
    other = norm[::-1].copy()
    path = changed(tmp_path, "granitehybrid", {"ssm.group_count": 2}, {**tensors, "blk.0.ssm_norm.weight": other})
    assert np.abs(logits(path, "numpy") - expected).max() > 0.01


def test_without_experts_and_with_rope(tmp_path: Path) -> None:
    file, experts = fb.read_gguf(ZOO / "granitehybrid/model.gguf"), ["gate_inp", "gate_exps", "up_exps", "down_exps"]
    tensors: dict[str, Any] = {f"blk.{i}.ffn_{part}.weight": None for i in range(2) for part in experts}
    for i in range(2):
        for part in ("gate", "up", "down"):
            tensors[f"blk.{i}.ffn_{part}_shexp.weight"] = None
            tensors[f"blk.{i}.ffn_{part}.weight"] = file.tensors[f"blk.{i}.ffn_{part}_shexp.weight"]
    path = changed(tmp_path, "granitehybrid", {"expert_count": 0, "rope.scaling.finetuned": True}, tensors)
    expected = logits(path, "numpy")
    np.testing.assert_allclose(logits(path, "cpu", activations="exact"), expected, atol=1e-4 * np.abs(expected).max())


BAD_SHAPE = np.ones((128, 3), np.float32)
WRONG: dict[str, tuple[str, dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "groups": ("qwen35", {"ssm.group_count": 3}, {}, FileError, "cannot be shared evenly"),
    "no groups": ("qwen35", {"ssm.group_count": 0}, {}, FileError, "from 1 to"),
    "inner size": ("qwen35", {"ssm.inner_size": 66}, {}, FileError, "cannot be shared evenly"),
    "state size": ("qwen35", {"ssm.state_size": 1 << 20}, {}, FileError, "from 1 to 16384"),
    "another state size": ("qwen35", {"ssm.state_size": 8}, {}, ShapeError, "attn_qkv.weight must be"),
    "no kernel": ("qwen35", {"ssm.conv_kernel": None}, {}, MissingError, "ssm.conv_kernel is missing"),
    "long kernel": ("qwen35", {"ssm.conv_kernel": 65}, {}, FileError, "from 1 to 64"),
    "kernel": ("qwen35", {}, {"blk.0.ssm_conv1d.weight": BAD_SHAPE}, ShapeError, "must be 128 x 4, it is 128 x 3"),
    "decay": ("qwen35", {}, {"blk.0.ssm_a": np.ones(3, np.float32)}, ShapeError, "must hold 4 values"),
    "values": ("qwen35", {"attention.value_length": 8}, {}, FileError, "equally wide"),
    "no layer of both kinds": ("qwen35", {}, {"blk.0.ssm_out.weight": None}, MissingError, "attn_q.weight is missing"),
    "only drafts": ("qwen35", {"nextn_predict_layers": 4}, {}, FileError, "from 0 to 3"),
    "heads of K and V": ("lfm2", {"attention.head_count_kv": [0, 0, 0]}, {}, FileError, "2 heads cannot share 0"),
    "too few layers": ("lfm2", {"attention.head_count_kv": [0, 1]}, {}, FileError, "3 whole numbers"),
    "taps": ("lfm2", {"shortconv.l_cache": 1}, {}, FileError, "from 2 to 64"),
    "mamba heads": ("granitehybrid", {"ssm.time_step_rank": 3}, {}, FileError, "cannot be shared evenly"),
    "many chosen": ("granitehybrid", {"expert_used_count": 5}, {}, FileError, "from 1 to 4"),
    "experts": ("granitehybrid", {"expert_count": 3}, {}, ShapeError, "ffn_gate_inp.weight must be 3 x 32"),
    "no width of experts": ("qwen35moe", {"expert_shared_feed_forward_length": 16}, {}, ShapeError, "1 x 16 x 32"),
}


@pytest.mark.parametrize(("name", "metadata", "tensors", "kind", "text"), WRONG.values(), ids=WRONG.keys())
def test_wrong_files(
    tmp_path: Path, name: str, metadata: dict[str, Any], tensors: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        load_model(open_model(changed(tmp_path, name, metadata, tensors)))

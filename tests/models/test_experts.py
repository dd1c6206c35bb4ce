"""Models with experts: what a step reads of them, and the layout of their matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.devices.batch import Row
from fewbit.loading import Loaded
from fewbit.models import load_model, open_model

from ..loading import load
from .random_llama import llama

COUNT, USED, HIDDEN, ROWS = 8, 2, 256, 256
GLM = Path(__file__).parents[1] / "zoo" / "glm4moe" / "model.gguf"


def expert_tensors(layer: int, format: str = "q4_k") -> dict[str, Any]:
    rng = np.random.default_rng(layer)
    shapes = {"gate": (COUNT, ROWS, HIDDEN), "up": (COUNT, ROWS, HIDDEN), "down": (COUNT, HIDDEN, ROWS)}
    values = {name: rng.standard_normal(shape, np.float32) / 16 for name, shape in shapes.items()}
    out: dict[str, Any] = {f"blk.{layer}.ffn_{x}_exps.weight": fb.quantize(w, format) for x, w in values.items()}
    out[f"blk.{layer}.ffn_gate_inp.weight"] = rng.standard_normal((COUNT, HIDDEN)).astype(np.float32)
    return out


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with experts."""
    metadata, tensors = llama(
        hidden=HIDDEN, feed_forward=ROWS, format="q4_k", expert_count=COUNT, expert_used_count=USED
    )
    tensors = {name: w for name, w in tensors.items() if not any(f"ffn_{x}." in name for x in ("gate", "up", "down"))}
    path = tmp_path_factory.mktemp("experts") / "model.gguf"
    fb.write_gguf(path, metadata, tensors | expert_tensors(0) | expert_tensors(1))
    return path


def logits(loaded: Loaded, tokens: list[int]) -> Floats:
    return loaded.forward([Row(loaded.cache.new(), tokens, len(tokens))]).copy()


def test_a_decode_step_reads_the_chosen_experts_only(path: Path) -> None:
    executor: Any = (loaded := load(open_model(path))).executor
    each = sum(w.nbytes for w in expert_tensors(0).values() if isinstance(w, fb.QuantTensor)) // COUNT
    logits(loaded, [1])
    assert 2 * USED * each <= executor.expert_bytes <= 1.1 * 2 * USED * each  # of two layers
    before = executor.expert_bytes
    logits(loaded, [int(token) for token in np.random.default_rng(0).integers(0, 61, 200)])
    assert executor.expert_bytes - before == 2 * COUNT * each  # all of them, each once


def test_bytes_of_a_step_are_those_of_the_experts_that_it_uses(path: Path) -> None:
    file = open_model(path)
    sizes = {name: w.nbytes for name, w in file.tensors.items() if name != "token_embd.weight"}
    experts = sum(size for name, size in sizes.items() if "_exps" in name)
    assert load_model(file).step_bytes == sum(sizes.values()) - experts + experts // COUNT * USED


def test_repacked_experts_give_the_same(path: Path) -> None:
    tokens = list(range(40))
    expected = logits(load(open_model(path), device="numpy", kv="f32"), tokens)
    for repack in (True, False):
        exact = logits(load(open_model(path), kv="f32", repack=repack, activations="exact"), tokens)
        assert np.abs(exact - expected).max() < 1e-4 * np.abs(expected).max()


def test_layers_that_guess_further_tokens_are_left_out(tmp_path: Path) -> None:
    """The same model with one more block at its end, which says so."""
    file = open_model(GLM)
    tensors = {name: w.dequantize() for name, w in file.tensors.items()}
    more = {name.replace("blk.1.", "blk.2."): w for name, w in tensors.items() if name.startswith("blk.1.")}
    more["blk.2.nextn.eh_proj.weight"] = np.ones((32, 64), np.float32)
    metadata = {f"glm4moe.{key}": value for key, value in file.config.items()} | {"general.architecture": "glm4moe"}
    fb.write_gguf(tmp_path / "plain.gguf", metadata, tensors)
    metadata |= {"glm4moe.block_count": 3, "glm4moe.nextn_predict_layers": 1}
    fb.write_gguf(tmp_path / "more.gguf", metadata, tensors | more)
    plain, longer = (open_model(tmp_path / f"{name}.gguf") for name in ("plain", "more"))
    assert load_model(longer).config == load_model(plain).config
    assert load_model(longer).step_bytes == load_model(plain).step_bytes

"""Encoders beside transformers in f32, on the tiny models of tests/zoo: rows of tokens, and embeddings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.devices.batch import Row
from fewbit.errors import ArgumentError, FileError, RequestError, ShapeError
from fewbit.llm import LLM
from fewbit.llm.pooling import normalized, pool
from fewbit.loading import Loaded
from fewbit.models import open_model

from ..loading import load

ZOO = Path(__file__).parents[1] / "zoo"
NAMES = ["bert", "nomic-bert", "modern-bert", "gemma-embedding"]
DEVICES = ["numpy", "cpu"]
EXACT = 1e-4


def golden(name: str) -> Any:
    return np.load(ZOO / name / "golden.npz")


def opened(name: str, device: str, kind: str = "model.gguf", **options: Any) -> Loaded:
    options = {"activations": "exact", **options} if device == "cpu" else options
    return load(open_model(ZOO / name / kind), device=device, **{"kv": "f32", **options})


def states(loaded: Loaded, *texts: list[int]) -> list[Floats]:
    chunks = [Row(loaded.cache.new(), text, len(text)) for text in texts]
    rows = loaded.forward(chunks, "hidden").copy()
    for chunk in chunks:
        loaded.cache.free(chunk.sequence)
    return np.split(rows, np.cumsum([len(text) for text in texts])[:-1])


def error(got: Floats, expected: Floats) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("kind", ["model.gguf", "hf"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_states_and_embeddings_are_those_of_transformers(name: str, device: str, kind: str) -> None:
    data, loaded = golden(name), opened(name, device, kind)
    (rows,) = states(loaded, data["tokens"].tolist())
    assert error(rows, data["states"]) < EXACT
    pooled = normalized(pool(rows, "cls" if name == "modern-bert" else "mean"))
    assert error(pooled, data["embedding"]) < EXACT


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_ragged_texts_in_one_step(name: str, device: str) -> None:
    tokens, loaded = golden(name)["tokens"].tolist(), opened(name, device)
    texts = [tokens[:1], tokens, tokens[3:20], tokens[:7]]
    for alone, together in zip([states(loaded, text)[0] for text in texts], states(loaded, *texts), strict=True):
        assert error(together, alone) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_tokens_see_later_ones(name: str) -> None:
    tokens, loaded = golden(name)["tokens"].tolist(), opened(name, "cpu")
    (short,), (long,) = states(loaded, tokens[:10]), states(loaded, tokens)
    assert error(short[-1], long[9]) > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_8_bit_activations_are_near(name: str) -> None:
    data, loaded = golden(name), opened(name, "cpu", activations=None)
    (rows,) = states(loaded, data["tokens"].tolist())
    wrong = np.sqrt(np.square(rows - data["states"]).mean() / np.square(data["states"]).mean())
    assert wrong < 0.06


@pytest.mark.parametrize("device", DEVICES)
def test_there_are_no_logits(device: str) -> None:
    loaded = opened("bert", device)
    with pytest.raises(ArgumentError, match="has no output head"):
        loaded.forward([Row(loaded.cache.new(), [2, 3], 1)])


def test_texts_run_whole_so_steps_are_as_long_as_texts() -> None:
    usual, short = opened("gemma-embedding", "cpu"), opened("gemma-embedding", "cpu", max_batched_tokens=16)
    assert (usual.ctx, usual.executor.max_batched_tokens) == (256, 512)
    assert (short.ctx, short.executor.max_batched_tokens) == (16, 16)
    with pytest.raises(RequestError, match="max_batched_tokens must be at least ctx=64, got 16"):
        opened("gemma-embedding", "cpu", max_batched_tokens=16, ctx=64)


def copied(name: str, path: Path, change: dict[str, Any], tensors: dict[str, Any]) -> Path:
    with fb.read_gguf(ZOO / name / "model.gguf") as file:
        metadata = {**file.metadata, **change}
        fb.write_gguf(path, metadata, {**file.tensors, **tensors})
    return path


def test_a_head_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = copied("bert", tmp_path / "cls.gguf", {}, {"cls.weight": np.ones((32, 31), np.float32)})
    with pytest.raises(ShapeError, match=r"cls\.weight must be any x 32, it is 32 x 31"):
        load(open_model(path))


def test_products_in_folders_of_their_own_are_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(ZOO / "bert" / "hf", tmp_path / "hf")
    modules = [{"path": "1_Pooling", "type": "some.Pooling"}, {"path": "2_Dense", "type": "some.models.Dense"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(FileError, match="the product after pooling in '2_Dense' is not read from folders"):
        open_model(folder)


def test_products_after_pooling(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    first, second = (draw.standard_normal(shape, np.float32) for shape in ((64, 32), (32, 64)))
    sizes = {"gemma-embedding.dense_2_feat_out": 64, "gemma-embedding.dense_3_feat_out": 32}
    path = copied(
        "gemma-embedding", tmp_path / "dense.gguf", sizes, {"dense_2.weight": first, "dense_3.weight": second}
    )
    data = golden("gemma-embedding")
    expected = normalized((data["states"].mean(axis=0) @ first.T) @ second.T)
    with LLM(path, exact=True, kv="f32") as llm:
        assert error(llm.embed(data["tokens"].tolist()), expected) < EXACT

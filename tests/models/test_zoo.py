"""Every architecture beside transformers in f32, on tiny random models: see tests/zoo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewbit.arrays import Floats
from fewbit.devices.batch import Row
from fewbit.loading import Loaded
from fewbit.models import architectures, open_model

from ..loading import load
from ..zoo.records import RECORDS

ZOO = Path(__file__).parents[1] / "zoo"
EXACT = 1e-4  # the largest error of a logit, beside the largest logit
USUAL = 0.06  # with 8-bit activations


def golden(name: str) -> Any:
    return np.load(ZOO / name / "golden.npz")


ENCODERS = {"bert", "gemma-embedding", "modern-bert", "nomic-bert"}


def sources() -> list[str]:
    """The GGUF file and the folder of every model that writes."""
    names = sorted(record.name for record in RECORDS if record.name not in ENCODERS)
    return [f"{name}/{kind}" for name in names for kind in ("model.gguf", "hf")]


@pytest.fixture(scope="module", params=sources())
def source(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("kind", ["model.gguf", "hf"])
def test_the_zoo_has_every_architecture(kind: str) -> None:
    folders = [ZOO, ZOO.with_name("vision_zoo")]
    found = {open_model(path).architecture for folder in folders for path in folder.glob(f"*/{kind}")}
    assert found == set(architectures())


def test_every_folder_of_the_zoo_is_whole() -> None:
    names = {record.name for record in RECORDS}
    assert {path.name for path in ZOO.iterdir() if path.is_dir() and path.name != "__pycache__"} == names
    for name in names:
        assert {path.name for path in (ZOO / name).iterdir()} >= {"hf", "model.gguf", "golden.npz"}


def opened(source: str, device: str = "cpu", **options: Any) -> Loaded:
    if device == "cpu":
        options = {"activations": "exact", **options}
    return load(open_model(ZOO / source), device=device, **{"kv": "f32", **options})


def logits(loaded: Loaded, sequence: int, tokens: Sequence[int]) -> Floats:
    return loaded.forward([Row(sequence, list(tokens), len(tokens))]).copy()


def error(got: Floats, expected: Floats) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def case(source: str) -> tuple[list[int], Floats]:
    data = golden(source.split("/", maxsplit=1)[0])
    return [int(token) for token in data["tokens"]], data["logits"]


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_logits_are_those_of_transformers(source: str, device: str) -> None:
    tokens, expected = case(source)
    loaded = opened(source, device)
    assert error(logits(loaded, loaded.cache.new(), tokens), expected) < EXACT


@pytest.mark.parametrize("sizes", [[1] * 24, [5, 1, 9, 9], [23, 1]], ids=["one by one", "chunks", "prompt and one"])
@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_chunks_with_a_cache(source: str, device: str, sizes: list[int]) -> None:
    tokens, expected = case(source)
    loaded, rows, start = opened(source, device), [], 0
    sequence = loaded.cache.new()
    for size in sizes:
        rows.append(logits(loaded, sequence, tokens[start : start + size]))
        start += size
    assert error(np.concatenate(rows), expected) < EXACT


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_ragged_batches_and_forks(source: str, device: str) -> None:
    tokens, expected = case(source)
    loaded = opened(source, device)
    first, second = loaded.cache.new(), loaded.cache.new()
    logits(loaded, first, tokens[:10])
    third = loaded.cache.fork(first)
    parts = [(first, 10, 17), (second, 0, 12), (third, 10, 24)]
    chunks = [Row(sequence, tokens[start:end], end - start) for sequence, start, end in parts]
    rows = loaded.forward(chunks)
    wanted = np.concatenate([expected[start:end] for _, start, end in parts])
    assert error(rows, wanted) < EXACT
    rows = loaded.forward([Row(first, tokens[17:18], 1), Row(second, tokens[12:20], 8)])
    assert error(rows, np.concatenate([expected[17:18], expected[12:20]])) < EXACT


def test_8_bit_activations_are_near(source: str) -> None:
    tokens, expected = case(source)
    loaded = opened(source, activations=None)
    got = logits(loaded, loaded.cache.new(), tokens)
    wrong = np.sqrt(np.square(got - expected).mean() / np.square(expected).mean())
    assert wrong < USUAL


def test_same_bits_in_every_batch(source: str) -> None:
    tokens, _ = case(source)
    loaded = opened(source, activations=None, batch_invariant=True)
    whole = logits(loaded, loaded.cache.new(), tokens)
    sequence = loaded.cache.new()
    alone = np.concatenate([logits(loaded, sequence, [token]) for token in tokens])
    np.testing.assert_array_equal(whole, alone)

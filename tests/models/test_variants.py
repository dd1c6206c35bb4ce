"""Layers with other windows, ropes and scales, beside transformers: from checkpoints, and from GGUF made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.devices.batch import Row
from fewbit.errors import FileError, MissingError
from fewbit.models import load_model, open_model
from fewbit.quantizing import quantized

from ..loading import load
from ..zoo.records import RECORDS
from ..zoo.variants import COLUMN_STEP, VARIANTS, Variant
from .test_zoo import EXACT, ZOO, error, golden

PATTERN = "attention.sliding_window_pattern"
# The number that says which layers of a model have a window, and one that says something else.
PERIODS = {
    "gemma2": (2, 1),
    "gemma3": (6, 2),
    "gemma-embedding": (6, 2),
    "gemma4-moe": (2, None),
    "gemma4-wide": (2, None),
    "gpt-oss": (2, 1),
    "gpt-oss-bf16": (2, 1),
    "modern-bert": (3, 2),
    "olmo3": (4, 2),
}
GOLDEN = np.load(ZOO / "variants.npz")

by_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.key)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWBIT_CACHE", str(tmp_path / "cache"))


def rows(path: Path, name: str, device: str = "cpu") -> Floats:
    """Logits of all tokens of the zoo's text, or hidden rows of an encoder."""
    options: dict[str, Any] = {"activations": "exact"} if device == "cpu" else {}
    loaded = load(open_model(path), device=device, kv="f32", **options)
    tokens = golden(name)["tokens"].tolist()
    kind = "logits" if "logits" in golden(name) else "hidden"
    return loaded.forward([Row(loaded.cache.new(), tokens, len(tokens))], kind).copy()


def expected(name: str) -> Floats:
    data = golden(name)
    return np.asarray(data["logits"] if "logits" in data else data["states"])


def converted(source: Path) -> Path:
    """A checkpoint as GGUF."""
    return quantized(open_model(source), "f32").path


def changed(path: Path, folder: Path, metadata: dict[str, Any]) -> Path:
    """The file with other hyperparameters; None leaves one out."""
    target = folder / f"{len(list(folder.iterdir()))}.gguf"
    with fb.read_gguf(path) as file:
        own = {f"{file.architecture}.{key}": value for key, value in metadata.items()}
        values = {key: value for key, value in (dict(file.metadata) | own).items() if value is not None}
        fb.write_gguf(target, values, dict(file.tensors))
    return target


def with_pattern(path: Path, folder: Path, pattern: Any) -> Path:
    return changed(path, folder, {PATTERN: pattern})


@by_variant
@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_checkpoints(variant: Variant, device: str, tmp_path: Path) -> None:
    got = rows(variant.copied(ZOO, tmp_path), variant.name, device)
    assert error(got[:, ::COLUMN_STEP], GOLDEN[variant.key]) < EXACT
    usual = expected(variant.name)[:, ::COLUMN_STEP]
    assert (error(usual, GOLDEN[variant.key]) > 100 * EXACT) == variant.is_other


@by_variant
def test_gguf(variant: Variant, tmp_path: Path) -> None:
    """By lists of booleans and of integers, and by numbers that say the same."""
    path = converted(variant.copied(ZOO, tmp_path))
    paths = [path]
    if variant.patterns:
        windows = fb.read_gguf(path).config.get(PATTERN)
        lists = [windows.astype(np.uint32)] if isinstance(windows, np.ndarray) else []
        paths += [with_pattern(path, tmp_path, pattern) for pattern in (*lists, *variant.patterns)]
    for one in paths:
        assert error(rows(one, variant.name)[:, ::COLUMN_STEP], GOLDEN[variant.key]) < EXACT


@pytest.mark.parametrize("name", [record.name for record in RECORDS])
def test_gguf_made_of_each_checkpoint(name: str) -> None:
    assert error(rows(converted(ZOO / name / "hf"), name), expected(name)) < EXACT


@pytest.mark.parametrize("name", PERIODS)
def test_one_number_for_all_layers(name: str, tmp_path: Path) -> None:
    """The usual one, none at all if the architecture tells it, and another, which must not give the same."""
    period, other = PERIODS[name]
    path = converted(ZOO / name / "hf")
    assert error(rows(with_pattern(path, tmp_path, period), name), expected(name)) < EXACT
    if other is None:  # layers have other sizes, so that the file must say which
        with pytest.raises(MissingError, match=f"{PATTERN} is missing"):
            load_model(open_model(with_pattern(path, tmp_path, None)))
        return
    assert error(rows(with_pattern(path, tmp_path, None), name), expected(name)) < EXACT
    assert error(rows(with_pattern(path, tmp_path, other), name), expected(name)) > 100 * EXACT


@pytest.mark.parametrize("pattern", [-1, True, 1.5, "x", [True], [True, False, True], [0, 2], [0.0, 1.0]], ids=str)
def test_wrong_patterns(pattern: Any, tmp_path: Path) -> None:
    given = np.asarray(pattern) if isinstance(pattern, list) else pattern
    path = with_pattern(ZOO / "gemma2" / "model.gguf", tmp_path, given)
    with pytest.raises(FileError, match=rf"gemma2\.{PATTERN} must be"):
        load_model(open_model(path))


def test_more_layers_than_memory_holds(tmp_path: Path) -> None:
    many = Variant("smollm3", "many layers", {"num_hidden_layers": 1 << 50, "no_rope_layers": None})
    with pytest.raises(FileError, match=r"smollm3\.block_count must be a whole number from 1 to 4096"):
        load_model(open_model(many.copied(ZOO, tmp_path)))


PER_LAYER = [
    "attention.head_count",
    "attention.head_count_kv",
    "expert_feed_forward_length",
    "expert_used_count",
    "feed_forward_length",
]


@pytest.mark.parametrize("name", [record.name for record in RECORDS])
def test_the_same_number_for_each_layer(name: str, tmp_path: Path) -> None:
    """One number may be written as a list."""
    path = ZOO / name / "model.gguf"
    known = fb.read_gguf(path).config
    numbers = {key: known[key] for key in PER_LAYER if isinstance(known.get(key), int)}
    lists = {key: np.full(known["block_count"], number, np.uint32) for key, number in numbers.items()}
    assert lists
    assert error(rows(changed(path, tmp_path, lists), name), expected(name)) < EXACT


@pytest.mark.parametrize(
    ("name", "config", "text"),
    [
        ("qwen2", {"is_causal": False}, "tokens of qwen2 models do not see later ones"),
        ("gemma-embedding", {"use_bidirectional_attention": None}, "tokens of gemma-embedding models see later ones"),
    ],
)
def test_models_that_look_the_other_way(name: str, config: dict[str, Any], text: str, tmp_path: Path) -> None:
    for path in (Variant(name, "", config).copied(ZOO, tmp_path), converted(tmp_path / "hf")):
        with pytest.raises(FileError, match=rf"attention\.causal does not fit: {text}"):
            load_model(open_model(path))


# What llama.cpp writes when it saves a model that has none of these.
ZEROS = {
    "attention.layer_norm_rms_epsilon": 0.0,
    "attention.rope_pattern": 1,
    "attention.scale": 0.0,
    "attention.sliding_window": 0,
    "attention.temperature_scale": 0.0,
    "expert_feed_forward_length": 0,
    "expert_group_count": 0,
    "expert_group_used_count": 0,
    "expert_shared_feed_forward_length": 0,
    "final_logit_softcapping": 0.0,
    "leading_dense_block_count": 0,
    "nextn_predict_layers": 0,
    "rope.scaling.factor": 0.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}


NEEDED = {"llama4": ("attention.sliding_window",)}  # 0 would say that there are no chunks


@pytest.mark.parametrize("name", [record.name for record in RECORDS])
def test_zeros_for_what_a_model_does_not_have(name: str, tmp_path: Path) -> None:
    path = ZOO / name / "model.gguf"
    known = fb.read_gguf(path).config
    needed = NEEDED.get(name, ())
    zeros = changed(path, tmp_path, {key: value for key, value in ZEROS.items() if key not in {*known, *needed}})
    assert error(rows(zeros, name), expected(name)) < EXACT


def test_a_factor_without_a_type_is_linear(tmp_path: Path) -> None:
    path = changed(ZOO / "llama-linear" / "model.gguf", tmp_path, {"rope.scaling.type": None})
    assert error(rows(path, "llama-linear"), expected("llama-linear")) < EXACT


def test_layers_with_a_window_rotate_as_many_values_as_the_others(tmp_path: Path) -> None:
    """Unless the file says how many."""
    source = ZOO / "gemma3" / "model.gguf"
    both = {"rope.dimension_count": 8, "rope.dimension_count_swa": 8}
    first, second, whole = (
        rows(changed(source, tmp_path, given), "gemma3")
        for given in ({"rope.dimension_count": 8}, both, both | {"rope.dimension_count_swa": 16})
    )
    np.testing.assert_array_equal(first, second)
    assert error(whole, first) > 100 * EXACT

"""Frequencies of rotary positions, as files describe them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.devices.batch import Row
from fewbit.errors import FileError, MissingError, RequestError
from fewbit.models import open_model
from fewbit.models.checkpoint import Checkpoint
from fewbit.models.rope_scaling import stretched
from fewbit.models.rotary import plain_inv_freq, read_local_rope, read_rope

from ..loading import load

ZOO = Path(__file__).parents[1] / "zoo"
FACTORS = {f"rope_factors_{kind}.weight": np.full(4, value, np.float32) for kind, value in (("short", 2), ("long", 4))}


def checkpoint(folder: Path, tensors: dict[str, Any] | None = None, ctx: int | None = None, **rope: Any) -> Checkpoint:
    metadata = {"general.architecture": "a", "a.context_length": 64}
    metadata |= {f"a.rope.{key.replace('__', '.')}": value for key, value in rope.items()}
    fb.write_gguf(folder / "model.gguf", metadata, tensors or {})
    return Checkpoint(open_model(folder / "model.gguf"), ctx=ctx)


@pytest.mark.parametrize(("ctx", "factor"), [(None, 4), (33, 4), (32, 2)])
def test_longrope_by_the_longest_sequence(tmp_path: Path, ctx: int | None, factor: float) -> None:
    scaling = {"scaling__original_context_length": 32, "scaling__attn_factor": 1.5}
    rope = read_rope(checkpoint(tmp_path, FACTORS, ctx, **scaling), 8)
    np.testing.assert_allclose(rope.inv_freq, plain_inv_freq(8, 10000.0) / factor, rtol=1e-6)
    assert rope.scale == 1.5


def test_longrope_of_a_loaded_model() -> None:
    """A context that is short enough takes the short factors: other logits."""
    tokens, rows = list(range(3, 15)), []
    for ctx in (256, 17, 16):
        loaded = load(open_model(ZOO / "phi3-longrope" / "model.gguf"), device="numpy", ctx=ctx)
        rows.append(loaded.forward([Row(loaded.cache.new(), tokens, 1)]).copy())
    np.testing.assert_array_equal(rows[0], rows[1])
    assert np.abs(rows[1] - rows[2]).max() > 0.01


def test_longrope_needs_both_lists(tmp_path: Path) -> None:
    short = {"rope_factors_short.weight": FACTORS["rope_factors_short.weight"]}
    with pytest.raises(MissingError, match=r"rope_factors_long\.weight is missing"):
        read_rope(checkpoint(tmp_path, short), 8)


def test_partial(tmp_path: Path) -> None:
    rope = read_rope(checkpoint(tmp_path, dimension_count=4), 8, neox=True)
    assert (len(rope.inv_freq), rope.neox) == (2, True)


def test_local_rope_is_not_scaled(tmp_path: Path) -> None:
    file = checkpoint(tmp_path, freq_base=1e6, freq_base_swa=1e4, scaling__type="linear", scaling__factor=8.0)
    np.testing.assert_allclose(read_rope(file, 8).inv_freq, plain_inv_freq(8, 1e6) / 8, rtol=1e-6)
    np.testing.assert_allclose(read_local_rope(file, 8).inv_freq, plain_inv_freq(8, 1e4), rtol=1e-6)


@pytest.mark.parametrize(("multiplier", "scale"), [(0.0, 1.1386), (1.0, 1.0), (2.0, 0.8915)])
def test_yarn_scale(tmp_path: Path, multiplier: float, scale: float) -> None:
    file = checkpoint(
        tmp_path, scaling__type="yarn", scaling__factor=4.0, scaling__yarn_log_multiplier=multiplier,
        scaling__original_context_length=16,
    )  # fmt: skip
    assert read_rope(file, 8).scale == pytest.approx(scale, abs=1e-4)


def test_yarn_betas(tmp_path: Path) -> None:
    known = {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__original_context_length": 4096}
    usual = read_rope(checkpoint(tmp_path, **known), 64).inv_freq
    others = read_rope(checkpoint(tmp_path, **known, scaling__yarn_beta_fast=8.0), 64).inv_freq
    assert (others >= usual).all()
    assert (others > usual).any()
    with pytest.raises(FileError, match=r"yarn_beta_fast must be a number of at least"):
        read_rope(checkpoint(tmp_path, **known, scaling__yarn_beta_fast=-1.0), 64)


# Stretched by an option. The expected values are what transformers computes of `rope_type` "dynamic" for sequences of
# 64 x factor tokens, and of "yarn": base 10000, heads of 16, 64 tokens at first, factor 4.
TRANSFORMERS = {
    "dynamic": ([1.0, 0.2192125, 0.0480541, 0.01053406, 0.002309197, 0.0005062047, 0.0001109664, 2.432521e-05], 1.0),
    "yarn": ([1.0, 0.2371708, 0.05, 0.007905695, 0.0025, 0.0007905695, 0.00025, 7.905695e-05], 1.138629436111989),
    "linear": ([0.25, 0.07905694, 0.025, 0.007905695, 0.0025, 0.0007905695, 0.00025, 7.905695e-05], 1.0),
}


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_scaling_by_option_is_that_of_transformers(tmp_path: Path, kind: str) -> None:
    checkpoint(tmp_path, freq_base=10000.0)
    file = stretched(open_model(tmp_path / "model.gguf"), f"{kind}:4")
    rope = read_rope(Checkpoint(file, ctx=256), 16)
    np.testing.assert_allclose(rope.inv_freq, TRANSFORMERS[kind][0], rtol=1e-6)
    assert rope.scale == pytest.approx(TRANSFORMERS[kind][1])
    assert file.config["context_length"] == 256


def test_dynamic_scaling_of_a_short_context_changes_nothing(tmp_path: Path) -> None:
    checkpoint(tmp_path, freq_base=10000.0)
    file = stretched(open_model(tmp_path / "model.gguf"), "dynamic:4")
    np.testing.assert_allclose(read_rope(Checkpoint(file, ctx=64), 16).inv_freq, plain_inv_freq(16, 10000.0), rtol=1e-6)


def test_a_stretched_model_takes_longer_texts() -> None:
    path = ZOO / "llama" / "model.gguf"
    with fb.LLM(path, rope_scaling="yarn:2", threads=1) as llm:
        assert llm.ctx == 512
        assert len(llm.generate("a" * 300, max_tokens=4, temperature=0).tokens) == 4
    with fb.LLM(path, threads=1) as llm:
        assert llm.ctx == 256


@pytest.mark.parametrize("text", ["yarn", "yarn:0.5", "yarn:x", "yarn:1e9", "what:2", "yarn:nan"])
def test_what_is_no_scaling(text: str) -> None:
    with pytest.raises(RequestError, match="rope_scaling"):
        fb.LLM(ZOO / "llama" / "model.gguf", rope_scaling=text)


def test_models_that_cannot_be_stretched() -> None:
    for name, what in (("gpt2", "no rotary positions"), ("phi3-longrope", "of its own")):
        with pytest.raises(FileError, match=what):
            fb.LLM(ZOO / name / "model.gguf", rope_scaling="yarn:2")

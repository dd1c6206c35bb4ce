"""What Gemma 4's encoder says of its images: how they are seen, and how many tokens run together."""

from __future__ import annotations

import pytest

import fewbit as fb
from fewbit.models.vision import gemma4v, load_vision

from .zoo import encoder_file, opened, question


def test_images_are_seen_whole_unless_the_text_model_is_one_of_the_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_vision(encoder_file("gemma4/model.gguf"))
    assert (model.sees_all, model.joint_tokens) == (True, 280)
    monkeypatch.setattr(gemma4v, "CAUSAL_WIDTHS", (32,))
    model = load_vision(encoder_file("gemma4/model.gguf"))
    assert (model.sees_all, model.joint_tokens) == (False, 0)
    assert load_vision(encoder_file("gemma4/hf")).sees_all  # config.json says it


def test_steps_are_long_enough_for_the_largest_image() -> None:
    assert opened("gemma4/model.gguf").loaded.executor.max_batched_tokens == 560
    assert opened("qwen2vl_merger/model.gguf").loaded.executor.max_batched_tokens == 512
    short = opened("gemma4/model.gguf", max_batched_tokens=512)
    with pytest.raises(fb.RequestError, match="max_batched_tokens must be at least 528"):
        short.chat(question("gemma4"), max_tokens=1)


def test_as_many_positions_as_the_widest_image_has_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemma4v, "MAX_TOKENS", 281)
    with pytest.raises(fb.FileError, match="can have 843 patches in a row, and there are only 840 positions"):
        load_vision(encoder_file("gemma4/model.gguf"))

"""Models that see are planned for text alone, and images are refused in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.browser import AdapterLimits, DescribedFile, Description, make_plan
from fewbit.devices.batch import Row
from fewbit.errors import FewbitError
from fewbit.models import open_model

from ..loading import load
from ..webgpu.cases import error
from ..webgpu.conftest import gpu as gpu  # noqa: PLC0414  the fixture
from ..webgpu.plan_runner import PlanRunner
from .described import described
from .runtime import call
from .test_files import ZOO, vectors_of

VISION = Path(__file__).parents[1] / "vision_zoo"
USUAL = ("zoo/gemma4", "vision_zoo/qwen3vl_merger")  # that `make test` runs, too
SEEING = sorted(f"vision_zoo/{path.parent.name}" for path in VISION.glob("*/model.gguf"))
NAMES = ["zoo/gemma4", "zoo/gemma4-wide", "zoo/gemma3n", *SEEING]
BAR = 3e-3  # K and V are f16
LIMITS = AdapterLimits(1 << 24, 1 << 25)


def plan_of(path: Path) -> dict[str, Any]:
    """The plan of a file that is only described, as a browser asks for it."""
    file = open_model(path)
    found = described(file)
    return make_plan(DescribedFile(Description(found["metadata"], found["tensors"], vectors_of(file))), LIMITS, 64)


@pytest.mark.webgpu
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in USUAL else pytest.mark.exhaustive) for name in NAMES]
)
def test_text(name: str, gpu: Any) -> None:
    """A prompt and two tokens by the plan, beside NumPy."""
    path = ZOO.parent / name / "model.gguf"
    runner = PlanRunner(plan_of(path), open_model(path).tensors)
    loaded = load(open_model(path), device="numpy", kv="f16")
    sequence, position = loaded.cache.new(), 0
    vocab = runner.plan["model"]["vocab"]
    for tokens in (np.arange(3, 40) % vocab, [5], [7]):
        expected = loaded.forward([Row(sequence, [int(token) for token in tokens], 1)])[0]
        got = runner.step([int(token) for token in tokens], position)
        assert error(got, expected) <= BAR
        position += len(tokens)


@pytest.mark.parametrize("name", SEEING)
def test_an_image_encoder_is_no_model(name: str) -> None:
    path = ZOO.parent / name / "mmproj.gguf"
    sentence = "this file is an image encoder, and the browser runs models for text alone: take the model's file$"
    with pytest.raises(FewbitError, match=sentence):
        plan_of(path)
    with pytest.raises(fb.FileError, match=sentence):
        make_plan(open_model(path))


def test_messages_with_images() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    words = [{"type": "text", "text": "What "}, {"type": "text", "text": "is it?"}]
    template = {
        "source": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "bos": "", "eos": "",
        "control": [],
    }  # fmt: skip
    for content in ([*words, picture], [picture], picture, None, 5):
        (found,) = call(("prompts", {**template, "conversations": [[{"role": "user", "content": content}]]}))
        assert found.startswith("models in the browser read text alone; a message holds "), found
        assert "\n" not in found
    (prompts,) = call(("prompts", {**template, "conversations": [[{"role": "user", "content": words}]]}))
    assert prompts[0]["text"] == "user: What is it?\n"

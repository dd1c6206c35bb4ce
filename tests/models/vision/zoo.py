"""The models that see, and what transformers makes of their pictures: see tests/vision_zoo."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import fewbit as fb
from fewbit.files.model import ModelFile
from fewbit.models.vision.folder import open_vision_folder

FOLDER = Path(__file__).parents[2] / "vision_zoo"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/golden.npz"))
SOURCES = [f"{name}/{kind}" for name in NAMES for kind in ("model.gguf", "hf")]


@cache
def golden(name: str) -> dict[str, Any]:
    return dict(np.load(FOLDER / name / "golden.npz"))


def encoder_file(source: str) -> ModelFile:
    name, _, kind = source.partition("/")
    if kind == "hf":
        found = open_vision_folder(FOLDER / source)
        assert found is not None
        return found
    from fewbit.files.gguf import read_gguf

    return read_gguf(FOLDER / name / "mmproj.gguf")


def opened(source: str, **options: Any) -> fb.LLM:
    exact = {} if options.get("device") == "numpy" else {"activations": "exact"}
    return fb.LLM(FOLDER / source, **{"kv": "f32", **exact, **options})


def question(name: str) -> list[dict[str, Any]]:
    """What golden.npz has the tokens of."""
    data = golden(name)
    picture = {"type": "image", "image": data["second"]}
    return [{"role": "user", "content": ["One:", data["first"], picture, {"type": "text", "text": "What is it?"}]}]


def error(got: Any, expected: Any) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())

"""Slow references in NumPy and float64, and small models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fewbit.arrays import Doubles
from fewbit.devices.batch import Row
from fewbit.load_options import LoadOptions
from fewbit.loading import load
from fewbit.models import open_model

from ..cli.tiny import write_tiny

TEXT = "".join(chr(33 + (7 * n * n + 3 * n) % 90) for n in range(150))
EXACT: dict[str, Any] = {"activations": "exact"}


def models(folder: Path) -> tuple[Path, Path]:
    """A model in f32, and its weights in q4_0."""
    return write_tiny(folder / "base.gguf", format="f32"), write_tiny(folder / "small.gguf", format="q4_0")


def logprobs(path: Path, windows: list[list[int]], kv: str = "f16") -> list[Doubles]:
    """All log-probabilities of windows, by the NumPy device: (tokens, vocabulary)."""
    loaded = load(open_model(path), LoadOptions(device="numpy", kv=kv, ctx=512))
    found = []
    for window in windows:
        sequence = loaded.cache.new()
        logits = loaded.forward([Row(sequence, window, len(window))]).astype(np.float64)
        loaded.cache.free(sequence)
        shifted = logits - logits.max(axis=1, keepdims=True)
        found.append(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
    return found


def of_windows(rows: list[Doubles], windows: list[list[int]], skip: int) -> Doubles:
    """The log-probabilities of the tokens from `skip` on."""
    parts = [
        one[np.arange(skip - 1, len(window) - 1), window[skip:]] for one, window in zip(rows, windows, strict=True)
    ]
    return np.concatenate(parts)


def divergences(base: list[Doubles], rows: list[Doubles], skip: int) -> Doubles:
    """KL(base || rows) at each token from `skip` on."""
    pairs = zip(base, rows, strict=True)
    parts = [np.sum(np.exp(p) * (p - q), axis=1)[skip - 1 : len(p) - 1] for p, q in pairs]
    return np.concatenate(parts)

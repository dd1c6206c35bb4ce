"""Encoders of the zoo with rows that are whole blocks, and random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import fewbit as fb

from .zoo import FOLDER

WIDER = {12: 64, 24: 256, 32: 256, 40: 512, 48: 512, 72: 768, 96: 1024}  # sizes of the zoo's tensors, and the new ones
SIZES = {
    "embedding_length": 256,
    "feed_forward_length": 512,
    "attention.head_count": 4,
    "projection_dim": 256,
}


def write_wide_encoder(name: str, path: Path) -> Path:
    """An encoder of the zoo as f32, wider."""
    source, draw = fb.read_gguf(FOLDER / name / "mmproj.gguf"), np.random.default_rng(5)
    tensors = {key: _wider(key, tensor.dequantize(), draw) for key, tensor in source.tensors.items()}
    metadata = dict(source.metadata) | {f"clip.vision.{key}": value for key, value in SIZES.items()}
    fb.write_gguf(path, metadata, tensors)
    return path


def _wider(name: str, values: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    is_convolution = values.ndim == 4
    sizes = [WIDER.get(size, size) for size in values.shape[: 1 if is_convolution else None]]
    shape = (*sizes, *values.shape[len(sizes) :])
    if values.ndim == 1 and max(values.shape) == 1:  # a limit of gemma4
        return np.asarray(values, np.float32)
    if values.ndim == 1:
        size = 1 / 8 if name.endswith("attn_q_norm.weight") else 1  # scores of heads of 64 values are not divided by 8
        return size * np.asarray(name.endswith("weight") + 0.1 * draw.standard_normal(shape), np.float32)
    return np.asarray(draw.standard_normal(shape) / np.prod(shape[1:]) ** 0.5, np.float32)

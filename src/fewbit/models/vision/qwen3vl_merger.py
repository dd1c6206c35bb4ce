"""Qwen3-VL: learned positions between which is interpolated; rows of some layers are added between the first layers of
the text model (deepstack)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...arrays import Doubles, Floats, Longs
from ...errors import FileError
from ...images import Picture, PreparedImage
from ...ops.graph import Value
from ...ops.recorder import Ops
from ..checkpoint import Checkpoint
from ..layers import Linear
from .activation import read_activation
from .adapter import VisionAdapter, key_or
from .blocks import VisionLayerNorm
from .qwen import QWEN_TENSORS, QwenTower, qwen_config

_DEEPSTACK = re.compile(r"deepstack_merger_list\.([0-9]{1,3})\.")


def deepstack_layers(config: Mapping[str, Any]) -> list[bool]:
    """Whether the rows of each layer are added in the text model."""
    found = config.get("deepstack_visual_indexes", [])
    return [layer in found for layer in range(config["depth"])]


def layer_name(name: str, config: Mapping[str, Any]) -> str:
    """A tensor of deepstack by its layer, and not by its number.

    >>> layer_name("deepstack_merger_list.1.norm.weight", {"deepstack_visual_indexes": [5, 11]})
    'deepstack.11.norm.weight'
    """
    layers = config.get("deepstack_visual_indexes", [])
    return _DEEPSTACK.sub(lambda found: f"deepstack.{layers[int(found[1])]}.", name)


HF = VisionAdapter(
    (
        "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    ),
    "qwen3vl_merger",
    config=qwen_config("gelu_pytorch_tanh")
    | {
        "vision.patch_size": key_or("patch_size", 16),
        "vision.is_deepstack_layers": deepstack_layers,
    },
    tensors=QWEN_TENSORS
    | {
        "pos_embed": "v.position_embd",
        "blocks.{i}.mlp.linear_fc1": "v.blk.{i}.ffn_up",
        "blocks.{i}.mlp.linear_fc2": "v.blk.{i}.ffn_down",
        "merger.norm": "v.post_ln",
        "merger.linear_fc1": "mm.0",
        "merger.linear_fc2": "mm.2",
        "deepstack.{i}.norm": "v.deepstack.{i}.norm",
        "deepstack.{i}.linear_fc1": "v.deepstack.{i}.fc1",
        "deepstack.{i}.linear_fc2": "v.deepstack.{i}.fc2",
    },
    rename=layer_name,
)  # fmt: skip


class Model(QwenTower):
    def __init__(self, file: Checkpoint) -> None:
        super().__init__(file, read_activation(file))
        c = self.sizes
        self.table = file.table("v.position_embd.weight", c.hidden)
        self.side = int(len(self.table) ** 0.5)
        if self.side**2 != len(self.table):
            raise FileError(f"{file.path}: {len(self.table)} positions are no square")
        period = 0 if file.has("vision.is_deepstack_layers") else None
        flags = file.flags("vision.is_deepstack_layers", c.layers) if period == 0 else [False] * c.layers
        layers = [layer for layer, flag in enumerate(flags) if flag]
        self.deepstack = {
            layer: DeepstackMerger(file, layer, c.hidden * self.merge_size**2, c.out, c.eps) for layer in layers
        }

    @property
    def parts(self) -> int:
        return 1 + len(self.deepstack)

    def prepare(self, picture: Picture) -> PreparedImage:
        image = super().prepare(picture)
        assert image.axes is not None
        rows, columns = (size * self.merge_size for size in image.grid)
        return replace(image, added=interpolated(self.table, self.side, rows, columns)[tuple(image.axes)])

    def tower(self, ops: Ops) -> Value:
        x = ops.insert(self.patch_embd(ops), adds=True)
        rows = []
        for layer, block in enumerate(self.blk):
            x = block(ops, x)
            rows += [x] if layer in self.deepstack else []
        out = self.post_ln(ops, x)
        for one in rows:
            out = ops.join(out, one, 1)
        return out

    def merge(self, hidden: Floats, image: PreparedImage) -> Floats:
        """The squares of each part, side by side."""
        parts = [
            super(Model, self).merge(np.ascontiguousarray(part), image) for part in np.split(hidden, self.parts, 1)
        ]
        return np.concatenate(parts, axis=1)

    def project(self, ops: Ops) -> Value:
        width = self.sizes.hidden * self.merge_size**2
        x = ops.given(width * self.parts)
        out = self.project_rows(ops, ops.columns(x, 0, width))
        for number, merger in enumerate(self.deepstack.values(), 1):
            out = ops.join(out, merger(ops, ops.columns(x, number * width, width)), 1)
        return out


class DeepstackMerger:
    """Joined rows of a layer to what is added in the text model."""

    def __init__(self, file: Checkpoint, layer: int, joined: int, out: int, eps: float) -> None:
        name = f"v.deepstack.{layer}"
        self.norm = VisionLayerNorm(file, f"{name}.norm", joined, eps)
        self.fc1, self.fc2 = Linear(file, f"{name}.fc1", joined, joined), Linear(file, f"{name}.fc2", out, joined)

    def __call__(self, ops: Ops, x: Value) -> Value:
        return self.fc2(ops, ops.activate(self.fc1(ops, self.norm(ops, x)), "gelu"))


def interpolated(table: Floats, side: int, rows: int, columns: int) -> Floats:
    """A square table of positions, by row and column, for another number of them; the corners are kept.

    >>> interpolated(np.array([[0.0], [1.0], [2.0], [3.0]], np.float32), 2, 1, 3)[..., 0].tolist()
    [[0.0, 0.5, 1.0]]
    """
    square = table.reshape(side, side, -1)
    (top, bottom, down), (left, right, across) = _places(side, rows), _places(side, columns)
    upper = square[top][:, left] * (1 - across)[:, None] + square[top][:, right] * across[:, None]
    lower = square[bottom][:, left] * (1 - across)[:, None] + square[bottom][:, right] * across[:, None]
    return np.asarray(upper * (1 - down)[:, None, None] + lower * down[:, None, None], np.float32)


def _places(side: int, count: int) -> tuple[Longs, Longs, Doubles]:
    """The neighbours of each place, and how far it is from the first of them."""
    at = np.linspace(0, side - 1, count)
    first = np.floor(at).astype(np.int64)
    return first, np.minimum(first + 1, side - 1), at - first

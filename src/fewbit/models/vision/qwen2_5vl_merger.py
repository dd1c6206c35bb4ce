"""Qwen2.5-VL: most layers see windows of patches, whose squares follow each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...arrays import Floats, Ints
from ...errors import FileError
from ...images import Picture, PreparedImage
from ..checkpoint import Checkpoint
from .activation import read_activation
from .adapter import VisionAdapter, key_or
from .blocks import VisionNorm
from .qwen import QWEN_TENSORS, QwenTower, qwen_config


def full_period(config: Mapping[str, Any]) -> int:
    """Of so many layers each last one has no windows.

    >>> full_period({"depth": 32, "fullatt_block_indexes": [7, 15, 23, 31]})
    8
    """
    found = config.get("fullatt_block_indexes", [7, 15, 23, 31])
    period = int(found[0]) + 1
    if [*found] != [*range(period - 1, config["depth"], period)]:
        raise FileError(f"fullatt_block_indexes must be every {period}th layer, they are {found}")
    return period


HF = VisionAdapter(
    ("Qwen2_5_VLForConditionalGeneration",),
    "qwen2.5vl_merger",
    config=qwen_config("silu") | {"vision.n_wa_pattern": full_period, "vision.window_size": key_or("window_size", 112)},
    tensors=QWEN_TENSORS
    | {
        "blocks.{i}.mlp.gate_proj": "v.blk.{i}.ffn_gate",
        "blocks.{i}.mlp.up_proj": "v.blk.{i}.ffn_up",
        "blocks.{i}.mlp.down_proj": "v.blk.{i}.ffn_down",
        "merger.ln_q": "v.post_ln",
        "merger.mlp.{i}": "mm.{i}",
    },
)


class Model(QwenTower):
    def __init__(self, file: Checkpoint) -> None:
        super().__init__(
            file, read_activation(file, default="silu"), VisionNorm, file.size("vision.n_wa_pattern", default=8)
        )
        window = file.size("vision.window_size", default=112, most=1 << 14)
        self.window = window // self.merge_size // self.sizes.patch  # squares on a side
        if not self.window:
            raise FileError(f"{file.path}: windows of {window} pixels hold no square of patches")

    def prepare(self, picture: Picture) -> PreparedImage:
        image = super().prepare(picture)
        assert image.axes is not None
        order, ends = self._windows(*image.grid)
        size = self.merge_size**2
        patches = (order[:, None] * size + np.arange(size)).reshape(-1)
        starts = np.concatenate([[0], ends[:-1]])
        owners = np.repeat(np.arange(len(ends)), ends - starts)
        spans = np.stack([starts[owners], ends[owners]], axis=1).repeat(size, axis=0) * size
        return replace(
            image, patches=image.patches[patches], axes=np.ascontiguousarray(image.axes[:, patches]),
            spans=spans.astype(np.int64),
        )  # fmt: skip

    def merge(self, hidden: Floats, image: PreparedImage) -> Floats:
        joined = super().merge(hidden, image)
        out = np.empty_like(joined)
        out[self._windows(*image.grid)[0]] = joined
        return out

    def _windows(self, rows: int, columns: int) -> tuple[Ints, Ints]:
        """The numbers of the squares, window by window, and how many there are up to the end of each window."""
        numbers = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
        windows = [
            numbers[row : row + self.window, column : column + self.window].reshape(-1)
            for row in range(0, rows, self.window)
            for column in range(0, columns, self.window)
        ]
        return np.concatenate(windows), np.cumsum([*map(len, windows)]).astype(np.int32)

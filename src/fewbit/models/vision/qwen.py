"""The towers of Qwen-VL: images of any size, positions of patches by row and column, squares of patches joined."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...arrays import Floats, Ints
from ...errors import FileError, ImageError
from ...images import Picture, PixelRules, PreparedImage, patches_of, resize, to_floats
from ...ops.graph import Rope, Value
from ...ops.recorder import Ops
from ..adapter import Tensors
from ..checkpoint import Checkpoint
from ..layers import Linear
from ..rotary import plain_inv_freq
from ..transforms import Transform
from .adapter import key_or, preprocessor, vision_config
from .blocks import PatchEmbedding, VisionBlock, VisionLayerNorm, VisionNorm, VisionSizes, read_pixels

MAX_TOKENS = 4096  # of an image, whatever its processor allows: memory grows with them
MOST_NARROW = 200  # times longer than wide
PAD = "<|image_pad|>"

CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def frame(number: int) -> Transform:
    """The weights of one of the frames that a convolution over time takes."""
    return Transform(lambda w, config: w[:, :, number])


QWEN_TENSORS: Tensors = {
    "patch_embed.proj.weight": [("v.patch_embd.weight", frame(0)), ("v.patch_embd.weight.1", frame(1))],
    "patch_embed.proj.bias": "v.patch_embd.bias",
    "blocks.{i}.norm1": "v.blk.{i}.ln1",
    "blocks.{i}.norm2": "v.blk.{i}.ln2",
    "blocks.{i}.attn.qkv": "v.blk.{i}.attn_qkv",
    "blocks.{i}.attn.proj": "v.blk.{i}.attn_out",
}


def _pixels(key: str, older: str) -> Any:
    """A limit of pixels, as either version of the processor's settings has it."""

    def find(config: Mapping[str, Any]) -> Any:
        found = preprocessor(f"size.{key}")(config)
        return preprocessor(older)(config) if found is None else found

    return find


def qwen_config(hidden_act: str, **names: str) -> dict[str, Any]:
    """Where hyperparameters are; `names` are those that differ between versions."""
    return vision_config(CLIP_MEAN, CLIP_STD, hidden_act=hidden_act) | {
        "vision.image_size": _image_size,
        "vision.patch_size": key_or("patch_size", 14),
        "vision.embedding_length": names.get("hidden", "hidden_size"),
        "vision.feed_forward_length": _feed_forward,
        "vision.block_count": "depth",
        "vision.attention.head_count": "num_heads",
        "vision.attention.layer_norm_epsilon": lambda config: 1e-6,
        "vision.spatial_merge_size": key_or("spatial_merge_size", 2),
        "vision.image_min_pixels": _pixels("shortest_edge", "min_pixels"),
        "vision.image_max_pixels": _pixels("longest_edge", "max_pixels"),
    }


def _image_size(config: Mapping[str, Any]) -> int:
    """The side of the image that learned positions are for; else llama.cpp's, which wants some number."""
    positions = config.get("num_position_embeddings")
    return math.isqrt(positions) * int(config.get("patch_size", 16)) if positions else 560


def _feed_forward(config: Mapping[str, Any]) -> int:
    return int(config.get("intermediate_size") or config.get("embed_dim", 1280) * config.get("mlp_ratio", 4))


class QwenTower:
    """The tower, and how its patches are joined.

    `norm` and `kind` are those of its blocks. The patches of a square that is joined follow each other.
    """

    placeholder, token, sees_all, has_axes = f"<|vision_start|>{PAD}<|vision_end|>", PAD, False, True
    joint_tokens = 0

    def __init__(
        self,
        file: Checkpoint,
        kind: str,
        norm: type[VisionLayerNorm] | type[VisionNorm] = VisionLayerNorm,
        full_period: int = 1,
    ) -> None:
        c = self.sizes = VisionSizes.read(file)
        self.merge_size = file.size("vision.spatial_merge_size", default=2, most=8)
        if c.dim % 4:
            raise FileError(f"{file.path}: heads of {c.dim} values have no room for rows and columns")
        self.pixels: PixelRules = read_pixels(file, "bicubic")
        area = (self.merge_size * c.patch) ** 2
        self.min_pixels = file.size("vision.image_min_pixels", default=8 * area, most=1 << 31)
        self.max_pixels = min(
            file.size("vision.image_max_pixels", default=MAX_TOKENS * area, most=1 << 31), MAX_TOKENS * area
        )
        self.patch_embd = PatchEmbedding(file, c, "v.patch_embd.weight", "v.patch_embd.weight.1")
        inv_freq = np.tile(plain_inv_freq(c.dim // 2, 10000.0), 2).astype(np.float32)
        rope = Rope(inv_freq, neox=True, axes=(0,) * (c.dim // 4) + (1,) * (c.dim // 4))
        self.blk = [
            VisionBlock(file, i, c, kind, norm=norm, rope=rope, windows=(i + 1) % full_period != 0)
            for i in range(c.layers)
        ]
        self.post_ln = norm(file, "v.post_ln", c.hidden, c.eps)
        joined = c.hidden * self.merge_size**2
        self.mm = Linear(file, "mm.0", joined, joined), Linear(file, "mm.2", c.out, joined)

    @property
    def width(self) -> int:
        return self.sizes.out

    @property
    def parts(self) -> int:
        return 1

    def prepare(self, picture: Picture) -> PreparedImage:
        factor = self.merge_size * self.sizes.patch
        width, height = smart_size(*picture.image.size, factor, self.min_pixels, self.max_pixels)
        image = resize(picture.image, width, height, self.pixels.resample)
        patches = patches_of(to_floats(np.asarray(image), self.pixels), self.sizes.patch)
        places = self.places(height // self.sizes.patch, width // self.sizes.patch)
        grid = height // factor, width // factor
        number = places[0] * (width // self.sizes.patch) + places[1]
        text = f"<|vision_start|>{PAD * (grid[0] * grid[1])}<|vision_end|>"
        return PreparedImage(patches[number], (len(patches),), text, grid, axes=places)

    def places(self, rows: int, columns: int) -> Ints:
        """Row and column of each patch, squares one after another: (2, patches)."""
        m = self.merge_size
        grid = np.mgrid[:rows, :columns].reshape(2, rows // m, m, columns // m, m)
        return np.ascontiguousarray(grid.transpose(0, 1, 3, 2, 4)).reshape(2, -1).astype(np.int32)

    def tower(self, ops: Ops) -> Value:
        x = self.patch_embd(ops)
        for block in self.blk:
            x = block(ops, x)
        return self.post_ln(ops, x)

    def merge(self, hidden: Floats, image: PreparedImage) -> Floats:
        return hidden.reshape(-1, hidden.shape[1] * self.merge_size**2)

    def project(self, ops: Ops) -> Value:
        return self.project_rows(ops, ops.given(self.sizes.hidden * self.merge_size**2))

    def project_rows(self, ops: Ops, x: Value) -> Value:
        first, second = self.mm
        return second(ops, ops.activate(first(ops, x), "gelu"))


def smart_size(width: int, height: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Width and height in multiples of `factor`, with a number of pixels within limits, and about the same shape.

    >>> smart_size(100, 40, 28, 3136, 1 << 20), smart_size(10, 10, 28, 3136, 1 << 20)
    ((112, 28), (56, 56))
    """
    if max(width, height) > MOST_NARROW * min(width, height):
        raise ImageError(f"the image is too narrow: {width} x {height} pixels; at most 1:{MOST_NARROW} can be seen")
    new_width, new_height = round(width / factor) * factor, round(height / factor) * factor
    if new_width * new_height > max_pixels:
        beta = math.sqrt((height * width) / max_pixels)
        new_width, new_height = (max(factor, math.floor(x / beta / factor) * factor) for x in (width, height))
    elif new_width * new_height < min_pixels:
        beta = math.sqrt(min_pixels / (height * width))
        new_width, new_height = (math.ceil(x * beta / factor) * factor for x in (width, height))
    return new_width, new_height

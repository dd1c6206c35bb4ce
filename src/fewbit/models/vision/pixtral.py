"""Pixtral (as LLaVA) and Mistral 3: images of any size, rope by row and column; a token ends each row of the image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...arrays import Floats
from ...errors import FileError
from ...files.shown import short
from ...images import Picture, PreparedImage, patches_of, resize, to_floats
from ...ops.graph import Rope, Value
from ...ops.recorder import Ops
from ..checkpoint import Checkpoint
from ..layers import Linear
from ..rotary import plain_inv_freq
from ..transforms import interleaved_rope
from .activation import activate, read_activation, read_named
from .adapter import VisionAdapter, preprocessor, vision_config
from .blocks import PatchEmbedding, VisionBlock, VisionNorm, VisionSizes, neighbours, read_pixels
from .qwen import CLIP_MEAN, CLIP_STD

_LAYER = "transformer.layers.{i}"


def merge_size(config: Mapping[str, Any]) -> int:
    """How many patches on a side are joined: LLaVA joins none. Refuses other towers, and rows of other layers.

    >>> merge_size({"model_type": "pixtral", "whole": {"vision_feature_layer": -1, "spatial_merge_size": 2}})
    2
    """
    whole = config["whole"]
    is_llava = "spatial_merge_size" not in whole
    tower, layer = config.get("model_type"), whole.get("vision_feature_layer", -2 if is_llava else -1)
    if tower != "pixtral":
        raise FileError(f"the vision tower must be a pixtral, it is {short(tower)}")
    if layer != -1:
        raise FileError(f"vision_feature_layer must be -1, the rows after the last layer; it is {short(layer)}")
    if is_llava and whole.get("vision_feature_select_strategy", "default") != "full":
        raise FileError('vision_feature_select_strategy must be "full": the tower has no row to leave out')
    return int(whole.get("spatial_merge_size", 1))


def rope_theta(config: Mapping[str, Any]) -> float:
    parameters = config.get("rope_parameters") or {}
    return float(parameters.get("rope_theta") or config.get("rope_theta") or 10000.0)


HF = VisionAdapter(
    ("Mistral3ForConditionalGeneration", "LlavaForConditionalGeneration"),
    "pixtral",
    config=vision_config(
        CLIP_MEAN, CLIP_STD, image_size=1024, patch_size=16, hidden_size=1024, intermediate_size=4096,
        num_hidden_layers=24, num_attention_heads=16, hidden_act="gelu",
    )
    | {
        "vision.attention.layer_norm_epsilon": lambda config: 1e-5,
        "vision.projector.activation": lambda config: config["whole"].get("projector_hidden_act", "gelu"),
        "vision.spatial_merge_size": merge_size,
        "vision.preproc_image_size": preprocessor("size.longest_edge"),
        "vision.rope.freq_base": rope_theta,
    },
    tensors={
        "patch_conv": "v.patch_embd",
        "ln_pre": "v.pre_ln",
        f"{_LAYER}.attention_norm": "v.blk.{i}.ln1",
        f"{_LAYER}.ffn_norm": "v.blk.{i}.ln2",
        f"{_LAYER}.attention.q_proj": ("v.blk.{i}.attn_q", interleaved_rope("num_attention_heads")),
        f"{_LAYER}.attention.k_proj": ("v.blk.{i}.attn_k", interleaved_rope("num_attention_heads")),
        f"{_LAYER}.attention.v_proj": "v.blk.{i}.attn_v",
        f"{_LAYER}.attention.o_proj": "v.blk.{i}.attn_out",
        f"{_LAYER}.feed_forward.gate_proj": "v.blk.{i}.ffn_gate",
        f"{_LAYER}.feed_forward.up_proj": "v.blk.{i}.ffn_up",
        f"{_LAYER}.feed_forward.down_proj": "v.blk.{i}.ffn_down",
        "multi_modal_projector.norm": "mm.input_norm",
        "multi_modal_projector.patch_merger.merging_layer": "mm.patch_merger",
        "multi_modal_projector.linear_1": "mm.1",
        "multi_modal_projector.linear_2": "mm.2",
    },
)  # fmt: skip


class Model:
    placeholder = token = "[IMG]"
    sees_all = has_axes = False
    joint_tokens, parts = 0, 1

    def __init__(self, file: Checkpoint) -> None:
        c = self.sizes = VisionSizes.read(file)
        self.pixels = read_pixels(file, "bicubic")
        self.longest = file.size("vision.preproc_image_size", default=c.image, most=1 << 12)
        self.patch_embd = PatchEmbedding(file, c)
        self.pre_ln = VisionNorm(file, "v.pre_ln", c.hidden, c.eps)
        inv_freq = plain_inv_freq(c.dim, file.number("vision.rope.freq_base", default=10000.0, least=1.0))
        half = c.dim // 4
        kind = read_activation(file, gelu="gelu", default="silu")
        both = np.concatenate([inv_freq[::2], inv_freq[1::2]]).astype(np.float32)
        rope = Rope(both, axes=(0,) * (len(both) - half) + (1,) * half)
        self.blk = [VisionBlock(file, i, c, kind, norm=VisionNorm, rope=rope) for i in range(c.layers)]
        joins = file.has_tensor("mm.patch_merger.weight")
        self.merge_size = file.size("vision.spatial_merge_size", default=1, most=8) if joins else 1
        self.input_norm = VisionNorm(file, "mm.input_norm", c.hidden, c.eps) if joins else None
        self.merger = Linear(file, "mm.patch_merger", c.hidden, c.hidden * self.merge_size**2) if joins else None
        self.projector_kind = read_named(file, "vision.projector.activation", "gelu")
        self.mm = Linear(file, "mm.1", c.out, c.hidden), Linear(file, "mm.2", c.out, c.out)
        file.skip("v.token_embd.img_break")  # the text model has it

    @property
    def width(self) -> int:
        return self.sizes.out

    def prepare(self, picture: Picture) -> PreparedImage:
        patch = self.sizes.patch
        width, height = fitting_size(*picture.image.size, self.longest, patch * self.merge_size)
        image = resize(picture.image, width, height, self.pixels.resample)
        patches = patches_of(to_floats(np.asarray(image), self.pixels), patch)
        axes = np.mgrid[: height // patch, : width // patch].reshape(2, -1).astype(np.int32)
        rows, columns = height // patch // self.merge_size, width // patch // self.merge_size
        text = "[IMG_BREAK]".join([self.token * columns] * rows) + "[IMG_END]"
        return PreparedImage(patches, (len(patches),), text, (rows, columns), axes=axes)

    def tower(self, ops: Ops) -> Value:
        x = self.pre_ln(ops, self.patch_embd(ops))
        for block in self.blk:
            x = block(ops, x)
        return x if self.input_norm is None else self.input_norm(ops, x)

    def merge(self, hidden: Floats, image: PreparedImage) -> Floats:
        """Squares of patches, the values of each column side by side."""
        rows, columns = (size * self.merge_size for size in image.grid)
        squares = neighbours(hidden, rows, columns, self.merge_size)
        return np.ascontiguousarray(squares.transpose(0, 1, 4, 2, 3)).reshape(-1, hidden.shape[1] * self.merge_size**2)

    def project(self, ops: Ops) -> Value:
        x = ops.given(self.sizes.hidden * self.merge_size**2)
        x = x if self.merger is None else self.merger(ops, x)
        first, second = self.mm
        return second(ops, activate(ops, first(ops, x), self.projector_kind))


def fitting_size(width: int, height: int, longest: int, factor: int) -> tuple[int, int]:
    """Width and height of whole squares of patches, the longer side at most about `longest`.

    >>> fitting_size(100, 40, 64, 16), fitting_size(10, 10, 64, 16)
    ((64, 32), (16, 16))
    """
    ratio = max(height / longest, width / longest)
    if ratio > 1:
        width, height = math.floor(width / ratio), math.floor(height / ratio)
    new_width, new_height = ((size - 1) // factor * factor + factor for size in (width, height))
    return max(new_width, factor), max(new_height, factor)

"""SigLIP: square images of fixed size, learned positions. The tower of Gemma 3, SmolVLM and Idefics 3."""

from __future__ import annotations

import numpy as np

from ...arrays import Floats
from ...images import Picture, PixelRules, ResampleName, patches_of, resize, to_floats
from ...ops.graph import Value
from ...ops.recorder import Ops
from ..adapter import Tensors
from ..checkpoint import Checkpoint
from .activation import read_activation
from .adapter import vision_config
from .blocks import PatchEmbedding, VisionBlock, VisionLayerNorm, VisionSizes, read_pixels

SIGLIP_TENSORS: Tensors = {
    "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd",
    "post_layernorm": "v.post_ln",
    "encoder.layers.{i}.layer_norm1": "v.blk.{i}.ln1",
    "encoder.layers.{i}.layer_norm2": "v.blk.{i}.ln2",
    "encoder.layers.{i}.self_attn.q_proj": "v.blk.{i}.attn_q",
    "encoder.layers.{i}.self_attn.k_proj": "v.blk.{i}.attn_k",
    "encoder.layers.{i}.self_attn.v_proj": "v.blk.{i}.attn_v",
    "encoder.layers.{i}.self_attn.out_proj": "v.blk.{i}.attn_out",
    "encoder.layers.{i}.mlp.fc1": "v.blk.{i}.ffn_up",
    "encoder.layers.{i}.mlp.fc2": "v.blk.{i}.ffn_down",
}
SIGLIP_CONFIG = vision_config(
    image_size=224, patch_size=16, hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
    num_attention_heads=12,
)  # fmt: skip


class Siglip:
    """The tower, up to its last norm."""

    has_axes = False

    def __init__(self, file: Checkpoint, resample: ResampleName) -> None:
        c = self.sizes = VisionSizes.read(file)
        self.pixels: PixelRules = read_pixels(file, resample)
        self.patch_embd = PatchEmbedding(file, c)
        self.position_embd = file.embedding("v.position_embd.weight", c.side**2, c.hidden)
        kind = read_activation(file)
        self.blk = [VisionBlock(file, layer, c, kind) for layer in range(c.layers)]
        self.post_ln = VisionLayerNorm(file, "v.post_ln", c.hidden, c.eps)

    @property
    def width(self) -> int:
        return self.sizes.out

    @property
    def parts(self) -> int:
        return 1

    def tower(self, ops: Ops) -> Value:
        x = self.patch_embd(ops) + ops.positions(self.position_embd)
        for block in self.blk:
            x = block(ops, x)
        return self.post_ln(ops, x)

    def square(self, picture: Picture) -> Floats:
        """The patches of a whole picture, brought to the tower's size."""
        size = self.sizes.image
        image = resize(picture.image, size, size, self.pixels.resample)
        return patches_of(to_floats(np.asarray(image), self.pixels), self.sizes.patch)

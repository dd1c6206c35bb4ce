"""Phi-3 and Phi-4: Q, K and V are one tensor, gate and up another; longrope."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..ops.graph import Rope
from .adapter import DECODER, DECODER_TENSORS, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, UniformDecoder
from .layers import Attention, FeedForward
from .transforms import rotary_dim


def longrope_scale(config: Mapping[str, Any]) -> float | None:
    """The attention factor of models with long-context rope factors."""
    rope = config["rope"]
    if "long_factor" not in rope:
        return None
    original = rope["original_max_position_embeddings"]
    factor = config["max_position_embeddings"] / original
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


HF = Adapter(
    ("Phi3ForCausalLM",),
    config=DECODER
    | {
        "rope.dimension_count": rotary_dim,
        "rope.scaling.attn_factor": longrope_scale,
        "attention.sliding_window": "sliding_window",
    },
    tensors=DECODER_TENSORS
    | {
        "model.layers.{i}.self_attn.qkv_proj": "blk.{i}.attn_qkv",
        "model.layers.{i}.mlp.gate_up_proj": "blk.{i}.ffn_up",
    },
)


class Model(UniformDecoder):
    def block(self, file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> Block:
        attn = Attention(file, layer, c, rope, window=window)
        return Block(file, layer, c, attn, FeedForward(file, layer, c, fused=True))

"""Phi-3 and Phi-4: Q, K and V are one tensor, gate and up another; longrope."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .adapter import DECODER, DECODER_TENSORS, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .layers import Attention, FeedForward, Norm, read_output
from .rotary import read_rope
from .transforms import rotary_dim


def longrope_scale(config: Mapping[str, Any]) -> float | None:
    """What long contexts multiply Q and K by together, of models that have factors for them."""
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


class Model:
    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file)
        rope = read_rope(file, c.k_dim, neox=True)
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.blk = [Block(file, layer, c, rope) for layer in range(c.layers)]
        self.output_norm = Norm(file, "output_norm", c.hidden)
        self.output = read_output(file, c)

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.token_embd)
        for block in self.blk:
            x = block.forward(ops, x)
        return ops.linear(self.output_norm(ops, x), self.output)


class Block:
    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope) -> None:
        window = file.size("attention.sliding_window", default=0, least=0)
        self.attn_norm = Norm(file, f"blk.{layer}.attn_norm", c.hidden)
        self.attn = Attention(file, layer, c, rope, window=window)
        self.ffn_norm = Norm(file, f"blk.{layer}.ffn_norm", c.hidden)
        self.ffn = FeedForward(file, layer, c, fused=True)

    def forward(self, ops: Ops, x: Value) -> Value:
        x = x + self.attn(ops, self.attn_norm(ops, x))
        return x + self.ffn(ops, self.ffn_norm(ops, x))

"""EmbeddingGemma: Gemma 3 whose tokens see each other in both directions, without a head."""

from __future__ import annotations

import math

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from . import gemma3
from .adapter import SANDWICH_TENSORS, Adapter, norms_plus_one
from .checkpoint import Checkpoint
from .config import Config
from .layers import Attention, FeedForward, Linear, Norm, head_norms, read_windows
from .rotary import read_local_rope, read_rope

HF = Adapter(("Gemma3TextModel",), config=gemma3.HF.config, tensors=norms_plus_one(SANDWICH_TENSORS))


class Model:
    has_head = False

    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file)
        rope, local = read_rope(file, c.k_dim, neox=True), read_local_rope(file, c.k_dim, neox=True)
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.blk = [
            Block(file, layer, c, local if window else rope, window // 2)
            for layer, window in enumerate(read_windows(file, c.layers, every=6))
        ]
        self.output_norm = Norm(file, "output_norm", c.hidden)
        self.dense = read_dense(file, c)

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.token_embd, math.sqrt(self.config.hidden))
        for block in self.blk:
            x = block.forward(ops, x)
        x = self.output_norm(ops, x)
        for dense in self.dense:
            x = dense(ops, x)
        return x


class Block:
    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope, around: int) -> None:
        name = f"blk.{layer}"
        self.attn_norm = Norm(file, f"{name}.attn_norm", c.hidden)
        self.attn = Attention(file, layer, c, rope, norms=head_norms(file, layer, c), around=around)
        self.post_attention_norm = Norm(file, f"{name}.post_attention_norm", c.hidden)
        self.ffn_norm = Norm(file, f"{name}.ffn_norm", c.hidden)
        self.ffn = FeedForward(file, layer, c, "gelu_tanh")
        self.post_ffw_norm = Norm(file, f"{name}.post_ffw_norm", c.hidden)

    def forward(self, ops: Ops, x: Value) -> Value:
        x = x + self.post_attention_norm(ops, self.attn(ops, self.attn_norm(ops, x)))
        return x + self.post_ffw_norm(ops, self.ffn(ops, self.ffn_norm(ops, x)))


def read_dense(file: Checkpoint, c: Config) -> list[Linear]:
    """Products that some files have after pooling. They are linear: pooling their results is the same."""
    if not file.has_tensor("dense_2.weight"):
        return []
    wide = file.size("dense_2_feat_out")
    return [Linear(file, "dense_2", wide, c.hidden), Linear(file, "dense_3", file.size("dense_3_feat_out"), wide)]

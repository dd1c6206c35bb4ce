"""EmbeddingGemma: Gemma 3 whose tokens see each other in both directions, without a head."""

from __future__ import annotations

import math

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from . import gemma3
from .adapter import SANDWICH_TENSORS, Adapter, norms_plus_one
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Sandwich
from .layers import Attention, FeedForward, Linear, Norm, head_norms, read_windows
from .rotary import read_local_rope, read_rope

HF = Adapter(
    ("Gemma3TextModel",),
    config={
        **gemma3.HF.config,
        "attention.causal": lambda config: not config.get("use_bidirectional_attention"),
    },
    tensors=norms_plus_one(SANDWICH_TENSORS),
)


class Model:
    has_head = False

    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file)
        rope, local = read_rope(file, c.k_dim, neox=True), read_local_rope(file, c.k_dim, neox=True)
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.blk = [
            block(file, layer, c, local if window else rope, window // 2)
            for layer, window in enumerate(read_windows(file, c.layers, period=6))
        ]
        self.output_norm = Norm(file, "output_norm", c.hidden)
        self.dense = read_dense(file, c)

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.token_embd, math.sqrt(self.config.hidden))
        for one in self.blk:
            x = one(ops, x)
        x = self.output_norm(ops, x)
        for dense in self.dense:
            x = dense(ops, x)
        return x


def block(file: Checkpoint, layer: int, c: Config, rope: Rope, radius: int) -> Sandwich:
    attn = Attention(file, layer, c, rope, norms=head_norms(file, layer, c), radius=radius)
    return Sandwich(file, layer, c, attn, FeedForward(file, layer, c, "gelu_tanh"))


def read_dense(file: Checkpoint, c: Config) -> list[Linear]:
    """Dense layers that some files apply after pooling. They are linear, so they can be applied before it."""
    if not file.has_tensor("dense_2.weight"):
        return []
    wide = file.size("dense_2_feat_out")
    return [Linear(file, "dense_2", wide, c.hidden), Linear(file, "dense_3", file.size("dense_3_feat_out"), wide)]

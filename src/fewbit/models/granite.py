"""Granite: as Llama, with scales of embeddings, of what layers add, of attention and of logits."""

from __future__ import annotations

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .adapter import DECODER, INTERLEAVED_TENSORS, Adapter, head_dim
from .checkpoint import Checkpoint
from .config import Config
from .layers import Attention, FeedForward, Norm, read_output
from .rotary import read_rope

HF = Adapter(
    ("GraniteForCausalLM",),
    config=DECODER
    | {
        "rope.dimension_count": head_dim,
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    },
    tensors=INTERLEAVED_TENSORS,
)


class Model:
    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file)
        rope = read_rope(file, c.k_dim) if file.flag("rope.scaling.finetuned", default=True) else None
        self.embedding_scale = file.number("embedding_scale", default=1.0)
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.blk = [Block(file, layer, c, rope) for layer in range(c.layers)]
        self.output_norm = Norm(file, "output_norm", c.hidden)
        self.output_norm.weight /= file.number("logit_scale", least=1e-6)  # logits are linear in it
        self.output = read_output(file, c)

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.token_embd, self.embedding_scale)
        for block in self.blk:
            x = block.forward(ops, x)
        return ops.linear(self.output_norm(ops, x), self.output)


class Block:
    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope | None) -> None:
        self.residual_scale = file.number("residual_scale", default=1.0)
        self.attn_norm = Norm(file, f"blk.{layer}.attn_norm", c.hidden)
        self.attn = Attention(file, layer, c, rope)
        self.ffn_norm = Norm(file, f"blk.{layer}.ffn_norm", c.hidden)
        self.ffn = FeedForward(file, layer, c)

    def forward(self, ops: Ops, x: Value) -> Value:
        x = x + ops.scale(self.attn(ops, self.attn_norm(ops, x)), self.residual_scale)
        return x + ops.scale(self.ffn(ops, self.ffn_norm(ops, x)), self.residual_scale)

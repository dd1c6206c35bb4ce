"""Qwen3 with experts in the place of feed-forward layers."""

from __future__ import annotations

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .adapter import Adapter
from .checkpoint import Checkpoint
from .config import Config
from .experts import Experts
from .layers import Attention, Norm, head_norms, read_output
from .rotary import read_rope

HF = Adapter(("Qwen3MoeForCausalLM",))


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
        self.attn_norm = Norm(file, f"blk.{layer}.attn_norm", c.hidden)
        self.attn = Attention(file, layer, c, rope, norms=head_norms(file, layer, c))
        self.ffn_norm = Norm(file, f"blk.{layer}.ffn_norm", c.hidden)
        self.ffn = Experts(file, layer, c)

    def forward(self, ops: Ops, x: Value) -> Value:
        x = x + self.attn(ops, self.attn_norm(ops, x))
        return x + self.ffn(ops, self.ffn_norm(ops, x))

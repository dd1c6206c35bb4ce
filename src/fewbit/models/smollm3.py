"""SmolLM3: as Llama, but every fourth layer has no rope."""

from __future__ import annotations

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .adapter import DECODER, INTERLEAVED_TENSORS, Adapter, head_dim
from .checkpoint import Checkpoint
from .config import Config
from .layers import Attention, FeedForward, Norm, read_output
from .rotary import read_rope

NO_ROPE_EVERY = 4  # layers

HF = Adapter(("SmolLM3ForCausalLM",), config=DECODER | {"rope.dimension_count": head_dim}, tensors=INTERLEAVED_TENSORS)


class Model:
    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file)
        rope = read_rope(file, c.k_dim)
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.blk = [Block(file, layer, c, rope if (layer + 1) % NO_ROPE_EVERY else None) for layer in range(c.layers)]
        self.output_norm = Norm(file, "output_norm", c.hidden)
        self.output = read_output(file, c)

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.token_embd)
        for block in self.blk:
            x = block.forward(ops, x)
        return ops.linear(self.output_norm(ops, x), self.output)


class Block:
    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope | None) -> None:
        self.attn_norm = Norm(file, f"blk.{layer}.attn_norm", c.hidden)
        self.attn = Attention(file, layer, c, rope)
        self.ffn_norm = Norm(file, f"blk.{layer}.ffn_norm", c.hidden)
        self.ffn = FeedForward(file, layer, c)

    def forward(self, ops: Ops, x: Value) -> Value:
        x = x + self.attn(ops, self.attn_norm(ops, x))
        return x + self.ffn(ops, self.ffn_norm(ops, x))

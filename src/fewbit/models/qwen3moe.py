"""Qwen3 with experts in the place of feed-forward layers."""

from __future__ import annotations

from ..ops.graph import Rope
from .adapter import Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder
from .experts import Experts
from .layers import Attention, head_norms
from .rotary import read_rope

HF = Adapter(("Qwen3MoeForCausalLM",))


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope = read_rope(file, c.k_dim, neox=True)
        super().__init__(file, c, [block(file, layer, c, rope) for layer in range(c.layers)])


def block(file: Checkpoint, layer: int, c: Config, rope: Rope) -> Block:
    attn = Attention(file, layer, c, rope, norms=head_norms(file, layer, c))
    return Block(file, layer, c, attn, Experts(file, layer, c))

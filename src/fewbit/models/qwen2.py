"""Qwen2 and Qwen2.5: as Llama, with biases of Q, K and V, and NeoX rope."""

from __future__ import annotations

from ..ops.graph import Rope
from .adapter import Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder
from .layers import Attention, FeedForward
from .rotary import read_rope

HF = Adapter(("Qwen2ForCausalLM", "Qwen2Model"))


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope = read_rope(file, c.k_dim, neox=True)
        super().__init__(file, c, [block(file, layer, c, rope) for layer in range(c.layers)])


def block(file: Checkpoint, layer: int, c: Config, rope: Rope) -> Block:
    return Block(file, layer, c, Attention(file, layer, c, rope), FeedForward(file, layer, c))

"""SmolLM3: as Llama, but every fourth layer has no rope."""

from __future__ import annotations

from ..ops.graph import Rope
from .adapter import DECODER, INTERLEAVED_TENSORS, Adapter, head_dim
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder
from .layers import Attention, FeedForward
from .rotary import read_rope

NO_ROPE_EVERY = 4  # layers

HF = Adapter(("SmolLM3ForCausalLM",), config=DECODER | {"rope.dimension_count": head_dim}, tensors=INTERLEAVED_TENSORS)


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope = read_rope(file, c.k_dim)
        ropes = [rope if (layer + 1) % NO_ROPE_EVERY else None for layer in range(c.layers)]
        super().__init__(file, c, [block(file, layer, c, own) for layer, own in enumerate(ropes)])


def block(file: Checkpoint, layer: int, c: Config, rope: Rope | None) -> Block:
    return Block(file, layer, c, Attention(file, layer, c, rope), FeedForward(file, layer, c))

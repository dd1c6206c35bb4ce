"""Granite: as Llama, with scales of embeddings, of what layers add, of attention and of logits."""

from __future__ import annotations

from ..ops.graph import Rope
from .adapter import DECODER, INTERLEAVED_TENSORS, Adapter, head_dim
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder
from .layers import Attention, FeedForward
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


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope = read_rope(file, c.k_dim) if file.flag("rope.scaling.finetuned", default=True) else None
        blocks = [block(file, layer, c, rope) for layer in range(c.layers)]
        super().__init__(file, c, blocks, scale=file.number("embedding_scale", default=1.0))
        self.output_norm.weight /= file.number("logit_scale", least=1e-6)  # logits are linear in it


def block(file: Checkpoint, layer: int, c: Config, rope: Rope | None) -> Block:
    scale = file.number("residual_scale", default=1.0)
    return Block(file, layer, c, Attention(file, layer, c, rope), FeedForward(file, layer, c), scale=scale)

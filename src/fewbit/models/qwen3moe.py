"""Qwen3 with experts in the place of feed-forward layers."""

from __future__ import annotations

from ..ops.graph import Rope
from .adapter import DECODER, Adapter, optional_window
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, UniformDecoder
from .experts import Experts
from .layers import Attention, head_norms

HF = Adapter(("Qwen3MoeForCausalLM",), config=DECODER | {"attention.sliding_window": optional_window})


class Model(UniformDecoder):
    def block(self, file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> Block:
        attn = Attention(file, layer, c, rope, norms=head_norms(file, layer, c), window=window)
        return Block(file, layer, c, attn, Experts(file, layer, c))

"""Qwen2 and Qwen2.5: as Llama, with biases of Q, K and V, and NeoX rope."""

from __future__ import annotations

from ..ops.graph import Rope
from .adapter import DECODER, OPTIONAL_WINDOWS, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, UniformDecoder
from .layers import Attention, FeedForward

HF = Adapter(("Qwen2ForCausalLM", "Qwen2Model"), config=DECODER | OPTIONAL_WINDOWS)


class Model(UniformDecoder):
    def block(self, file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> Block:
        attn = Attention(file, layer, c, rope, window=window)
        return Block(file, layer, c, attn, FeedForward(file, layer, c))

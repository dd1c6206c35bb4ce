"""Qwen2 and Qwen2.5: as Llama, with biases of Q, K and V, and NeoX rope."""

from __future__ import annotations

from ..ops.graph import Rope
from .adapter import DECODER, OPTIONAL_WINDOWS, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder
from .layers import Attention, FeedForward, read_windows
from .rotary import read_rope

HF = Adapter(("Qwen2ForCausalLM", "Qwen2Model"), config=DECODER | OPTIONAL_WINDOWS)


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope = read_rope(file, c.k_dim, neox=True)
        windows = read_windows(file, c.layers)
        super().__init__(file, c, [block(file, layer, c, rope, window) for layer, window in enumerate(windows)])


def block(file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> Block:
    attn = Attention(file, layer, c, rope, window=window)
    return Block(file, layer, c, attn, FeedForward(file, layer, c))

"""Qwen3 with experts in the place of feed-forward layers."""

from __future__ import annotations

from ..ops.graph import Rope
from .adapter import DECODER, Adapter, optional_window
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder
from .experts import Experts
from .layers import Attention, head_norms, read_windows
from .rotary import read_rope

HF = Adapter(("Qwen3MoeForCausalLM",), config=DECODER | {"attention.sliding_window": optional_window})


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope = read_rope(file, c.k_dim, neox=True)
        windows = read_windows(file, c.layers)
        super().__init__(file, c, [block(file, layer, c, rope, window) for layer, window in enumerate(windows)])


def block(file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> Block:
    attn = Attention(file, layer, c, rope, norms=head_norms(file, layer, c), window=window)
    return Block(file, layer, c, attn, Experts(file, layer, c))

"""SmolLM3: as Llama, but some layers have no rope: every fourth, unless a checkpoint names others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ops.graph import Rope
from .adapter import DECODER, INTERLEAVED_TENSORS, Adapter, head_dim, layer_numbers, optional_window
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder
from .layers import Attention, FeedForward, read_windows
from .rotary import read_rope

NO_ROPE_EVERY = 4  # layers
ROPE_PATTERN = "attention.rope_pattern"


def rope_pattern(config: Mapping[str, Any]) -> list[bool]:
    """Which layers have a rope: config.json has 0 for those without."""
    every = config.get("no_rope_layer_interval") or NO_ROPE_EVERY
    usual = [(layer + 1) % every for layer in layer_numbers(config)]
    return [bool(has_rope) for has_rope in config.get("no_rope_layers") or usual]


def window_pattern(config: Mapping[str, Any]) -> list[bool]:
    """Which layers have a window, if there is one: by default those without a rope."""
    kinds = config.get("layer_types")
    return [kind == "sliding_attention" for kind in kinds] if kinds else [not rope for rope in rope_pattern(config)]


HF = Adapter(
    ("SmolLM3ForCausalLM",),
    config=DECODER
    | {
        "rope.dimension_count": head_dim,
        ROPE_PATTERN: rope_pattern,
        "attention.sliding_window": optional_window,
        "attention.sliding_window_pattern": window_pattern,
    },
    tensors=INTERLEAVED_TENSORS,
)


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope = read_rope(file, c.k_dim)
        ropes = [rope if has_rope else None for has_rope in read_rope_pattern(file, c.layers)]
        windows = read_windows(file, c.layers)
        super().__init__(file, c, [block(file, i, c, ropes[i], windows[i]) for i in range(c.layers)])


def read_rope_pattern(file: Checkpoint, layers: int) -> list[bool]:
    """Which layers have a rope. llama.cpp may write a single number here, which is ignored."""
    if file.has_list(ROPE_PATTERN):
        return file.flags(ROPE_PATTERN, layers)
    return [(layer + 1) % NO_ROPE_EVERY != 0 for layer in range(layers)]


def block(file: Checkpoint, layer: int, c: Config, rope: Rope | None, window: int) -> Block:
    return Block(file, layer, c, Attention(file, layer, c, rope, window=window), FeedForward(file, layer, c))

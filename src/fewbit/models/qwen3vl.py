"""The text model of Qwen3-VL: as Qwen3, with rows and columns of images; rows of the encoder's layers are added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .adapter import DECODER, OPTIONAL_WINDOWS, Adapter, rope_sections
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, UniformDecoder
from .layers import Attention, FeedForward, head_norms


def num_deepstack(config: Mapping[str, Any]) -> int:
    """How many layers have rows of the encoder's layers added."""
    vision = config.get("vision_config")
    return len(vision.get("deepstack_visual_indexes", ())) if isinstance(vision, Mapping) else 0


CONFIG = DECODER | {"rope.dimension_sections": rope_sections, "n_deepstack_layers": num_deepstack}
HF = Adapter(("Qwen3VLForConditionalGeneration",), config=CONFIG | OPTIONAL_WINDOWS)


class Model(UniformDecoder):
    alternates = True

    def __init__(self, file: Checkpoint) -> None:
        super().__init__(file)
        self.num_deepstack = file.size("n_deepstack_layers", default=0, least=0, most=self.config.layers)

    def block(self, file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> Block:
        attn = Attention(file, layer, c, rope, norms=head_norms(file, layer, c), window=window)
        return Block(file, layer, c, attn, FeedForward(file, layer, c))

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.token_embd)
        for layer, block in enumerate(self.blk):
            x = block(ops, x)
            if layer < self.num_deepstack:
                x = ops.insert(x, 1 + layer, adds=True)
        return ops.linear(self.output_norm(ops, x), self.output)

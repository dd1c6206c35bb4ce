"""The text model of Qwen3-VL with experts in the place of feed-forward layers."""

from __future__ import annotations

from ..ops.graph import Rope
from . import qwen3vl
from .adapter import DECODER_TENSORS, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block
from .experts import Experts
from .layers import Attention, head_norms
from .transforms import transposed_part

HF = Adapter(
    ("Qwen3VLMoeForConditionalGeneration",),
    config=qwen3vl.CONFIG,
    tensors=DECODER_TENSORS
    | {
        "model.layers.{i}.mlp.experts.gate_up_proj": [
            ("blk.{i}.ffn_gate_exps.weight", transposed_part(0, 2)),
            ("blk.{i}.ffn_up_exps.weight", transposed_part(1, 2)),
        ],
        "model.layers.{i}.mlp.experts.down_proj": ("blk.{i}.ffn_down_exps.weight", transposed_part(0, 1)),
    },
)


class Model(qwen3vl.Model):
    def block(self, file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> Block:
        attn = Attention(file, layer, c, rope, norms=head_norms(file, layer, c), window=window)
        return Block(file, layer, c, attn, Experts(file, layer, c))

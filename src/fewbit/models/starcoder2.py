"""StarCoder2: as Llama, with LayerNorm, biases everywhere and a plain feed-forward layer."""

from __future__ import annotations

from ..ops.graph import Rope
from .adapter import DECODER, DECODER_TENSORS, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, UniformDecoder
from .layers import MLP, Attention, LayerNorm

HF = Adapter(
    ("Starcoder2ForCausalLM",),
    config=DECODER | {"attention.layer_norm_epsilon": "norm_epsilon", "attention.sliding_window": "sliding_window"},
    tensors=DECODER_TENSORS
    | {
        "model.layers.{i}.mlp.c_fc": "blk.{i}.ffn_up",
        "model.layers.{i}.mlp.c_proj": "blk.{i}.ffn_down",
    },
)


class Model(UniformDecoder):
    norm = LayerNorm

    def block(self, file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> Block:
        attn = Attention(file, layer, c, rope, window=window)
        return Block(file, layer, c, attn, MLP(file, layer, c, "gelu_tanh"), norm=LayerNorm)

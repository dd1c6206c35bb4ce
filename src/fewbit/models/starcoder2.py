"""StarCoder2: as Llama, with LayerNorm, biases everywhere and a plain feed-forward layer."""

from __future__ import annotations

from ..ops.graph import Rope
from .adapter import DECODER, DECODER_TENSORS, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder
from .layers import MLP, Attention, LayerNorm, read_windows
from .rotary import read_rope

HF = Adapter(
    ("Starcoder2ForCausalLM",),
    config=DECODER | {"attention.layer_norm_epsilon": "norm_epsilon", "attention.sliding_window": "sliding_window"},
    tensors=DECODER_TENSORS
    | {
        "model.layers.{i}.mlp.c_fc": "blk.{i}.ffn_up",
        "model.layers.{i}.mlp.c_proj": "blk.{i}.ffn_down",
    },
)


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope = read_rope(file, c.k_dim, neox=True)
        blocks = [block(file, i, c, rope, window) for i, window in enumerate(read_windows(file, c.layers))]
        super().__init__(file, c, blocks, norm=LayerNorm(file, "output_norm", c.hidden))


def block(file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> Block:
    attn = Attention(file, layer, c, rope, window=window)
    return Block(file, layer, c, attn, MLP(file, layer, c, "gelu_tanh"), norm=LayerNorm)

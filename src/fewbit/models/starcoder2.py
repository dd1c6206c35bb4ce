"""StarCoder2: as Llama, with LayerNorm, biases everywhere and a plain feed-forward layer."""

from __future__ import annotations

from ..ops.graph import Rope
from .adapter import DECODER, DECODER_TENSORS, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder
from .layers import MLP, Attention, LayerNorm
from .rotary import read_rope

HF = Adapter(
    ("Starcoder2ForCausalLM",),
    config=DECODER | {"attention.layer_norm_epsilon": "norm_epsilon"},
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
        blocks = [block(file, layer, c, rope) for layer in range(c.layers)]
        super().__init__(file, c, blocks, norm=LayerNorm(file, "output_norm", c.hidden))


def block(file: Checkpoint, layer: int, c: Config, rope: Rope) -> Block:
    return Block(file, layer, c, Attention(file, layer, c, rope), MLP(file, layer, c, "gelu_tanh"), norm=LayerNorm)

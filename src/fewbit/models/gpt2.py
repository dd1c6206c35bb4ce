"""GPT-2: positions are embeddings, norms are LayerNorm, everything has a bias."""

from __future__ import annotations

from ..ops.graph import Value
from ..ops.recorder import Ops
from .adapter import DECODER, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block
from .layers import MLP, Attention, LayerNorm, read_output
from .transforms import TRANSPOSED

HF = Adapter(
    ("GPT2LMHeadModel",),
    config=DECODER | {"feed_forward_length": lambda config: config.get("n_inner") or 4 * config["n_embd"]},
    tensors={
        "transformer.wte": "token_embd",
        "transformer.wpe": "position_embd",
        "transformer.h.{i}.ln_1": "blk.{i}.attn_norm",
        "transformer.h.{i}.attn.c_attn.weight": ("blk.{i}.attn_qkv.weight", TRANSPOSED),
        "transformer.h.{i}.attn.c_attn.bias": "blk.{i}.attn_qkv.bias",
        "transformer.h.{i}.attn.c_proj.weight": ("blk.{i}.attn_output.weight", TRANSPOSED),
        "transformer.h.{i}.attn.c_proj.bias": "blk.{i}.attn_output.bias",
        "transformer.h.{i}.ln_2": "blk.{i}.ffn_norm",
        "transformer.h.{i}.mlp.c_fc.weight": ("blk.{i}.ffn_up.weight", TRANSPOSED),
        "transformer.h.{i}.mlp.c_fc.bias": "blk.{i}.ffn_up.bias",
        "transformer.h.{i}.mlp.c_proj.weight": ("blk.{i}.ffn_down.weight", TRANSPOSED),
        "transformer.h.{i}.mlp.c_proj.bias": "blk.{i}.ffn_down.bias",
        "transformer.ln_f": "output_norm",
        "lm_head": "output",
    },
    dropped=("transformer.h.{i}.attn.bias", "transformer.h.{i}.attn.masked_bias"),
)


class Model:
    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file)
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.position_embd = file.embedding("position_embd.weight", c.ctx, c.hidden)
        self.blk = [block(file, layer, c) for layer in range(c.layers)]
        self.output_norm = LayerNorm(file, "output_norm", c.hidden)
        self.output = read_output(file, c)

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.token_embd) + ops.positions(self.position_embd)
        for one in self.blk:
            x = one(ops, x)
        return ops.linear(self.output_norm(ops, x), self.output)


def block(file: Checkpoint, layer: int, c: Config) -> Block:
    attn = Attention(file, layer, c, rope=None)
    return Block(file, layer, c, attn, MLP(file, layer, c, "gelu_tanh"), norm=LayerNorm)

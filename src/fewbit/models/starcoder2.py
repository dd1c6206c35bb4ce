"""StarCoder2: as Llama, with LayerNorm, biases everywhere and a plain feed-forward layer."""

from __future__ import annotations

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .adapter import DECODER, DECODER_TENSORS, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .layers import MLP, Attention, LayerNorm, read_output
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


class Model:
    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file)
        rope = read_rope(file, c.k_dim, neox=True)
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.blk = [Block(file, layer, c, rope) for layer in range(c.layers)]
        self.output_norm = LayerNorm(file, "output_norm", c.hidden)
        self.output = read_output(file, c)

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.token_embd)
        for block in self.blk:
            x = block.forward(ops, x)
        return ops.linear(self.output_norm(ops, x), self.output)


class Block:
    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope) -> None:
        self.attn_norm = LayerNorm(file, f"blk.{layer}.attn_norm", c.hidden)
        self.attn = Attention(file, layer, c, rope)
        self.ffn_norm = LayerNorm(file, f"blk.{layer}.ffn_norm", c.hidden)
        self.ffn = MLP(file, layer, c, "gelu_tanh")

    def forward(self, ops: Ops, x: Value) -> Value:
        x = x + self.attn(ops, self.attn_norm(ops, x))
        return x + self.ffn(ops, self.ffn_norm(ops, x))

"""Llama, and what is built like it: Mistral, SmolLM2, Yi; with experts, Mixtral."""

from __future__ import annotations

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .adapter import DECODER, INTERLEAVED_TENSORS, Adapter, head_dim
from .checkpoint import Checkpoint
from .config import Config
from .experts import Experts
from .layers import Attention, FeedForward, Norm, read_output
from .rotary import read_rope

HF = Adapter(
    ("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"),
    config=DECODER | {"rope.dimension_count": head_dim, "attention.sliding_window": "sliding_window"},
    tensors=INTERLEAVED_TENSORS
    | {
        "model.layers.{i}.block_sparse_moe.gate": "blk.{i}.ffn_gate_inp",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w1": "blk.{i}.ffn_gate_exps",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w2": "blk.{i}.ffn_down_exps",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w3": "blk.{i}.ffn_up_exps",
    },
)


class Model:
    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file)
        rope = read_rope(file, c.k_dim)
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.blk = [Block(file, layer, c, rope) for layer in range(c.layers)]
        self.output_norm = Norm(file, "output_norm", c.hidden)
        self.output = read_output(file, c)

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.token_embd)
        for block in self.blk:
            x = block.forward(ops, x)
        return ops.linear(self.output_norm(ops, x), self.output)


class Block:
    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope) -> None:
        window = file.size("attention.sliding_window", default=0, least=0)
        self.attn_norm = Norm(file, f"blk.{layer}.attn_norm", c.hidden)
        self.attn = Attention(file, layer, c, rope, window=window)
        self.ffn_norm = Norm(file, f"blk.{layer}.ffn_norm", c.hidden)
        routed = file.size("expert_count", default=0, least=0)
        self.ffn = Experts(file, layer, c) if routed else FeedForward(file, layer, c)

    def forward(self, ops: Ops, x: Value) -> Value:
        x = x + self.attn(ops, self.attn_norm(ops, x))
        return x + self.ffn(ops, self.ffn_norm(ops, x))

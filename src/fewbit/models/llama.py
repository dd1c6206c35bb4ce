"""Llama, and what is built like it: Mistral, SmolLM2, Yi; with experts, Mixtral."""

from __future__ import annotations

from ..ops.graph import Rope
from .adapter import DECODER, INTERLEAVED_TENSORS, Adapter, head_dim
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder
from .experts import Experts
from .layers import Attention, FeedForward
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


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope = read_rope(file, c.k_dim)
        super().__init__(file, c, [block(file, layer, c, rope) for layer in range(c.layers)])


def block(file: Checkpoint, layer: int, c: Config, rope: Rope) -> Block:
    attn = Attention(file, layer, c, rope, window=file.size("attention.sliding_window", default=0, least=0))
    has_experts = file.size("expert_count", default=0, least=0)
    return Block(file, layer, c, attn, Experts(file, layer, c) if has_experts else FeedForward(file, layer, c))

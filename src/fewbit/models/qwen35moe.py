"""Qwen3.5 with experts."""

from __future__ import annotations

from . import qwen35
from .adapter import Adapter
from .experts import Experts
from .layers import FeedForward
from .transforms import part

_MLP = "model.layers.{i}.mlp"
HF = Adapter(
    ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    config={
        **qwen35.HF.config,
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    },
    tensors={
        **qwen35.HF.tensors,
        f"{_MLP}.experts.gate_up_proj": [
            ("blk.{i}.ffn_gate_exps.weight", part(0, 2, axis=1)),
            ("blk.{i}.ffn_up_exps.weight", part(1, 2, axis=1)),
        ],
        f"{_MLP}.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
        f"{_MLP}.shared_expert.gate_proj": "blk.{i}.ffn_gate_shexp",
        f"{_MLP}.shared_expert.up_proj": "blk.{i}.ffn_up_shexp",
        f"{_MLP}.shared_expert.down_proj": "blk.{i}.ffn_down_shexp",
        f"{_MLP}.shared_expert_gate": "blk.{i}.ffn_gate_inp_shexp",
    },
    more_layers=True,
)


class Model(qwen35.Model):
    feed_forward: type[FeedForward] | type[Experts] = Experts

"""Llama, and what is built like it: Mistral, SmolLM2, Yi; with experts, Mixtral."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ops.graph import Rope
from .adapter import DECODER, INTERLEAVED_TENSORS, Adapter, head_dim
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, UniformDecoder
from .experts import Experts
from .layers import Attention, FeedForward


def mistral_window(config: Mapping[str, Any]) -> Any:
    """The window of Mistral and Mixtral; in Llama the key means nothing."""
    return None if config["architectures"] == ["LlamaForCausalLM"] else config.get("sliding_window")


def has_llama_text(config: Mapping[str, Any]) -> bool:
    """Whether LLaVA's text model is one of these."""
    return config["architectures"] != ["LlavaForConditionalGeneration"] or config["text_model"] in ("llama", "mistral")


HF = Adapter(
    (
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "Idefics3ForConditionalGeneration",
        "SmolVLMForConditionalGeneration",
        "LlavaForConditionalGeneration",
    ),
    config=DECODER | {"rope.dimension_count": head_dim, "attention.sliding_window": mistral_window},
    tensors=INTERLEAVED_TENSORS
    | {
        "model.layers.{i}.block_sparse_moe.gate": "blk.{i}.ffn_gate_inp",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w1": "blk.{i}.ffn_gate_exps",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w2": "blk.{i}.ffn_down_exps",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w3": "blk.{i}.ffn_up_exps",
    },
    fits=has_llama_text,
)


class Model(UniformDecoder):
    neox = False

    def block(self, file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> Block:
        attn = Attention(file, layer, c, rope, window=window)
        has_experts = file.size("expert_count", default=0, least=0)
        return Block(file, layer, c, attn, Experts(file, layer, c) if has_experts else FeedForward(file, layer, c))

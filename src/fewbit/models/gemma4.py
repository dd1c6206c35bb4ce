"""Gemma 4: as Gemma 3, with an embedding for each layer, K and V that layers share, or experts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..ops.graph import Value
from ..ops.recorder import Ops
from .adapter import DECODER, SANDWICH_TENSORS, WINDOWS, Adapter, layer_numbers
from .checkpoint import Checkpoint
from .config import Config
from .gemma4_parts import KV, ExpertsBeside, Gemma4Attention, LayerInputs, read_sizes, read_sources
from .layers import FeedForward, Linear, Norm, read_output, read_windows
from .rotary import read_local_rope, read_rope
from .transforms import Array


def of_full_layers(config: Mapping[str, Any], key: str, other: str) -> Any:
    """A size of the layers without a window, which may differ."""
    layers = config.get("per_layer_config") or {}
    kinds = config["layer_types"]
    found = (layer[key] for i, layer in layers.items() if kinds[int(i)] == "full_attention" and key in layer)
    return config.get(other) or next(found, config[key])


def kv_heads(config: Mapping[str, Any]) -> Any:
    usual, kinds = config["num_key_value_heads"], config["layer_types"]
    full = of_full_layers(config, "num_key_value_heads", "num_global_key_value_heads")
    return usual if full == usual else [usual if kind == "sliding_attention" else full for kind in kinds]


def feed_forward(config: Mapping[str, Any]) -> Any:
    n, layers = config["intermediate_size"], config["num_hidden_layers"]
    if not config.get("use_double_wide_mlp"):
        return n
    return [n if layer < layers - config["num_kv_shared_layers"] else 2 * n for layer in layer_numbers(config)]


def full_dim(config: Mapping[str, Any]) -> int:
    return int(of_full_layers(config, "head_dim", "global_head_dim"))


def rope_freqs(config: Mapping[str, Any]) -> dict[str, Array]:
    """Divisors of the frequencies; values that are not rotated get one so large that nothing is left."""
    half = full_dim(config) // 2
    rotated = int(half * (config["rope"]["partial_rotary_factor"] or 1))
    return {"rope_freqs.weight": np.repeat(np.array([1, 1e30], np.float32), [rotated, half - rotated])}


HF = Adapter(
    ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    config=DECODER
    | WINDOWS
    | {
        "feed_forward_length": feed_forward,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": full_dim,
        "attention.value_length": full_dim,
        "attention.key_length_swa": "head_dim",
        "attention.value_length_swa": "head_dim",
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "embedding_length_per_layer_input": lambda config: config.get("hidden_size_per_layer_input") or 0,
        "final_logit_softcapping": "final_logit_softcapping",
        "rope.dimension_count": full_dim,
        "rope.dimension_count_swa": "head_dim",
    },
    tensors=SANDWICH_TENSORS
    | {
        "model.embed_tokens_per_layer": "per_layer_token_embd",
        "model.per_layer_model_projection": "per_layer_model_proj",
        "model.per_layer_projection_norm": "per_layer_proj_norm",
        "model.layers.{i}.layer_scalar": "blk.{i}.layer_output_scale.weight",
        "model.layers.{i}.per_layer_input_gate": "blk.{i}.inp_gate",
        "model.layers.{i}.per_layer_projection": "blk.{i}.proj",
        "model.layers.{i}.post_per_layer_input_norm": "blk.{i}.post_norm",
        "model.layers.{i}.pre_feedforward_layernorm_2": "blk.{i}.pre_ffw_norm_2",
        "model.layers.{i}.post_feedforward_layernorm_1": "blk.{i}.post_ffw_norm_1",
        "model.layers.{i}.post_feedforward_layernorm_2": "blk.{i}.post_ffw_norm_2",
        "model.layers.{i}.router.proj": "blk.{i}.ffn_gate_inp",
        "model.layers.{i}.router.scale": "blk.{i}.ffn_gate_inp.scale",
        "model.layers.{i}.router.per_expert_scale": "blk.{i}.ffn_down_exps.scale",
        "model.layers.{i}.experts.gate_up_proj": "blk.{i}.ffn_gate_up_exps.weight",
        "model.layers.{i}.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
    },
    made=rope_freqs,
)


class Model:
    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file, layers_differ=True)
        windows, sizes = read_windows(file, c.layers, period=None), read_sizes(file, c)
        sources = read_sources(file, windows)
        rope = read_rope(file, c.k_dim, neox=True)
        local = read_local_rope(file, file.size("attention.key_length_swa", default=c.k_dim), neox=True)
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        width = file.size("embedding_length_per_layer_input", default=0, least=0)
        self.inputs = LayerInputs(file, c, width) if width else None
        self.blk = [
            Block(file, Gemma4Attention(file, i, sources[i], own, local if window else rope, window), own, width)
            for i, (own, window) in enumerate(zip(sizes, windows, strict=True))
        ]
        self.output_norm = Norm(file, "output_norm", c.hidden)
        self.output = read_output(file, c)
        self.softcap = file.number("final_logit_softcapping", default=0.0, least=0)

    def forward(self, ops: Ops) -> Value:
        x = ops.insert(ops.embed(self.token_embd, math.sqrt(self.config.hidden)))
        inputs = self.inputs(ops, x) if self.inputs else None
        kv: KV = {}
        for block in self.blk:
            x = block.forward(ops, x, inputs, kv)
        logits = ops.linear(self.output_norm(ops, x), self.output)
        return ops.softcap(logits, self.softcap) if self.softcap else logits


class Block:
    def __init__(self, file: Checkpoint, attn: Gemma4Attention, c: Config, width: int) -> None:
        name = f"blk.{attn.layer}"
        self.attn, self.width = attn, width
        self.attn_norm = Norm(file, f"{name}.attn_norm", c.hidden)
        self.post_attention_norm = Norm(file, f"{name}.post_attention_norm", c.hidden)
        self.ffn_norm = Norm(file, f"{name}.ffn_norm", c.hidden)
        self.ffn = FeedForward(file, attn.layer, c, "gelu_tanh")
        has_experts = file.has_tensor(f"{name}.ffn_gate_inp.weight")
        self.experts = ExpertsBeside(file, attn.layer, c) if has_experts else None
        self.post_ffw_norm = Norm(file, f"{name}.post_ffw_norm", c.hidden)
        if width:
            self.inp_gate = Linear(file, f"{name}.inp_gate", width, c.hidden)
            self.proj = Linear(file, f"{name}.proj", c.hidden, width)
            self.post_norm = Norm(file, f"{name}.post_norm", c.hidden)
        scale = file.vector_or_none(f"{name}.layer_output_scale.weight", 1)
        self.scale = 1.0 if scale is None else float(scale[0])

    def forward(self, ops: Ops, x: Value, inputs: Value | None, kv: KV) -> Value:
        x = x + self.post_attention_norm(ops, self.attn.forward(ops, self.attn_norm(ops, x), kv))
        added = self.ffn(ops, self.ffn_norm(ops, x))
        if self.experts is not None:
            added = self.experts(ops, x, added)
        x = x + self.post_ffw_norm(ops, added)
        if inputs is not None:
            own = ops.columns(inputs, self.attn.layer * self.width, self.width)
            x = x + self.post_norm(ops, self.proj(ops, ops.gate(self.inp_gate(ops, x), own, "gelu_tanh")))
        return ops.scale(x, self.scale)

"""Qwen3.5: most layers are a gated delta rule after a short convolution, some are attention with a gate.

Of images, attention knows rows and columns; the recurrent layers see their tokens one after another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import FileError
from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from ..ops.specs import AttentionSpec, RecurrentSpec
from .adapter import DECODER, MTP, MTP_TENSORS, SANDWICH_TENSORS, Adapter, norms_plus_one, rope_sections
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder
from .experts import Experts
from .layers import FeedForward, Linear, Norm, head_norms
from .mtp import read_mtp
from .rotary import read_rope, with_axes
from .transforms import rotary_dim, tiled_heads

_DELTA = "model.layers.{i}.linear_attn"
USUAL_SECTIONS = [11, 11, 10, 0]


def image_sections(config: Mapping[str, Any]) -> Any:
    """Pairs by time, row and column; models that see have them even if config.json does not say so.

    >>> image_sections({"rope": {}, "vision_config": {}})
    [11, 11, 10, 0]
    """
    return rope_sections(config) or (USUAL_SECTIONS if "vision_config" in config else None)


HF = Adapter(
    ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    config=DECODER
    | MTP
    | {
        "rope.dimension_count": lambda config: rotary_dim(config, 0.25),
        "rope.dimension_sections": image_sections,
        "ssm.conv_kernel": "linear_conv_kernel_dim",
        "ssm.state_size": "linear_key_head_dim",
        "ssm.group_count": "linear_num_key_heads",
        "ssm.time_step_rank": "linear_num_value_heads",
        "ssm.inner_size": lambda config: config["linear_num_value_heads"] * config["linear_value_head_dim"],
    },
    tensors=norms_plus_one(SANDWICH_TENSORS | MTP_TENSORS)
    | {
        f"{_DELTA}.in_proj_qkv": ("blk.{i}.attn_qkv", tiled_heads("linear_value_head_dim")),
        f"{_DELTA}.in_proj_z": ("blk.{i}.attn_gate", tiled_heads("linear_value_head_dim")),
        f"{_DELTA}.in_proj_a": ("blk.{i}.ssm_alpha", tiled_heads()),
        f"{_DELTA}.in_proj_b": ("blk.{i}.ssm_beta", tiled_heads()),
        f"{_DELTA}.conv1d": ("blk.{i}.ssm_conv1d", tiled_heads("linear_value_head_dim")),
        f"{_DELTA}.A_log": ("blk.{i}.ssm_a", tiled_heads(negative_exp=True)),
        f"{_DELTA}.dt_bias": ("blk.{i}.ssm_dt.bias", tiled_heads()),
        f"{_DELTA}.norm": "blk.{i}.ssm_norm",
        f"{_DELTA}.out_proj": ("blk.{i}.ssm_out", tiled_heads("linear_value_head_dim", axis=1)),
    },
    more_layers=True,
)


class GatedAttention:
    """Gated attention: each query head has a gate for its output."""

    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope) -> None:
        if c.k_dim != c.v_dim:
            raise FileError(f"{file.path}: heads of K and V must be equally wide, they have {c.k_dim} and {c.v_dim}")
        name = f"blk.{layer}"
        self.layer, self.rope, self.heads, self.kv_heads, self.dim = layer, rope, c.heads, c.kv_heads, c.k_dim
        self.scale = file.number("attention.scale", default=0.0) or 1 / math.sqrt(c.k_dim)
        self.spec = AttentionSpec(c.kv_heads, c.k_dim, c.v_dim)
        self.attn_q = Linear(file, f"{name}.attn_q", 2 * c.heads * c.k_dim, c.hidden)
        self.attn_k = Linear(file, f"{name}.attn_k", c.kv_heads * c.k_dim, c.hidden)
        self.attn_v = Linear(file, f"{name}.attn_v", c.kv_heads * c.v_dim, c.hidden)
        self.attn_q_norm, self.attn_k_norm = head_norms(file, layer, c)
        self.attn_output = Linear(file, f"{name}.attn_output", c.hidden, c.heads * c.v_dim)

    def __call__(self, ops: Ops, x: Value) -> Value:
        both, k, v = self.attn_q(ops, x), self.attn_k(ops, x), self.attn_v(ops, x)
        q, gate = (ops.columns(both, start, self.dim, self.heads) for start in (0, self.dim))
        q = ops.rope(self.attn_q_norm(ops, q), self.heads, self.rope)
        k = ops.rope(self.attn_k_norm(ops, k), self.kv_heads, self.rope)
        y = ops.attend(self.layer, q, k, v, spec=self.spec, scale=self.scale)
        return self.attn_output(ops, ops.gate(gate, y, "sigmoid"))


class DeltaNet:
    """The gated delta rule. Head h of v belongs to head h % heads of q and k, as llama.cpp's converter orders them."""

    tiled = True

    def __init__(self, file: Checkpoint, layer: int, c: Config) -> None:
        name = f"blk.{layer}"
        self.layer, self.dim = layer, file.size("ssm.state_size", most=1 << 14)
        self.heads, self.v_heads = file.size("ssm.group_count"), file.size("ssm.time_step_rank", most=1 << 14)
        taps, self.inner = file.size("ssm.conv_kernel", most=64), file.size("ssm.inner_size")
        if self.v_heads % self.heads or self.inner % self.v_heads:
            sizes = f"{self.inner} values in {self.v_heads} heads, {self.heads} heads of q and k"
            raise FileError(f"{file.path}: {sizes}: they cannot be shared evenly")
        self.keys, v_dim = self.heads * self.dim, self.inner // self.v_heads
        columns = 2 * self.keys + self.inner
        self.eps = file.number("attention.layer_norm_rms_epsilon", least=0)
        self.offset = 4 * columns * (taps - 1)
        self.spec = RecurrentSpec(self.offset + 4 * self.v_heads * self.dim * v_dim)
        self.read_inputs(file, name, c)
        self.read_rates(file, name, c)
        self.ssm_conv1d = file.array(f"{name}.ssm_conv1d.weight", columns, taps)
        self.ssm_a = file.vector(f"{name}.ssm_a", self.v_heads)
        self.ssm_dt = file.vector(f"{name}.ssm_dt.bias", self.v_heads)
        self.ssm_norm = Norm(file, f"{name}.ssm_norm", v_dim, self.v_heads)
        self.ssm_out = Linear(file, f"{name}.ssm_out", c.hidden, self.inner)

    def __call__(self, ops: Ops, x: Value) -> Value:
        qkv, z = self.inputs(ops, x)
        a, b = self.rates(ops, x)
        qkv = ops.conv(qkv, self.layer, self.ssm_conv1d, kind="silu", spec=self.spec)
        q, k = (self.unit(ops, ops.columns(qkv, start, self.keys)) for start in (0, self.keys))
        v = ops.columns(qkv, 2 * self.keys, self.inner)
        y = ops.delta_rule(
            q, k, v, a, b, self.layer, heads=self.heads, v_heads=self.v_heads, decay=self.ssm_a, dt_bias=self.ssm_dt,
            scale=1 / math.sqrt(self.dim), tiled=self.tiled, spec=self.spec, offset=self.offset,
        )  # fmt: skip
        return self.ssm_out(ops, ops.gate(z, self.ssm_norm(ops, y), "silu"))

    def read_inputs(self, file: Checkpoint, name: str, c: Config) -> None:
        """Queries, keys and values, and the gate."""
        self.attn_qkv = Linear(file, f"{name}.attn_qkv", 2 * self.keys + self.inner, c.hidden)
        self.attn_gate = Linear(file, f"{name}.attn_gate", self.inner, c.hidden)

    def inputs(self, ops: Ops, x: Value) -> tuple[Value, Value]:
        return self.attn_qkv(ops, x), self.attn_gate(ops, x)

    def read_rates(self, file: Checkpoint, name: str, c: Config) -> None:
        """What decay and the share of a new value are made of."""
        self.ssm_alpha = Linear(file, f"{name}.ssm_alpha", self.v_heads, c.hidden)
        self.ssm_beta = Linear(file, f"{name}.ssm_beta", self.v_heads, c.hidden)

    def rates(self, ops: Ops, x: Value) -> tuple[Value, Value]:
        return self.ssm_alpha(ops, x), self.ssm_beta(ops, x)

    def unit(self, ops: Ops, x: Value) -> Value:
        """Heads of length 1."""
        return ops.norm(x, np.full(self.dim, self.dim**-0.5, np.float32), self.eps / self.dim, self.heads)


class Model(Decoder):
    feed_forward: type[FeedForward] | type[Experts] = FeedForward
    delta_net: type[DeltaNet] = DeltaNet

    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope = with_axes(file, read_rope(file, c.k_dim, neox=True), interleaved=True)
        super().__init__(file, c, [self.block(file, layer, c, rope) for layer in range(c.layers)])
        self.mtp = read_mtp(file, self, lambda layer: self.block(file, layer, c, rope))

    def block(self, file: Checkpoint, layer: int, c: Config, rope: Rope) -> Block:
        is_recurrent = file.has_tensor(f"blk.{layer}.ssm_out.weight")
        mixer = self.delta_net(file, layer, c) if is_recurrent else GatedAttention(file, layer, c, rope)
        return Block(file, layer, c, mixer, self.feed_forward(file, layer, c), ffn_norm="post_attention_norm")

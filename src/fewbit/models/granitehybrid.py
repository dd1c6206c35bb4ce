"""Granite 4: most layers are a state-space scan (Mamba 2), some are attention; sums and logits are scaled."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ..errors import FileError
from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from ..ops.specs import RecurrentSpec
from . import granite
from .adapter import Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder
from .experts import Experts, GatedExpert, read_shared
from .layers import Attention, FeedForward, Linear, read_rms_epsilon
from .rotary import read_rope
from .transforms import SQUEEZED, part, shaped

_LAYER = "model.layers.{i}"
HF = Adapter(
    ("GraniteMoeHybridForCausalLM",),
    config={
        **granite.HF.config,
        "rope.scaling.finetuned": lambda config: config.get("position_embedding_type") == "rope",
        "expert_shared_feed_forward_length": "shared_intermediate_size",
        "ssm.conv_kernel": "mamba_d_conv",
        "ssm.state_size": "mamba_d_state",
        "ssm.group_count": "mamba_n_groups",
        "ssm.time_step_rank": "mamba_n_heads",
        "ssm.inner_size": lambda config: config["mamba_n_heads"] * config["mamba_d_head"],
    },
    tensors={
        **granite.HF.tensors,
        f"{_LAYER}.mamba.in_proj": "blk.{i}.ssm_in",
        f"{_LAYER}.mamba.out_proj": "blk.{i}.ssm_out",
        f"{_LAYER}.mamba.conv1d.weight": ("blk.{i}.ssm_conv1d.weight", SQUEEZED),
        f"{_LAYER}.mamba.conv1d.bias": "blk.{i}.ssm_conv1d.bias",
        f"{_LAYER}.mamba.A_log": ("blk.{i}.ssm_a", shaped(-1, 1, negative_exp=True)),
        f"{_LAYER}.mamba.D": ("blk.{i}.ssm_d", shaped(-1, 1)),
        f"{_LAYER}.mamba.dt_bias": "blk.{i}.ssm_dt.bias",
        f"{_LAYER}.mamba.norm": ("blk.{i}.ssm_norm", shaped("mamba_n_groups", -1)),
        f"{_LAYER}.block_sparse_moe.router.layer": "blk.{i}.ffn_gate_inp",
        f"{_LAYER}.block_sparse_moe.input_linear": [
            ("blk.{i}.ffn_gate_exps", part(0, 2, axis=1)),
            ("blk.{i}.ffn_up_exps", part(1, 2, axis=1)),
        ],
        f"{_LAYER}.block_sparse_moe.output_linear": "blk.{i}.ffn_down_exps",
        f"{_LAYER}.shared_mlp.input_linear": [
            ("blk.{i}.ffn_gate_shexp", part(0, 2)),
            ("blk.{i}.ffn_up_shexp", part(1, 2)),
        ],
        f"{_LAYER}.shared_mlp.output_linear": "blk.{i}.ffn_down_shexp",
    },
)


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope = read_rope(file, c.k_dim) if file.flag("rope.scaling.finetuned", default=True) else None
        blocks = [block(file, i, c, rope) for i in range(c.layers)]
        super().__init__(file, c, blocks, scale=file.number("embedding_scale", default=1.0))
        has_scale = file.number("logit_scale", default=0.0) != 0
        logit_scale = file.number("logit_scale", least=1e-6) if has_scale else 1.0
        self.output_norm.weight = self.output_norm.weight / np.float32(logit_scale)


def block(file: Checkpoint, layer: int, c: Config, rope: Rope | None) -> Block:
    is_recurrent = file.has_tensor(f"blk.{layer}.ssm_in.weight")
    mixer = Mamba(file, layer, c) if is_recurrent else Attention(file, layer, c, rope)
    scale = file.number("residual_scale", default=1.0)
    return Block(file, layer, c, mixer, read_feed_forward(file, layer, c), scale=scale)


def read_feed_forward(file: Checkpoint, layer: int, c: Config) -> Experts | GatedExpert | FeedForward:
    """Experts with a shared one, the shared one alone, or a plain feed-forward layer."""
    if file.has_tensor(f"blk.{layer}.ffn_gate_inp.weight"):
        return Experts(file, layer, c)
    has_shared = file.has_tensor(f"blk.{layer}.ffn_up_shexp.weight")
    return (read_shared(file, layer, c, 0) if has_shared else None) or FeedForward(file, layer, c)


class Mamba:
    def __init__(self, file: Checkpoint, layer: int, c: Config) -> None:
        name = f"blk.{layer}"
        self.layer, state = layer, file.size("ssm.state_size", most=1 << 14)
        self.heads, self.groups = file.size("ssm.time_step_rank", most=1 << 14), file.size("ssm.group_count")
        taps, self.inner = file.size("ssm.conv_kernel", most=64), file.size("ssm.inner_size")
        if self.heads % self.groups or self.inner % self.heads:
            sizes = f"{self.inner} values in {self.heads} heads, {self.groups} groups"
            raise FileError(f"{file.path}: {sizes}: they cannot be shared evenly")
        self.inputs = self.groups * state
        mixed = self.inner + 2 * self.inputs
        self.offset = 4 * mixed * (taps - 1)
        self.spec = RecurrentSpec(self.offset + 4 * self.inner * state)
        ends = [0, self.inner, self.inner + mixed, self.inner + mixed + self.heads]
        self.ssm_in = [Linear(file, f"{name}.ssm_in", ends[3], c.hidden, part) for part in pairwise(ends)]
        self.ssm_conv1d = file.array(f"{name}.ssm_conv1d.weight", mixed, taps)
        self.ssm_conv1d_bias = file.vector_or_none(f"{name}.ssm_conv1d.bias", mixed)
        self.ssm_dt = file.vector(f"{name}.ssm_dt.bias", self.heads)
        self.ssm_a, self.ssm_d = (file.array(f"{name}.ssm_{part}", self.heads, 1).reshape(-1) for part in "ad")
        self.eps = read_rms_epsilon(file)
        self.ssm_norm = file.array(f"{name}.ssm_norm.weight", self.groups, self.inner // self.groups)
        self.ssm_out = Linear(file, f"{name}.ssm_out", c.hidden, self.inner)

    def __call__(self, ops: Ops, x: Value) -> Value:
        z, x, dt = (part(ops, x) for part in self.ssm_in)
        x = ops.conv(x, self.layer, self.ssm_conv1d, self.ssm_conv1d_bias, "silu", spec=self.spec)
        b, c = (ops.columns(x, start, self.inputs) for start in (self.inner, self.inner + self.inputs))
        y = ops.scan(
            ops.columns(x, 0, self.inner), dt, b, c, self.layer, heads=self.heads, groups=self.groups,
            decay=self.ssm_a, skip=self.ssm_d, dt_bias=self.ssm_dt, spec=self.spec, offset=self.offset,
        )  # fmt: skip
        return self.ssm_out(ops, self.norm(ops, ops.gate(z, y, "silu")))

    def norm(self, ops: Ops, x: Value) -> Value:
        """Normalizes each group separately, with its own weights."""
        n = self.inner // self.groups
        first, *rest = [
            ops.norm(x if self.groups == 1 else ops.columns(x, i * n, n), weight, self.eps)
            for i, weight in enumerate(self.ssm_norm)
        ]
        for other in rest:
            first = ops.join(first, other, heads=1)
        return first

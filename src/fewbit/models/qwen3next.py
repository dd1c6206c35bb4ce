"""Qwen3-Next: as Qwen3.5 with experts, but the heads of the delta rule are in another order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..ops.graph import Value
from ..ops.recorder import Ops
from . import qwen35, qwen35moe
from .adapter import Adapter, Tensors
from .checkpoint import Checkpoint
from .config import Config
from .layers import Linear
from .transforms import NEGATIVE_EXP, SQUEEZED, Array, Transform


def by_head(w: Array, config: Mapping[str, Any]) -> list[Array]:
    """Rows of q, k, v and z of all heads, of a matrix that has the four of each head of K together."""
    heads, dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    parts = np.split(w.reshape(heads, 2 * (dim + values), -1), np.cumsum([dim, dim, values]), axis=1)
    return [part.reshape(-1, w.shape[-1]) for part in parts]


QKV = Transform(lambda w, config: np.concatenate(by_head(w, config)[:3]))
Z = Transform(lambda w, config: by_head(w, config)[3])

_LAYER, _DELTA = "model.layers.{i}", "model.layers.{i}.linear_attn"
_OWN: Tensors = {
    f"{_DELTA}.in_proj_qkvz": [("blk.{i}.attn_qkv", QKV), ("blk.{i}.attn_gate", Z)],
    f"{_DELTA}.in_proj_ba": "blk.{i}.ssm_ba",
    f"{_DELTA}.conv1d": ("blk.{i}.ssm_conv1d", SQUEEZED),
    f"{_DELTA}.A_log": ("blk.{i}.ssm_a", NEGATIVE_EXP),
    f"{_DELTA}.dt_bias": "blk.{i}.ssm_dt.bias",
    f"{_DELTA}.out_proj": "blk.{i}.ssm_out",
    f"{_LAYER}.mlp.experts.{{e}}.gate_proj": "blk.{i}.ffn_gate_exps",
    f"{_LAYER}.mlp.experts.{{e}}.up_proj": "blk.{i}.ffn_up_exps",
    f"{_LAYER}.mlp.experts.{{e}}.down_proj": "blk.{i}.ffn_down_exps",
}
HF = Adapter(
    ("Qwen3NextForCausalLM",),
    config=qwen35moe.HF.config,
    tensors={**qwen35moe.HF.tensors, **_OWN},
    more_layers=True,
)


class GroupedDeltaNet(qwen35.DeltaNet):
    """Heads of v in the order of the heads of q and k, with one matrix for a and b of each.

    Older files have one for q, k, v and the gate of each, too.
    """

    tiled = False

    def read_inputs(self, file: Checkpoint, name: str, c: Config) -> None:
        self.ssm_in = None
        if file.has_tensor(f"{name}.ssm_in.weight"):
            self.ssm_in = Linear(file, f"{name}.ssm_in", 2 * (self.keys + self.inner), c.hidden)
        else:
            super().read_inputs(file, name, c)

    def inputs(self, ops: Ops, x: Value) -> tuple[Value, Value]:
        if self.ssm_in is None:
            return super().inputs(ops, x)
        each = self.inner // self.heads
        widths, all_of_a_head = [self.dim, self.dim, each, each], self.ssm_in(ops, x)
        q, k, v, z = (ops.columns(all_of_a_head, sum(widths[:i]), width, self.heads) for i, width in enumerate(widths))
        return ops.join(ops.join(q, k, 1), v, 1), z

    def read_rates(self, file: Checkpoint, name: str, c: Config) -> None:
        self.ssm_ba = Linear(file, f"{name}.ssm_ba", 2 * self.v_heads, c.hidden)

    def rates(self, ops: Ops, x: Value) -> tuple[Value, Value]:
        both, each = self.ssm_ba(ops, x), self.v_heads // self.heads
        b, a = (ops.columns(both, start, each, self.heads) for start in (0, each))
        return a, b


class Model(qwen35moe.Model):
    delta_net = GroupedDeltaNet

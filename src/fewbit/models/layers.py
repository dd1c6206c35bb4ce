"""Layers that models share. A layer reads its tensors when constructed; calling it records its operations."""

from __future__ import annotations

import math

from ..arrays import Floats
from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from ..ops.specs import AttentionSpec
from ..tensor import QuantTensor
from .checkpoint import Checkpoint, Rows
from .config import Config


class Linear:
    """A matrix, with a bias if the file has one; `part` selects rows of a fused tensor."""

    def __init__(self, file: Checkpoint, name: str, rows: int, columns: int, part: Rows | None = None) -> None:
        self.weight = file.weight(f"{name}.weight", rows, columns, part)
        self.bias = file.vector_or_none(f"{name}.bias", rows, part)

    def __call__(self, ops: Ops, x: Value) -> Value:
        return ops.linear(x, self.weight, self.bias)


class Norm:
    """Root mean square norm, for each of `heads` heads."""

    def __init__(self, file: Checkpoint, name: str, size: int, heads: int = 1) -> None:
        self.weight, self.heads = file.vector(f"{name}.weight", size), heads
        self.eps = read_rms_epsilon(file)

    def __call__(self, ops: Ops, x: Value) -> Value:
        return ops.norm(x, self.weight, self.eps, self.heads)


class LayerNorm:
    """Mean and variance norm, with a bias if the file has one."""

    def __init__(self, file: Checkpoint, name: str, size: int) -> None:
        self.weight = file.vector(f"{name}.weight", size)
        self.bias = file.vector_or_none(f"{name}.bias", size)
        kind = "layer_norm_rms" if file.number("attention.layer_norm_rms_epsilon", default=0.0) else "layer_norm"
        self.eps = file.number(f"attention.{kind}_epsilon", least=0)

    def __call__(self, ops: Ops, x: Value) -> Value:
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


class Attention:
    """Attention with its projections; Q, K and V may be fused in the file.

    Q and K go through `norms` and `rope`, where those are given. `scale` is that of the file, if it has one. With
    `radius` a token also sees those after it: those up to so many tokens away, on both sides; 0: all.
    """

    def __init__(
        self,
        file: Checkpoint,
        layer: int,
        c: Config,
        rope: Rope | None,
        *,
        norms: tuple[Norm, Norm] | None = None,
        window: int = 0,
        scale: float | None = None,
        softcap: float = 0.0,
        sinks: Floats | None = None,
        radius: int | None = None,
    ) -> None:
        name = f"blk.{layer}"
        self.layer, self.rope, self.norms, self.softcap, self.sinks = layer, rope, norms, softcap, sinks
        self.radius = radius
        self.spec = AttentionSpec(c.kv_heads, c.k_dim, c.v_dim, window)
        self.scale = file.number("attention.scale", default=0.0) or scale or 1 / math.sqrt(c.k_dim)
        self.heads, self.kv_heads = c.heads, c.kv_heads
        self.attn_q, self.attn_k, self.attn_v = read_qkv(file, name, c)
        self.attn_output = Linear(file, f"{name}.attn_output", c.hidden, c.heads * c.v_dim)

    def __call__(self, ops: Ops, x: Value) -> Value:
        return self.attend(ops, *self.project(ops, x))

    def project(self, ops: Ops, x: Value) -> tuple[Value, Value, Value]:
        q, k, v = (part(ops, x) for part in (self.attn_q, self.attn_k, self.attn_v))
        if self.norms is not None:
            q_norm, k_norm = self.norms
            q, k = q_norm(ops, q), k_norm(ops, k)
        if self.rope is not None:
            q, k = ops.rope(q, self.heads, self.rope), ops.rope(k, self.kv_heads, self.rope)
        return q, k, v

    def attend(self, ops: Ops, q: Value, k: Value, v: Value) -> Value:
        out = ops.attend(
            self.layer, q, k, v, spec=self.spec, scale=self.scale, softcap=self.softcap, sinks=self.sinks,
            causal=self.radius is None, radius=self.radius or 0,
        )  # fmt: skip
        return self.attn_output(ops, out)


class FeedForward:
    """down(kind(gate(x)) * up(x)). `fused`: the file has gate and up as one tensor, gate first.

    `rows` and `suffix` are for feed-forward layers beside the usual one: how wide they are, what their names end in.
    """

    def __init__(
        self,
        file: Checkpoint,
        layer: int,
        c: Config,
        kind: str = "silu",
        fused: bool = False,
        rows: int | None = None,
        suffix: str = "",
    ) -> None:
        name, n = f"blk.{layer}", c.feed_forward if rows is None else rows
        self.kind = kind
        if fused:
            self.ffn_gate = Linear(file, f"{name}.ffn_up", 2 * n, c.hidden, (0, n))
            self.ffn_up = Linear(file, f"{name}.ffn_up", 2 * n, c.hidden, (n, 2 * n))
        else:
            self.ffn_gate = Linear(file, f"{name}.ffn_gate{suffix}", n, c.hidden)
            self.ffn_up = Linear(file, f"{name}.ffn_up{suffix}", n, c.hidden)
        self.ffn_down = Linear(file, f"{name}.ffn_down{suffix}", c.hidden, n)

    def __call__(self, ops: Ops, x: Value) -> Value:
        return self.ffn_down(ops, ops.gate(self.ffn_gate(ops, x), self.ffn_up(ops, x), self.kind))


class MLP:
    """down(kind(up(x)))."""

    def __init__(self, file: Checkpoint, layer: int, c: Config, kind: str) -> None:
        self.kind = kind
        self.ffn_up = Linear(file, f"blk.{layer}.ffn_up", c.feed_forward, c.hidden)
        self.ffn_down = Linear(file, f"blk.{layer}.ffn_down", c.hidden, c.feed_forward)

    def __call__(self, ops: Ops, x: Value) -> Value:
        return self.ffn_down(ops, ops.activate(self.ffn_up(ops, x), self.kind))


def read_rms_epsilon(file: Checkpoint) -> float:
    """The epsilon of root mean square norms; some files have it under the name of other norms."""
    other = "attention.layer_norm_epsilon"
    default = 0.0 if file.has(other) else None
    return file.number("attention.layer_norm_rms_epsilon", default, least=0) or file.number(other, 0.0, least=0)


def read_qkv(file: Checkpoint, name: str, c: Config) -> tuple[Linear, Linear, Linear]:
    """The Q, K and V projections: separate tensors, or consecutive rows of one."""
    q, k, v = c.heads * c.k_dim, c.kv_heads * c.k_dim, c.kv_heads * c.v_dim
    if not file.has_tensor(f"{name}.attn_qkv.weight"):
        q_part, k_part, v_part = (
            Linear(file, f"{name}.attn_{part}", rows, c.hidden) for part, rows in (("q", q), ("k", k), ("v", v))
        )
        return q_part, k_part, v_part
    rows = [(0, q), (q, q + k), (q + k, q + k + v)]
    q_part, k_part, v_part = (Linear(file, f"{name}.attn_qkv", q + k + v, c.hidden, part) for part in rows)
    return q_part, k_part, v_part


def head_norms(file: Checkpoint, layer: int, c: Config) -> tuple[Norm, Norm]:
    """Norms of each head of Q and K."""
    q, k = (Norm(file, f"blk.{layer}.attn_{x}_norm", c.k_dim, n) for x, n in (("q", c.heads), ("k", c.kv_heads)))
    return q, k


def read_windows(
    file: Checkpoint, layers: int, period: int | None = 0, global_first: bool = False, default: int = 0
) -> list[int]:
    """The sliding window of each layer; 0: none.

    Args:
        file: The checkpoint, with the window and maybe which layers have it.
        layers: Number of layers.
        period: One in this many layers has no window unless the file says otherwise; 0: all have one; None: required.
        global_first: That layer is the first of each period instead of the last.
        default: The window if the file has none.
    """
    window = file.size("attention.sliding_window", default=default, least=0)
    return [window if slides else 0 for slides in read_slides(file, layers, period, global_first)]


def read_slides(file: Checkpoint, layers: int, period: int | None = None, global_first: bool = False) -> list[bool]:
    """Which layers have a window; the arguments are those of `read_windows`."""
    return file.flags("attention.sliding_window_pattern", layers, period, global_first)


def read_output(file: Checkpoint, c: Config) -> QuantTensor:
    """The output matrix: the embedding table if they are tied."""
    tied = not file.has_tensor("output.weight")
    return file.weight("token_embd.weight" if tied else "output.weight", c.vocab, c.hidden)

"""Parts of Gemma 4: inputs of layers, attention that may share K and V, experts beside a feed-forward layer."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..errors import FileError
from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from ..ops.specs import AttentionSpec, Routing
from .checkpoint import Checkpoint
from .config import Config
from .layers import Linear, Norm, read_slides

KV = dict[int, tuple[Value, Value]]  # K and V of layers that have their own


class LayerInputs:
    """Per-layer inputs, from a table by token and from the embedding: `width` values for each layer."""

    def __init__(self, file: Checkpoint, c: Config, width: int) -> None:
        self.width, self.scale = width, 1 / math.sqrt(c.hidden)
        self.token_embd = file.embedding("per_layer_token_embd.weight", c.vocab, c.layers * width)
        self.model_proj = Linear(file, "per_layer_model_proj", c.layers * width, c.hidden)
        self.proj_norm = Norm(file, "per_layer_proj_norm", width, c.layers)

    def __call__(self, ops: Ops, x: Value) -> Value:
        projected = self.proj_norm(ops, ops.scale(self.model_proj(ops, x), self.scale))
        return ops.scale(projected + ops.embed(self.token_embd, math.sqrt(self.width)), math.sqrt(0.5))


class Gemma4Attention:
    """K and V are those of the layer `source`, which may be this one. Without a V matrix, V is K before its norm."""

    def __init__(self, file: Checkpoint, layer: int, source: int, c: Config, rope: Rope, window: int) -> None:
        name = f"blk.{layer}"
        self.layer, self.source, self.rope, self.c = layer, source, rope, c
        self.spec = AttentionSpec(c.kv_heads, c.k_dim, c.v_dim, window)
        self.attn_q = Linear(file, f"{name}.attn_q", c.heads * c.k_dim, c.hidden)
        self.q_norm = Norm(file, f"{name}.attn_q_norm", c.k_dim, c.heads)
        if source == layer:
            self.attn_k = Linear(file, f"{name}.attn_k", c.kv_heads * c.k_dim, c.hidden)
            has_v = file.has_tensor(f"{name}.attn_v.weight")
            self.attn_v = Linear(file, f"{name}.attn_v", c.kv_heads * c.v_dim, c.hidden) if has_v else None
            self.k_norm = Norm(file, f"{name}.attn_k_norm", c.k_dim, c.kv_heads)
        self.attn_output = Linear(file, f"{name}.attn_output", c.hidden, c.heads * c.v_dim)

    def forward(self, ops: Ops, x: Value, kv: KV) -> Value:
        q = ops.rope(self.q_norm(ops, self.attn_q(ops, x)), self.c.heads, self.rope)
        if self.source == self.layer:
            kv[self.layer] = self.keys_and_values(ops, x)
        k, v = kv[self.source]
        own = self.source == self.layer
        return self.attn_output(
            ops,
            ops.attend(
                self.source,
                q,
                k,
                v,
                spec=self.spec,
                scale=1.0,
                keep=own,
                spans=self.spec.window > 0,  # of an image, where it sees all of itself
            ),
        )

    def keys_and_values(self, ops: Ops, x: Value) -> tuple[Value, Value]:
        heads = self.c.kv_heads
        k = self.attn_k(ops, x)
        v = k if self.attn_v is None else self.attn_v(ops, x)
        v = ops.norm(v, np.ones(self.c.v_dim, np.float32), self.k_norm.eps, heads)
        return ops.rope(self.k_norm(ops, k), heads, self.rope), v


class ExpertsBeside:
    """Experts parallel to the feed-forward layer, on its input before the norm; both have a norm after them."""

    def __init__(self, file: Checkpoint, layer: int, c: Config) -> None:
        name, count = f"blk.{layer}", file.size("expert_count", most=1 << 14)
        n, top_k = file.size("expert_feed_forward_length"), file.size("expert_used_count", most=count)
        self.routing = Routing(top_k, expert_scale=file.vector_or_none(f"{name}.ffn_down_exps.scale", count))
        # The router's norm has no weight in the file; what its rows are multiplied by afterwards can be one.
        self.router_norm = file.vector(f"{name}.ffn_gate_inp.scale", c.hidden) / np.float32(math.sqrt(c.hidden))
        self.ffn_gate_inp = Linear(file, f"{name}.ffn_gate_inp", count, c.hidden)
        both = f"{name}.ffn_gate_up_exps.weight"
        self.gate, self.up = (file.experts(both, count, 2 * n, c.hidden, top_k, part) for part in ((0, n), (n, 2 * n)))
        self.down = file.experts(f"{name}.ffn_down_exps.weight", count, c.hidden, n, top_k)
        self.pre_ffw_norm = Norm(file, f"{name}.pre_ffw_norm_2", c.hidden)
        self.post_ffw_norms = [Norm(file, f"{name}.post_ffw_norm_{i}", c.hidden) for i in (1, 2)]

    def __call__(self, ops: Ops, x: Value, fed: Value) -> Value:
        """The output of the experts for x, plus `fed`, the output of the feed-forward layer."""
        scores = self.ffn_gate_inp(ops, ops.norm(x, self.router_norm, self.pre_ffw_norm.eps))
        rows = self.pre_ffw_norm(ops, x)
        routed = ops.experts(
            rows, scores, gate=self.gate, up=self.up, down=self.down, routing=self.routing, kind="gelu_tanh"
        )
        first, second = self.post_ffw_norms
        return first(ops, fed) + second(ops, routed)


def read_sizes(file: Checkpoint, c: Config) -> list[Config]:
    """The sizes of each layer: heads differ between layers with and without a window."""
    k_dim = file.size("attention.key_length_swa", default=c.k_dim)
    local = replace(c, k_dim=k_dim, v_dim=file.size("attention.value_length_swa", default=k_dim))
    kv_heads = file.sizes("attention.head_count_kv", c.layers, default=c.heads)
    widths = file.sizes("feed_forward_length", c.layers)
    return [
        replace(local if slide else c, kv_heads=n, feed_forward=width)
        for slide, n, width in zip(read_slides(file, c.layers), kv_heads, widths, strict=True)
    ]


def read_sources(file: Checkpoint, windows: list[int]) -> list[int]:
    """The layer whose K and V each layer uses. The last layers share those of the last layer of their kind."""
    first = len(windows) - file.size("attention.shared_kv_layers", default=0, least=0, most=len(windows) - 1)
    last = {window: layer for layer, window in enumerate(windows[:first])}
    if not last.keys() >= set(windows):
        raise FileError(f"{file.path}: attention.shared_kv_layers leaves no layer of each kind that keeps K and V")
    return [layer if layer < first else last[window] for layer, window in enumerate(windows)]

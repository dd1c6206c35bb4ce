"""DeepSeek-V2, V3 and R1: latent attention, and experts beside shared ones.

The cache keeps a latent of each token, from which K and V of all heads would be made. Instead of making them, queries
are brought to the latent, and so is what attention gives brought back: K is the latent and a part with positions, V is
the latent, as if there were one head of K and V.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import FileError
from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from ..ops.specs import AttentionSpec
from .adapter import DECODER, DECODER_TENSORS, MTP, MTP_TENSORS, SHARED_EXPERTS, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder
from .experts import Experts
from .layers import FeedForward, Linear, Norm
from .mtp import read_mtp
from .rotary import read_rope
from .transforms import Array, Transform


def per_head(w: Array, config: Mapping[str, Any]) -> Array:
    """Rows of K, then of V, for each head."""
    return w.reshape(config["num_attention_heads"], config["qk_nope_head_dim"] + config["v_head_dim"], -1)


K_B = Transform(lambda w, config: per_head(w, config)[:, : config["qk_nope_head_dim"]].swapaxes(1, 2))
V_B = Transform(lambda w, config: per_head(w, config)[:, config["qk_nope_head_dim"] :])

HF = Adapter(
    ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
    config=DECODER
    | MTP
    | {
        "attention.head_count_kv": lambda config: 1,
        "attention.key_length": lambda config: config["kv_lora_rank"] + config["qk_rope_head_dim"],
        "attention.value_length": "kv_lora_rank",
        "attention.key_length_mla": lambda config: config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length_mla": "v_head_dim",
        "attention.q_lora_rank": "q_lora_rank",
        "attention.kv_lora_rank": "kv_lora_rank",
        "leading_dense_block_count": lambda config: config.get("first_k_dense_replace") or 0,
        "expert_shared_count": "n_shared_experts",
        "expert_weights_scale": "routed_scaling_factor",
        "expert_weights_norm": lambda config: config.get("norm_topk_prob") or None,
        "expert_gating_func": lambda config: {"softmax": 1, "sigmoid": 2}.get(config.get("scoring_func", "")),
        "rope.dimension_count": "qk_rope_head_dim",
        "rope.scaling.yarn_log_multiplier": lambda config: config["rope"].get("mscale_all_dim", 0) * 0.1 or None,
    },
    tensors=DECODER_TENSORS
    | MTP_TENSORS
    | SHARED_EXPERTS
    | {
        "model.layers.{i}.self_attn.q_a_proj": "blk.{i}.attn_q_a",
        "model.layers.{i}.self_attn.q_a_layernorm": "blk.{i}.attn_q_a_norm",
        "model.layers.{i}.self_attn.q_b_proj": "blk.{i}.attn_q_b",
        "model.layers.{i}.self_attn.kv_a_proj_with_mqa": "blk.{i}.attn_kv_a_mqa",
        "model.layers.{i}.self_attn.kv_a_layernorm": "blk.{i}.attn_kv_a_norm",
        "model.layers.{i}.self_attn.kv_b_proj": [("blk.{i}.attn_k_b", K_B), ("blk.{i}.attn_v_b", V_B)],
    },
    more_layers=True,
)


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        super().__init__(file, c, [block(file, layer, c) for layer in range(c.layers)])
        self.mtp = read_mtp(file, self, lambda layer: block(file, layer, c))


def block(file: Checkpoint, layer: int, c: Config) -> Block:
    dense = layer < file.size("leading_dense_block_count", default=0, least=0)
    ffn = FeedForward(file, layer, c) if dense else Experts(file, layer, c, normalize=False)
    return Block(file, layer, c, LatentAttention(file, layer, c), ffn)


class LatentAttention:
    def __init__(self, file: Checkpoint, layer: int, c: Config) -> None:
        name = f"blk.{layer}"
        self.layer, self.heads = layer, c.heads
        k_dim, v_dim = (file.size(f"attention.{x}_length_mla", most=1 << 14) for x in ("key", "value"))
        self.latent, self.rotary = (
            file.size("attention.kv_lora_rank"),
            file.size("rope.dimension_count", most=k_dim - 1),
        )
        self.plain = k_dim - self.rotary  # values of a head without positions
        if (c.kv_heads, c.k_dim, c.v_dim) != (1, self.latent + self.rotary, self.latent):
            raise FileError(f"{file.path}: K of {c.k_dim} and V of {c.v_dim} values are no latent of {self.latent}")
        self.spec = AttentionSpec(1, c.k_dim, c.v_dim)
        self.rope, self.scale = read_latent_rope(file, self.rotary, 1 / math.sqrt(k_dim))
        self.queries = read_queries(file, name, c, c.heads * k_dim)
        self.attn_kv_a_mqa = Linear(file, f"{name}.attn_kv_a_mqa", c.k_dim, c.hidden)
        self.attn_kv_a_norm = Norm(file, f"{name}.attn_kv_a_norm", self.latent)
        self.attn_k_b = file.experts(f"{name}.attn_k_b.weight", c.heads, self.latent, self.plain)
        self.attn_v_b = file.experts(f"{name}.attn_v_b.weight", c.heads, v_dim, self.latent)
        self.attn_output = Linear(file, f"{name}.attn_output", c.hidden, c.heads * v_dim)

    def __call__(self, ops: Ops, x: Value) -> Value:
        q, kv = x, self.attn_kv_a_mqa(ops, x)
        for part in self.queries:
            q = part(ops, q)
        plain = ops.linear_heads(ops.columns(q, 0, self.plain, self.heads), self.attn_k_b)
        rotated = ops.rope(ops.columns(q, self.plain, self.rotary, self.heads), self.heads, self.rope)
        latent = self.attn_kv_a_norm(ops, ops.columns(kv, 0, self.latent))
        k_rotated = ops.rope(ops.columns(kv, self.latent, self.rotary), 1, self.rope)
        q, k = ops.join(plain, rotated, self.heads), ops.join(latent, k_rotated, 1)
        out = ops.attend(self.layer, q, k, latent, spec=self.spec, scale=self.scale)
        return self.attn_output(ops, ops.linear_heads(out, self.attn_v_b))


def read_queries(file: Checkpoint, name: str, c: Config, rows: int) -> list[Linear | Norm]:
    """The query projection: one matrix, or two of low rank with a norm between them."""
    rank = file.size("attention.q_lora_rank", default=0, least=0)
    if not rank:
        return [Linear(file, f"{name}.attn_q", rows, c.hidden)]
    first, last = (
        Linear(file, f"{name}.attn_q_{x}", *size) for x, size in (("a", (rank, c.hidden)), ("b", (rows, rank)))
    )
    return [first, Norm(file, f"{name}.attn_q_a_norm", rank), last]


def read_latent_rope(file: Checkpoint, dim: int, scale: float) -> tuple[Rope, float]:
    """The rope and the attention scale. With a multiplier, YaRN scales the scores instead of the rotated values."""
    rope = read_rope(file, dim)
    multiplier = file.number("rope.scaling.yarn_log_multiplier", default=0.0)
    if not multiplier:
        return rope, scale
    own = 1 + multiplier * math.log(file.number("rope.scaling.factor", default=1.0, least=1.0))
    return replace(rope, scale=1.0), scale * own**2

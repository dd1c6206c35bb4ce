"""MiniMax-M2: experts in every layer, chosen by sigmoids with a bias, and norms of all of Q and of K."""

from __future__ import annotations

from ..ops.graph import Rope
from .adapter import DECODER, DECODER_TENSORS, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, UniformDecoder
from .experts import Experts
from .layers import Attention, Norm
from .transforms import rotary_dim

_MOE = "model.layers.{i}.block_sparse_moe"
HF = Adapter(
    ("MiniMaxM2ForCausalLM",),
    config=DECODER
    | {
        "expert_feed_forward_length": "intermediate_size",
        "rope.dimension_count": lambda config: config.get("rotary_dim") or rotary_dim(config),
    },
    tensors=DECODER_TENSORS
    | {
        f"{_MOE}.gate": "blk.{i}.ffn_gate_inp",
        f"{_MOE}.e_score_correction_bias": "blk.{i}.exp_probs_b.bias",
        f"{_MOE}.experts.{{e}}.w1": "blk.{i}.ffn_gate_exps",
        f"{_MOE}.experts.{{e}}.w2": "blk.{i}.ffn_down_exps",
        f"{_MOE}.experts.{{e}}.w3": "blk.{i}.ffn_up_exps",
    },
)


class Model(UniformDecoder):
    def block(self, file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> Block:
        name = f"blk.{layer}"
        q_norm = Norm(file, f"{name}.attn_q_norm", c.heads * c.k_dim)
        k_norm = Norm(file, f"{name}.attn_k_norm", c.kv_heads * c.k_dim)
        attn = Attention(file, layer, c, rope, norms=(q_norm, k_norm), window=window)
        return Block(file, layer, c, attn, Experts(file, layer, c, score="sigmoid"))

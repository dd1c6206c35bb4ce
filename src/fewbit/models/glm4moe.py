"""GLM-4.5 and later: sigmoid routing beside a shared expert, after some layers without experts."""

from __future__ import annotations

from ..ops.graph import Rope
from .adapter import DECODER, DECODER_TENSORS, MTP, MTP_TENSORS, SHARED_EXPERTS, Adapter, head_dim
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder
from .experts import Experts
from .layers import Attention, FeedForward, head_norms
from .mtp import read_mtp
from .rotary import read_rope

HF = Adapter(
    ("Glm4MoeForCausalLM",),
    config=DECODER
    | MTP
    | {
        "rope.dimension_count": lambda config: int(head_dim(config) * (config["rope"]["partial_rotary_factor"] or 0.5)),
        "expert_shared_count": "n_shared_experts",
        "leading_dense_block_count": "first_k_dense_replace",
        "expert_gating_func": lambda config: 2,
        "expert_weights_scale": "routed_scaling_factor",
        "expert_weights_norm": "norm_topk_prob",
    },
    tensors=DECODER_TENSORS
    | MTP_TENSORS
    | SHARED_EXPERTS
    | {"model.layers.{i}.post_attention_layernorm": "blk.{i}.post_attention_norm"},
    more_layers=True,
)


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope = read_rope(file, c.k_dim, neox=True)
        super().__init__(file, c, [block(file, layer, c, rope) for layer in range(c.layers)])
        self.mtp = read_mtp(file, self, lambda layer: block(file, layer, c, rope))


def block(file: Checkpoint, layer: int, c: Config, rope: Rope) -> Block:
    norms = head_norms(file, layer, c) if file.has_tensor(f"blk.{layer}.attn_q_norm.weight") else None
    attn = Attention(file, layer, c, rope, norms=norms)
    dense = layer < file.size("leading_dense_block_count", default=0, least=0)
    ffn = FeedForward(file, layer, c) if dense else Experts(file, layer, c, score="sigmoid", normalize=False)
    return Block(file, layer, c, attn, ffn, ffn_norm="post_attention_norm")

"""GLM-4.5 and later: sigmoid routing beside a shared expert, after some layers without experts."""

from __future__ import annotations

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .adapter import DECODER, DECODER_TENSORS, SHARED_EXPERTS, Adapter, head_dim
from .checkpoint import Checkpoint
from .config import Config
from .experts import Experts
from .layers import Attention, FeedForward, Norm, head_norms, read_output
from .rotary import read_rope

HF = Adapter(
    ("Glm4MoeForCausalLM",),
    config=DECODER
    | {
        "rope.dimension_count": lambda config: int(head_dim(config) * (config["rope"]["partial_rotary_factor"] or 0.5)),
        "expert_shared_count": "n_shared_experts",
        "leading_dense_block_count": "first_k_dense_replace",
        "expert_gating_func": lambda config: 2,
        "expert_weights_scale": "routed_scaling_factor",
        "expert_weights_norm": "norm_topk_prob",
        "nextn_predict_layers": lambda config: 0,
    },
    tensors=DECODER_TENSORS
    | SHARED_EXPERTS
    | {"model.layers.{i}.post_attention_layernorm": "blk.{i}.post_attention_norm"},
    more_layers=True,
)


class Model:
    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file)
        rope = read_rope(file, c.k_dim, neox=True)
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.blk = [Block(file, layer, c, rope) for layer in range(c.layers)]
        self.output_norm = Norm(file, "output_norm", c.hidden)
        self.output = read_output(file, c)

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.token_embd)
        for block in self.blk:
            x = block.forward(ops, x)
        return ops.linear(self.output_norm(ops, x), self.output)


class Block:
    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope) -> None:
        name = f"blk.{layer}"
        self.attn_norm = Norm(file, f"{name}.attn_norm", c.hidden)
        norms = head_norms(file, layer, c) if file.has_tensor(f"{name}.attn_q_norm.weight") else None
        self.attn = Attention(file, layer, c, rope, norms=norms)
        self.post_attention_norm = Norm(file, f"{name}.post_attention_norm", c.hidden)
        dense = layer < file.size("leading_dense_block_count", default=0, least=0)
        self.ffn = FeedForward(file, layer, c) if dense else Experts(file, layer, c, score="sigmoid", normalize=False)

    def forward(self, ops: Ops, x: Value) -> Value:
        x = x + self.attn(ops, self.attn_norm(ops, x))
        return x + self.ffn(ops, self.post_attention_norm(ops, x))

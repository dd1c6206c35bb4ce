"""LFM2 with experts after some layers without."""

from __future__ import annotations

from . import lfm2
from .adapter import DECODER, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Part
from .experts import Experts
from .layers import FeedForward

_FFN = "model.layers.{i}.feed_forward"
HF = Adapter(
    ("Lfm2MoeForCausalLM",),
    config={
        **DECODER,
        "shortconv.l_cache": "conv_L_cache",
        "leading_dense_block_count": "num_dense_layers",
        "expert_weights_norm": "norm_topk_prob",
        "expert_weights_scale": "routed_scaling_factor",
    },
    tensors={
        **lfm2.HF.tensors,
        f"{_FFN}.gate": "blk.{i}.ffn_gate_inp",
        f"{_FFN}.expert_bias": "blk.{i}.exp_probs_b.bias",
        f"{_FFN}.experts.{{e}}.w1": "blk.{i}.ffn_gate_exps",
        f"{_FFN}.experts.{{e}}.w2": "blk.{i}.ffn_down_exps",
        f"{_FFN}.experts.{{e}}.w3": "blk.{i}.ffn_up_exps",
    },
)


class Model(lfm2.Model):
    def feed_forward(self, file: Checkpoint, layer: int, c: Config) -> Part:
        if layer < file.size("leading_dense_block_count", default=0, least=0):
            return FeedForward(file, layer, c)
        return Experts(file, layer, c, score="sigmoid")

"""Nemotron 3: Nemotron-H with experts in the place of feed-forward layers."""

from __future__ import annotations

from . import nemotron_h
from .adapter import Adapter

HF = Adapter(
    ("NemotronHForCausalLM",),
    config={
        **nemotron_h.CONFIG,
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
        "expert_weights_norm": "norm_topk_prob",
        "expert_weights_scale": "routed_scaling_factor",
        "moe_latent_size": "moe_latent_size",
    },
    tensors=nemotron_h.TENSORS,
    fits=nemotron_h.has_experts,
)


class Model(nemotron_h.Model):
    pass

"""Gemma 3: norms before and after each part and of heads; of six layers five have a window and a rope of their own."""

from __future__ import annotations

import math

from ..ops.graph import Rope
from .adapter import DECODER, SANDWICH_TENSORS, WINDOWS, Adapter, norms_plus_one
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Decoder, Sandwich
from .layers import Attention, FeedForward, head_norms, read_windows
from .rotary import read_local_rope, read_rope

LARGEST = 62  # layers of the 27B model, in which the scale of attention is another one

HF = Adapter(
    ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    config=DECODER
    | WINDOWS
    | {
        "context_length": lambda config: config.get("max_position_embeddings", 131072),
        "attention.head_count": lambda config: config.get("num_attention_heads", 8),
        "attention.head_count_kv": lambda config: config.get("num_key_value_heads", 4),
        "attention.key_length": lambda config: config.get("head_dim", 256),
        "attention.value_length": lambda config: config.get("head_dim", 256),
        "attention.layer_norm_rms_epsilon": lambda config: config.get("rms_norm_eps", 1e-6),
        "attention.scale": lambda config: config.get("query_pre_attn_scalar", 256) ** -0.5,
        "rope.freq_base": lambda config: config["rope"]["rope_theta"] or 1e6,
        "final_logit_softcapping": "final_logit_softcapping",
    },
    tensors=norms_plus_one(SANDWICH_TENSORS),
)


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope, local = read_rope(file, c.k_dim, neox=True), read_local_rope(file, c.k_dim, neox=True)
        windows = read_windows(file, c.layers, period=6)
        blocks = [block(file, i, c, local if window else rope, window) for i, window in enumerate(windows)]
        softcap = file.number("final_logit_softcapping", default=0.0, least=0)
        super().__init__(file, c, blocks, scale=math.sqrt(c.hidden), softcap=softcap)


def block(file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> Sandwich:
    scale = 1 / math.sqrt(c.hidden // c.heads if c.layers == LARGEST else c.k_dim)
    norms = head_norms(file, layer, c)
    attn = Attention(file, layer, c, rope, norms=norms, window=window, scale=scale)
    return Sandwich(file, layer, c, attn, FeedForward(file, layer, c, "gelu_tanh"))

"""Gemma 2: norms before and after each part, soft caps of attention and of logits; every other layer has a window."""

from __future__ import annotations

import math

from ..ops.graph import Rope
from .adapter import DECODER, SANDWICH_TENSORS, WINDOWS, Adapter, norms_plus_one
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Decoder, Sandwich
from .layers import Attention, FeedForward, read_windows
from .rotary import read_rope

WINDOW, ATTENTION_CAP, LOGIT_CAP = 4096, 50.0, 30.0  # where a file does not say
LARGEST = 46  # layers of the 27B model, in which the scale of attention is another one

HF = Adapter(
    ("Gemma2ForCausalLM",),
    config=DECODER
    | WINDOWS
    | {
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "attention.scale": lambda config: config.get("query_pre_attn_scalar", 256) ** -0.5,
    },
    tensors=norms_plus_one(SANDWICH_TENSORS),
)


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope = read_rope(file, c.k_dim, neox=True)
        windows = read_windows(file, c.layers, period=2, default=WINDOW)
        blocks = [block(file, layer, c, rope, window) for layer, window in enumerate(windows)]
        softcap = file.number("final_logit_softcapping", default=LOGIT_CAP, least=0)
        super().__init__(file, c, blocks, scale=math.sqrt(c.hidden), softcap=softcap)


def block(file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> Sandwich:
    scale = 1 / math.sqrt(c.hidden // c.heads if c.layers == LARGEST else c.k_dim)
    softcap = file.number("attn_logit_softcapping", default=ATTENTION_CAP, least=0)
    attn = Attention(file, layer, c, rope, window=window, scale=scale, softcap=softcap)
    return Sandwich(file, layer, c, attn, FeedForward(file, layer, c, "gelu_tanh"))

"""Gemma 2: norms before and after each part, soft caps of attention and of logits; every other layer has a window."""

from __future__ import annotations

import math

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .adapter import DECODER, SANDWICH_TENSORS, Adapter, norms_plus_one
from .checkpoint import Checkpoint
from .config import Config
from .layers import Attention, FeedForward, Norm, read_output, read_windows
from .rotary import read_rope

WINDOW, ATTENTION_CAP, LOGIT_CAP = 4096, 50.0, 30.0  # where a file does not say
LARGEST = 46  # layers of the 27B model, in which the scale of attention is another one

HF = Adapter(
    ("Gemma2ForCausalLM",),
    config=DECODER
    | {
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "attention.sliding_window": "sliding_window",
    },
    tensors=norms_plus_one(SANDWICH_TENSORS),
)


class Model:
    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file)
        rope = read_rope(file, c.k_dim, neox=True)
        windows = read_windows(file, c.layers, every=2, default=WINDOW)
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.blk = [Block(file, layer, c, rope, window) for layer, window in enumerate(windows)]
        self.output_norm = Norm(file, "output_norm", c.hidden)
        self.output = read_output(file, c)
        self.softcap = file.number("final_logit_softcapping", default=LOGIT_CAP, least=0)

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.token_embd, math.sqrt(self.config.hidden))
        for block in self.blk:
            x = block.forward(ops, x)
        logits = ops.linear(self.output_norm(ops, x), self.output)
        return ops.softcap(logits, self.softcap) if self.softcap else logits


class Block:
    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> None:
        name = f"blk.{layer}"
        scale = 1 / math.sqrt(c.hidden // c.heads if c.layers == LARGEST else c.k_dim)
        softcap = file.number("attn_logit_softcapping", default=ATTENTION_CAP, least=0)
        self.attn_norm = Norm(file, f"{name}.attn_norm", c.hidden)
        self.attn = Attention(file, layer, c, rope, window=window, scale=scale, softcap=softcap)
        self.post_attention_norm = Norm(file, f"{name}.post_attention_norm", c.hidden)
        self.ffn_norm = Norm(file, f"{name}.ffn_norm", c.hidden)
        self.ffn = FeedForward(file, layer, c, "gelu_tanh")
        self.post_ffw_norm = Norm(file, f"{name}.post_ffw_norm", c.hidden)

    def forward(self, ops: Ops, x: Value) -> Value:
        x = x + self.post_attention_norm(ops, self.attn(ops, self.attn_norm(ops, x)))
        return x + self.post_ffw_norm(ops, self.ffn(ops, self.ffn_norm(ops, x)))

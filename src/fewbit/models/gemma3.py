"""Gemma 3: norms before and after each part and of heads; of six layers five have a window and a rope of their own."""

from __future__ import annotations

import math

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .adapter import DECODER, SANDWICH_TENSORS, Adapter, norms_plus_one
from .checkpoint import Checkpoint
from .config import Config
from .layers import Attention, FeedForward, Norm, head_norms, read_output, read_windows
from .rotary import read_local_rope, read_rope

LARGEST = 62  # layers of the 27B model, in which the scale of attention is another one

HF = Adapter(
    ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    config=DECODER
    | {
        "context_length": lambda config: config.get("max_position_embeddings", 131072),
        "attention.head_count": lambda config: config.get("num_attention_heads", 8),
        "attention.head_count_kv": lambda config: config.get("num_key_value_heads", 4),
        "attention.key_length": lambda config: config.get("head_dim", 256),
        "attention.value_length": lambda config: config.get("head_dim", 256),
        "attention.layer_norm_rms_epsilon": lambda config: config.get("rms_norm_eps", 1e-6),
        "attention.sliding_window": "sliding_window",
        "rope.freq_base": lambda config: config["rope"]["rope_theta"] or 1e6,
        "final_logit_softcapping": "final_logit_softcapping",
    },
    tensors=norms_plus_one(SANDWICH_TENSORS),
)


class Model:
    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file)
        rope, local = read_rope(file, c.k_dim, neox=True), read_local_rope(file, c.k_dim, neox=True)
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.blk = [
            Block(file, layer, c, local if window else rope, window)
            for layer, window in enumerate(read_windows(file, c.layers, every=6))
        ]
        self.output_norm = Norm(file, "output_norm", c.hidden)
        self.output = read_output(file, c)
        self.softcap = file.number("final_logit_softcapping", default=0.0, least=0)

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.token_embd, math.sqrt(self.config.hidden))
        for block in self.blk:
            x = block.forward(ops, x)
        logits = ops.linear(self.output_norm(ops, x), self.output)
        return ops.softcap(logits, self.softcap) if self.softcap else logits


class Block:
    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> None:
        name = f"blk.{layer}"
        dim = c.hidden // c.heads if c.layers == LARGEST else c.k_dim
        norms, scale = head_norms(file, layer, c), 1 / math.sqrt(dim)
        self.attn_norm = Norm(file, f"{name}.attn_norm", c.hidden)
        self.attn = Attention(file, layer, c, rope, norms=norms, window=window, scale=scale)
        self.post_attention_norm = Norm(file, f"{name}.post_attention_norm", c.hidden)
        self.ffn_norm = Norm(file, f"{name}.ffn_norm", c.hidden)
        self.ffn = FeedForward(file, layer, c, "gelu_tanh")
        self.post_ffw_norm = Norm(file, f"{name}.post_ffw_norm", c.hidden)

    def forward(self, ops: Ops, x: Value) -> Value:
        x = x + self.post_attention_norm(ops, self.attn(ops, self.attn_norm(ops, x)))
        return x + self.post_ffw_norm(ops, self.ffn(ops, self.ffn_norm(ops, x)))

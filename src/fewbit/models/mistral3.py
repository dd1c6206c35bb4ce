"""Ministral 3: as Llama, but queries are scaled up with their distance from the start, in steps."""

from __future__ import annotations

import numpy as np

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from ..tensor import QuantTensor
from .adapter import DECODER, INTERLEAVED_TENSORS, Adapter, head_dim
from .checkpoint import Checkpoint
from .config import Config
from .layers import Attention, FeedForward, Norm, read_output, read_windows
from .rotary import read_rope

HF = Adapter(
    ("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"),
    config=DECODER
    | {
        "rope.dimension_count": head_dim,
        "rope.scaling.yarn_log_multiplier": "rope.mscale_all_dim",
        "attention.temperature_scale": "rope.llama_4_scaling_beta",
        "attention.sliding_window": "sliding_window",
    },
    tensors=INTERLEAVED_TENSORS,
)


class Model:
    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file)
        rope = read_rope(file, c.k_dim)
        beta = file.number("attention.temperature_scale", default=0.0, least=0)
        self.temperature = None
        if beta:
            self.temperature = Temperature(c, beta, file.size("rope.scaling.original_context_length", most=1 << 30))
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        windows = read_windows(file, c.layers)
        self.blk = [Block(file, layer, c, rope, window) for layer, window in enumerate(windows)]
        self.output_norm = Norm(file, "output_norm", c.hidden)
        self.output = read_output(file, c)

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.token_embd)
        scales = self.temperature(ops) if self.temperature else None
        for block in self.blk:
            x = block.forward(ops, x, scales)
        return ops.linear(self.output_norm(ops, x), self.output)


class Block:
    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> None:
        self.attn_norm = Norm(file, f"blk.{layer}.attn_norm", c.hidden)
        self.attn = Attention(file, layer, c, rope, window=window)
        self.ffn_norm = Norm(file, f"blk.{layer}.ffn_norm", c.hidden)
        self.ffn = FeedForward(file, layer, c)

    def forward(self, ops: Ops, x: Value, scales: Value | None) -> Value:
        q, k, v = self.attn.project(ops, self.attn_norm(ops, x))
        q = q if scales is None else ops.gate(scales, q, "none")
        x = x + self.attn.attend(ops, q, k, v)
        return x + self.ffn(ops, self.ffn_norm(ops, x))


class Temperature:
    """1 + beta * log(1 + floor(position / length)): a table by position, then spread over all of Q.

    Positions are counted from `first` on, and there are `tokens` of them (default: the model's context).
    """

    def __init__(self, c: Config, beta: float, length: int, first: int = 0, tokens: int | None = None) -> None:
        scales = 1 + beta * np.log1p(np.arange(first, first + (tokens or c.ctx)) // length)
        self.table = as_tensor(scales[:, None])
        self.ones = as_tensor(np.ones((c.heads * c.k_dim, 1)))

    def __call__(self, ops: Ops) -> Value:
        return ops.linear(ops.positions(self.table), self.ones)


def as_tensor(x: np.ndarray) -> QuantTensor:
    return QuantTensor.from_bytes(x.astype(np.float32), x.shape, "f32")

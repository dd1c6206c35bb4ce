"""Llama, and what is built like it: Mistral, SmolLM2, Yi."""

from __future__ import annotations

import math

from ..errors import FileError
from ..ops.graph import Ops, Rope, Value
from ..ops.specs import AttentionSpec
from .checkpoint import Checkpoint
from .config import Config
from .layers import Linear
from .rotary import read_rope


class Model:
    def __init__(self, file: Checkpoint) -> None:
        if file.size("expert_count", default=0, least=0):
            raise FileError(f"{file.path}: mixtures of experts are not supported yet")
        c = self.config = Config.read(file)
        rope = read_rope(file, c.k_dim)
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.blk = [Block(file, i, c, rope) for i in range(c.layers)]
        self.eps = file.number("attention.layer_norm_rms_epsilon", least=0)
        self.output_norm = file.vector("output_norm.weight", c.hidden)
        tied = not file.has_tensor("output.weight")
        self.output = file.weight("token_embd.weight" if tied else "output.weight", c.vocab, c.hidden)

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.token_embd)
        for block in self.blk:
            x = block.forward(ops, x)
        return ops.linear(ops.norm(x, self.output_norm, self.eps), self.output)


class Block:
    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope) -> None:
        name = f"blk.{layer}"
        self.layer, self.rope = layer, rope
        self.heads, self.kv_heads = c.heads, c.kv_heads
        self.eps = file.number("attention.layer_norm_rms_epsilon", least=0)
        self.scale = file.number("attention.scale", default=1 / math.sqrt(c.k_dim))
        window = file.size("attention.sliding_window", default=0, least=0)
        self.spec = AttentionSpec(c.kv_heads, c.k_dim, c.v_dim, window)

        self.attn_norm = file.vector(f"{name}.attn_norm.weight", c.hidden)
        self.attn_q = Linear(file, f"{name}.attn_q", c.heads * c.k_dim, c.hidden)
        self.attn_k = Linear(file, f"{name}.attn_k", c.kv_heads * c.k_dim, c.hidden)
        self.attn_v = Linear(file, f"{name}.attn_v", c.kv_heads * c.v_dim, c.hidden)
        self.attn_output = Linear(file, f"{name}.attn_output", c.hidden, c.heads * c.v_dim)
        self.ffn_norm = file.vector(f"{name}.ffn_norm.weight", c.hidden)
        self.ffn_gate = Linear(file, f"{name}.ffn_gate", c.feed_forward, c.hidden)
        self.ffn_up = Linear(file, f"{name}.ffn_up", c.feed_forward, c.hidden)
        self.ffn_down = Linear(file, f"{name}.ffn_down", c.hidden, c.feed_forward)

    def forward(self, ops: Ops, x: Value) -> Value:
        x = x + self.attn_output(ops, self.attention(ops, ops.norm(x, self.attn_norm, self.eps)))
        return x + self.feed_forward(ops, ops.norm(x, self.ffn_norm, self.eps))

    def attention(self, ops: Ops, x: Value) -> Value:
        q = ops.rope(self.attn_q(ops, x), self.heads, self.rope)
        k = ops.rope(self.attn_k(ops, x), self.kv_heads, self.rope)
        v = self.attn_v(ops, x)
        return ops.attend(self.layer, q, k, v, spec=self.spec, scale=self.scale)

    def feed_forward(self, ops: Ops, x: Value) -> Value:
        return self.ffn_down(ops, ops.gate(self.ffn_gate(ops, x), self.ffn_up(ops, x), "silu"))

"""Llama 4, its text part: attention in chunks, layers without a rope, and experts whose inputs are scaled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import FileError
from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .adapter import DECODER, DECODER_TENSORS, Adapter, head_dim
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder, Part
from .experts import Experts
from .layers import Attention, FeedForward, Norm, read_rms_epsilon, read_slides
from .mistral3 import Temperature, as_tensor
from .rotary import read_rope
from .smollm3 import NO_ROPE_EVERY, ROPE_PATTERN, rope_pattern
from .transforms import TRANSPOSED, Transform, part

CHUNK = 8192  # tokens, where a file does not say
QK_NORM = "attention.qk_norm"
WITHOUT_NORMS = 128  # experts of the model whose Q and K are not normalized


def chunk_pattern(config: Mapping[str, Any]) -> list[bool]:
    kinds = config.get("layer_types")
    return [kind == "chunked_attention" for kind in kinds] if kinds else rope_pattern(config)


def temperature(config: Mapping[str, Any]) -> float:
    return config.get("attn_scale", 0.1) if config.get("attn_temperature_tuning", True) else 0.0


def _half(number: int) -> Transform:
    """Gate or up of each expert, as rows."""
    halves, turn = part(number, 2, axis=2), TRANSPOSED
    return Transform(lambda w, config: turn(halves(w, config=config), config=config))


_FFN = "model.layers.{i}.feed_forward"
HF = Adapter(
    ("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
    config=DECODER
    | {
        "feed_forward_length": "intermediate_size_mlp",
        "expert_feed_forward_length": "intermediate_size",
        "rope.dimension_count": head_dim,
        "attention.sliding_window": lambda config: config.get("attention_chunk_size") or 0,
        "attention.sliding_window_pattern": chunk_pattern,
        "attention.temperature_scale": temperature,
        "attention.temperature_length": "floor_scale",
        QK_NORM: "use_qk_norm",
        ROPE_PATTERN: rope_pattern,
    },
    tensors=DECODER_TENSORS
    | {
        f"{_FFN}.gate_proj": "blk.{i}.ffn_gate",
        f"{_FFN}.up_proj": "blk.{i}.ffn_up",
        f"{_FFN}.down_proj": "blk.{i}.ffn_down",
        f"{_FFN}.router": "blk.{i}.ffn_gate_inp",
        f"{_FFN}.experts.gate_up_proj": [
            ("blk.{i}.ffn_gate_exps.weight", _half(0)),
            ("blk.{i}.ffn_up_exps.weight", _half(1)),
        ],
        f"{_FFN}.experts.down_proj": ("blk.{i}.ffn_down_exps.weight", TRANSPOSED),
        f"{_FFN}.shared_expert.gate_proj": "blk.{i}.ffn_gate_shexp",
        f"{_FFN}.shared_expert.up_proj": "blk.{i}.ffn_up_shexp",
        f"{_FFN}.shared_expert.down_proj": "blk.{i}.ffn_down_shexp",
    },
)


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope, ropes, chunks = read_rope(file, c.k_dim), read_ropes(file, c.layers), read_chunks(file, c)
        self.has_norms = file.flag(QK_NORM, file.size("expert_count", default=0, least=0) != WITHOUT_NORMS)
        beta = file.number("attention.temperature_scale", default=0.1, least=0)
        length = file.size("attention.temperature_length", default=CHUNK, most=1 << 30)
        self.temperature = Temperature(c, beta, length, first=1, tokens=min(file.ctx or c.ctx, c.ctx)) if beta else None
        blocks = [self.block(file, i, c, rope if ropes[i] else None, chunks[i]) for i in range(c.layers)]
        super().__init__(file, c, blocks)

    def block(self, file: Checkpoint, layer: int, c: Config, rope: Rope | None, chunk: int) -> Block:
        norms = (UnitNorm(file, c.k_dim, c.heads), UnitNorm(file, c.k_dim, c.kv_heads))
        attn = Attention(file, layer, c, rope, norms=norms if rope and self.has_norms else None, window=chunk)
        attn.spec = replace(attn.spec, chunked=chunk > 0)
        mixer: Part = attn if rope or not self.temperature else TemperedAttention(attn, self.temperature)
        is_dense = not file.has_tensor(f"blk.{layer}.ffn_gate_inp.weight")
        return Block(
            file, layer, c, mixer, FeedForward(file, layer, c) if is_dense else InputScaledExperts(file, layer, c)
        )


class UnitNorm(Norm):
    """A norm of heads without weights. It may precede the rope, which keeps lengths."""

    def __init__(self, file: Checkpoint, size: int, heads: int) -> None:
        self.weight, self.heads, self.eps = np.ones(size, np.float32), heads, read_rms_epsilon(file)


class TemperedAttention:
    """Attention whose queries grow with their position."""

    def __init__(self, attn: Attention, temperature: Temperature) -> None:
        self.attn, self.temperature = attn, temperature

    def __call__(self, ops: Ops, x: Value) -> Value:
        q, k, v = self.attn.project(ops, x)
        return self.attn.attend(ops, ops.gate(self.temperature(ops), q, "none"), k, v)


class InputScaledExperts(Experts):
    """One expert for each token, which takes the token's row times its weight, the sigmoid of the greatest score."""

    def __init__(self, file: Checkpoint, layer: int, c: Config) -> None:
        super().__init__(file, layer, c)
        if self.routing.top_k != 1:
            raise FileError(f"{file.path}: llama4 models use one expert for each token, not {self.routing.top_k}")
        self.routing = replace(self.routing, score="softmax_top", normalize=True, scale=1.0)  # the weight is 1
        self.shared_expert = FeedForward(file, layer, c, suffix="_shexp", rows=self.gate.weight.shape[1])
        self.ones = as_tensor(np.ones((c.hidden, 1)))

    def __call__(self, ops: Ops, x: Value) -> Value:
        scores = self.ffn_gate_inp(ops, x)
        weight = ops.activate(greatest(ops, scores), "sigmoid")
        out = ops.experts(
            ops.gate(ops.linear(weight, self.ones), x, "none"), scores, gate=self.gate.weight, up=self.up.weight,
            down=self.down.weight, routing=self.routing,
        )  # fmt: skip
        return out + self.shared_expert(ops, x)


def greatest(ops: Ops, x: Value) -> Value:
    """The greatest value of each row: of two halves, which may overlap, a + relu(b - a), and so on."""
    while x.width > 1:
        half = (x.width + 1) // 2
        a, b = ops.columns(x, 0, half), ops.columns(x, x.width - half, half)
        x = a + ops.activate(b + ops.scale(a, -1.0), "relu")
    return x


def read_chunks(file: Checkpoint, c: Config) -> list[int]:
    """The chunk of each layer; 0: the whole context, which may be no longer than a chunk."""
    chunk = file.size("attention.sliding_window", default=CHUNK, least=0)
    chunk = 0 if chunk >= c.ctx else chunk
    return [chunk if is_chunked else 0 for is_chunked in read_slides(file, c.layers, period=NO_ROPE_EVERY)]


def read_ropes(file: Checkpoint, layers: int) -> list[bool]:
    """Which layers have a rope. Files that say that there are no chunks have one in all layers but the last."""
    if file.has_list(ROPE_PATTERN):
        return file.flags(ROPE_PATTERN, layers)
    every = layers if file.size("attention.sliding_window", default=CHUNK, least=0) == 0 else NO_ROPE_EVERY
    return [(layer + 1) % every != 0 for layer in range(layers)]

"""Gemma 3n, its text part: several hidden rows (AltUp), an input for each layer, sparse activations, shared K and V."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np

from ..ops.graph import Value
from ..ops.recorder import Ops
from .adapter import DECODER, SANDWICH_TENSORS, WINDOWS, Adapter
from .altup import AltUp, Magnitude, Streams
from .checkpoint import Checkpoint
from .config import Config
from .gemma4_parts import KV, Gemma4Attention, LayerInputs, read_sizes, read_sources
from .layers import FeedForward, Linear, Norm, read_output, read_windows
from .rotary import read_local_rope, read_rope
from .transforms import Array, Transform

SPARSITY = "activation_sparsity_scale"
SOFTCAP = 30.0  # of logits, where a file does not say
TINY = 1e-12


def cutoffs(config: Mapping[str, Any]) -> list[float]:
    """How many deviations above the mean values of a feed-forward layer are kept, from the share that is not."""
    layers = config["num_hidden_layers"]
    shares = config.get("activation_sparsity_pattern")
    if shares is None:
        shares = [0.95 if layers > 10 and layer < 10 else 0.0 for layer in range(min(layers, 1 << 12))]
    return [NormalDist().inv_cdf(share) if share > 0 else -math.inf for share in shares]


def _padded(w: Array, config: Mapping[str, Any]) -> Array:
    """A row for every token: those that are not in the table have the first."""
    missing = config["vocab_size"] - len(w)
    return np.concatenate([w, np.repeat(w[:1], missing, 0)]) if missing > 0 else w


STACKED = Transform(lambda *given: np.stack(given[:-1]))
_LAYER = "model.layers.{i}"
HF = Adapter(
    ("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"),
    config=DECODER
    | WINDOWS
    | {
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "embedding_length_per_layer_input": "hidden_size_per_layer_input",
        "altup.num_inputs": "altup_num_inputs",
        "altup.active_idx": "altup_active_idx",
        SPARSITY: cutoffs,
        "final_logit_softcapping": "final_logit_softcapping",
    },
    tensors=SANDWICH_TENSORS
    | {
        "model.embed_tokens_per_layer.weight": ("per_layer_token_embd.weight", Transform(_padded, moves_rows=True)),
        "model.per_layer_model_projection": "per_layer_model_proj",
        "model.per_layer_projection_norm": "per_layer_proj_norm",
        tuple(f"model.altup_projections.{i}" for i in range(3)): ("altup_proj", STACKED),
        tuple(f"model.altup_unembed_projections.{i}" for i in range(3)): ("altup_unembd_proj", STACKED),
        f"{_LAYER}.per_layer_input_gate": "blk.{i}.inp_gate",
        f"{_LAYER}.per_layer_projection": "blk.{i}.proj",
        f"{_LAYER}.post_per_layer_input_norm": "blk.{i}.post_norm",
        f"{_LAYER}.altup.correct_output_scale": "blk.{i}.altup_correct_scale.weight",
        f"{_LAYER}.altup.correction_coefs": "blk.{i}.altup_correct_coef",
        f"{_LAYER}.altup.prediction_coefs": "blk.{i}.altup_predict_coef",
        f"{_LAYER}.altup.modality_router": "blk.{i}.altup_router",
        f"{_LAYER}.altup.router_norm": "blk.{i}.altup_router_norm",
        f"{_LAYER}.laurel.linear_left": "blk.{i}.laurel_l",
        f"{_LAYER}.laurel.linear_right": "blk.{i}.laurel_r",
        f"{_LAYER}.laurel.post_laurel_norm": "blk.{i}.laurel_post_norm",
    },
)


class Model:
    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file, layers_differ=True)
        windows, sizes = read_windows(file, c.layers, period=None), read_sizes(file, c)
        sources, count = read_sources(file, windows), file.size("altup.num_inputs", least=2, most=64)
        active = file.size("altup.active_idx", default=0, least=0, most=count - 1)
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.inputs = LayerInputs(file, c, file.size("embedding_length_per_layer_input"))
        self.streams = Streams(file, c, count)
        ropes = read_rope(file, c.k_dim, neox=True), read_local_rope(file, c.k_dim, neox=True)
        cut = file.numbers(SPARSITY, c.layers)
        self.blk = []
        for i, (own, window) in enumerate(zip(sizes, windows, strict=True)):
            attn = Gemma4Attention(file, i, sources[i], own, ropes[window > 0], window)
            altup = AltUp(file, i, c, count, active)
            ffn = (
                SparseFeedForward(file, i, own, cut[i])
                if cut[i] > -math.inf
                else FeedForward(file, i, own, "gelu_tanh")
            )
            self.blk.append(Block(file, attn, altup, ffn, own, self.inputs.width))
            for part in ("attn_k.", "attn_v.", "attn_k_norm.") if sources[i] != i else ():
                file.skip(f"blk.{i}.{part}")  # K and V are those of another layer
        self.output_norm = Norm(file, "output_norm", c.hidden)
        self.output = read_output(file, c)
        self.softcap = file.number("final_logit_softcapping", default=0.0, least=0) or SOFTCAP

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.token_embd, math.sqrt(self.config.hidden))
        inputs, kv = self.inputs(ops, x), KV()
        x = self.streams.split(ops, x)
        for block in self.blk:
            x = block.forward(ops, x, inputs, kv)
        logits = ops.linear(self.output_norm(ops, self.streams.joined(ops, x)), self.output)
        return ops.softcap(logits, self.softcap)


class Block:
    def __init__(
        self, file: Checkpoint, attn: Gemma4Attention, altup: AltUp, ffn: FeedForward, c: Config, width: int
    ) -> None:
        name = f"blk.{attn.layer}"
        self.attn, self.altup, self.ffn, self.width = attn, altup, ffn, width
        self.attn_norm, self.ffn_norm = (Norm(file, f"{name}.{x}_norm", c.hidden) for x in ("attn", "ffn"))
        self.post_attention_norm = Norm(file, f"{name}.post_attention_norm", c.hidden)
        self.post_ffw_norm = Norm(file, f"{name}.post_ffw_norm", c.hidden)
        self.laurel = Laurel(file, name, c)
        self.gated = LayerInput(file, name, c, width)

    def forward(self, ops: Ops, x: Value, inputs: Value, kv: KV) -> Value:
        rows = self.altup.predict(ops, x)
        own = self.altup.row(ops, rows, self.altup.active)
        normed = self.attn_norm(ops, own)
        attended = own + self.post_attention_norm(ops, self.attn.forward(ops, normed, kv))
        y = ops.scale(attended + self.laurel(ops, normed), math.sqrt(0.5))
        y = y + self.post_ffw_norm(ops, self.ffn(ops, self.ffn_norm(ops, y)))
        rows = self.altup.correct(ops, rows, y)
        given = ops.columns(inputs, self.attn.layer * self.width, self.width)
        added = self.gated(ops, self.altup.row(ops, rows, self.altup.active), given)
        return self.add(ops, rows, added)

    def add(self, ops: Ops, rows: Value, added: Value) -> Value:
        """To all rows but the first."""
        out = self.altup.row(ops, rows, 0)
        for i in range(1, self.altup.count):
            out = ops.join(out, self.altup.row(ops, rows, i) + added, 1)
        return out


class Laurel:
    """A row plus a normalized product of low rank of it."""

    def __init__(self, file: Checkpoint, name: str, c: Config) -> None:
        rank = file.rows(f"{name}.laurel_l.weight")
        self.left = Linear(file, f"{name}.laurel_l", rank, c.hidden)
        self.right = Linear(file, f"{name}.laurel_r", c.hidden, rank)
        self.norm = Norm(file, f"{name}.laurel_post_norm", c.hidden)

    def __call__(self, ops: Ops, x: Value) -> Value:
        return x + self.norm(ops, self.right(ops, self.left(ops, x)))


class LayerInput:
    """What a layer adds of its input: gated by a row times a vector, which is a norm times the row's magnitude."""

    def __init__(self, file: Checkpoint, name: str, c: Config, width: int) -> None:
        self.scale = file.vector(f"{name}.altup_correct_scale.weight", c.hidden)
        self.magnitude = Magnitude(c.hidden, width)
        self.inp_gate = Linear(file, f"{name}.inp_gate", width, c.hidden)
        self.proj = Linear(file, f"{name}.proj", c.hidden, width)
        self.post_norm = Norm(file, f"{name}.post_norm", c.hidden)

    def __call__(self, ops: Ops, x: Value, given: Value) -> Value:
        gate = ops.gate(self.magnitude(ops, x), self.inp_gate(ops, ops.norm(x, self.scale, TINY)), "none")
        return self.post_norm(ops, self.proj(ops, ops.gate(gate, given, "gelu_tanh")))


class SparseFeedForward(FeedForward):
    """Values of the gate become those by which they exceed the mean and `cut` deviations, or 0."""

    def __init__(self, file: Checkpoint, layer: int, c: Config, cut: float) -> None:
        super().__init__(file, layer, c, "gelu_tanh")
        n = c.feed_forward
        self.ones, self.cut = np.ones(n, np.float32), np.full(n, -cut, np.float32)
        self.mean, self.spread = Magnitude(n, n).mean, Magnitude(n, n).spread

    def __call__(self, ops: Ops, x: Value) -> Value:
        gate, up = self.ffn_gate(ops, x), self.ffn_up(ops, x)
        unit = ops.layer_norm(gate, self.ones, None, TINY)
        deviation = ops.linear(ops.linear(ops.gate(gate, unit, "none"), self.mean), self.spread)
        kept = ops.gate(ops.activate(ops.shift(unit, self.cut), "relu"), deviation, "none")
        return self.ffn_down(ops, ops.gate(kept, up, self.kind))

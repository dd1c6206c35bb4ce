"""Gemma 4: images of any shape in a budget of tokens, rope by column and row, means of squares of patches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...arrays import Floats
from ...errors import FileError
from ...images import Picture, PreparedImage, patches_of, resize, to_floats
from ...images.pixels import PixelRules
from ...ops.graph import Rope, Value
from ...ops.recorder import Ops
from ...ops.specs import AttentionSpec
from ..checkpoint import Checkpoint
from ..layers import Linear
from ..rotary import plain_inv_freq
from ..transforms import Transform
from .activation import gate, read_activation
from .adapter import VisionAdapter, key_or, preprocessor, vision_config
from .blocks import LAYER, PatchEmbedding, VisionNorm, VisionSizes, neighbours, read_pixels

MAX_TOKENS = 280  # of an image, unless the processor has its own limit
CAUSAL_WIDTHS = (1536, 2560)  # E2B and E4B: GGUF files do not say that their text models see images as text
LIMITS = "input_min", "input_max", "output_min", "output_max"


def as_convolution(w: Any, config: Mapping[str, Any]) -> Any:
    """The weights for patches whose values are ordered by row, column and channel, as those of a convolution."""
    size = config.get("patch_size", 16)
    return w.reshape(len(w), size, size, -1).transpose(0, 3, 1, 2)


_LINEARS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NORMS = {
    "input_layernorm": "ln1",
    "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "ln2",
    "post_feedforward_layernorm": "ffn_post_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
_LAYER = "encoder.layers.{i}"
HF = VisionAdapter(
    ("Gemma4ForConditionalGeneration",),
    "gemma4v",
    config=vision_config(
        [0.0] * 3,
        [1.0] * 3,
        patch_size=16,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=16,
        num_attention_heads=12,
    )
    | {
        "vision.activation": key_or("hidden_activation", "gelu_pytorch_tanh"),
        "vision.attention.layer_norm_epsilon": key_or("rms_norm_eps", 1e-6),
        "vision.rope.freq_base": lambda config: (config.get("rope_parameters") or {}).get("rope_theta", 100.0),
        "vision.projector.scale_factor": key_or("pooling_kernel_size", 3),
        "vision.max_tokens": preprocessor("max_soft_tokens", MAX_TOKENS),
        "vision.sees_all": lambda config: config["text"].get("use_bidirectional_attention") == "vision",
    },
    tensors={
        "patch_embedder.input_proj": ("v.patch_embd", Transform(as_convolution)),
        "patch_embedder.position_embedding_table": "v.position_embd.weight",
        "std_bias": "v.std_bias",
        "std_scale": "v.std_scale",
        "embed_vision.embedding_projection": "mm.input_projection",
        **{f"{_LAYER}.{theirs}": f"v.blk.{{i}}.{ours}" for theirs, ours in _NORMS.items()},
        **{f"{_LAYER}.{theirs}.linear": f"v.blk.{{i}}.{ours}" for theirs, ours in _LINEARS.items()},
        **{
            f"{_LAYER}.{theirs}.{limit}": f"v.blk.{{i}}.{ours}.{limit}"
            for theirs, ours in _LINEARS.items()
            for limit in LIMITS
        },
    },
)


class Model:
    placeholder = token = "<|image|>"
    has_axes = False
    parts = 1

    def __init__(self, file: Checkpoint) -> None:
        c = self.sizes = VisionSizes.read(file)
        self.pixels = tower_pixels(read_pixels(file, "bicubic"))
        self.scale = file.size("vision.projector.scale_factor", default=3, most=64)
        self.max_tokens = file.size("vision.max_tokens", default=MAX_TOKENS, most=1 << 12)
        self.sees_all = file.flag("vision.sees_all", default=c.out not in CAUSAL_WIDTHS)
        self.patch_embd = PatchEmbedding(file, c)
        count = file.shape("v.position_embd.weight")[1]
        self.position_embd = file.array("v.position_embd.weight", 2, count, c.hidden)  # by column, by row
        if count < self.max_tokens * self.scale:
            raise FileError(
                f"{file.path}: images of {self.max_tokens} tokens can have {self.max_tokens * self.scale} patches in a "
                f"row, and there are only {count} positions"
            )
        base = file.number("vision.rope.freq_base", default=100.0, least=1.0)
        kind = read_activation(file, default="gelu_pytorch_tanh")
        self.blk = [Block(file, layer, c, base, kind) for layer in range(c.layers)]
        self.std_bias = file.vector_or_none("v.std_bias", c.hidden)
        self.std_scale = file.vector_or_none("v.std_scale", c.hidden)
        self.projection = Linear(file, "mm.input_projection", c.out, c.hidden)

    @property
    def joint_tokens(self) -> int:
        return self.max_tokens if self.sees_all else 0

    @property
    def width(self) -> int:
        return self.sizes.out

    def prepare(self, picture: Picture) -> PreparedImage:
        patch = self.sizes.patch
        width, height = budgeted(*picture.image.size, patch * self.scale, self.max_tokens)
        image = resize(picture.image, width, height, self.pixels.resample)
        patches = patches_of(to_floats(np.asarray(image), self.pixels), patch)
        axes = np.mgrid[: height // patch, : width // patch].reshape(2, -1)[::-1].astype(np.int32)
        rows, columns = height // patch // self.scale, width // patch // self.scale
        text = f"<|image>{self.token * (rows * columns)}<image|>"
        added = self.position_embd[0, axes[0]] + self.position_embd[1, axes[1]]
        return PreparedImage(
            patches, (len(patches),), text, (rows, columns), axes=np.ascontiguousarray(axes), added=added
        )

    def tower(self, ops: Ops) -> Value:
        x = ops.insert(self.patch_embd(ops), adds=True)
        for block in self.blk:
            x = block(ops, x)
        return x

    def merge(self, hidden: Floats, image: PreparedImage) -> Floats:
        rows, columns = (size * self.scale for size in image.grid)
        means = neighbours(hidden, rows, columns, self.scale).mean(axis=(2, 3), dtype=np.float32)
        out = np.ascontiguousarray(means).reshape(-1, hidden.shape[1]) * np.float32(math.sqrt(hidden.shape[1]))
        if self.std_bias is not None and self.std_scale is not None:
            out = (out - self.std_bias) * self.std_scale
        return np.asarray(out, np.float32)

    def project(self, ops: Ops) -> Value:
        x = ops.given(self.sizes.hidden)
        return self.projection(ops, ops.norm(x, np.ones(self.sizes.hidden, np.float32), self.sizes.eps))


class Block:
    """Norms before and after each part. Heads are rotated by column in their first half, by row in the other."""

    def __init__(self, file: Checkpoint, layer: int, c: VisionSizes, base: float, kind: str) -> None:
        name, n = f"v.blk.{layer}", c.hidden
        self.c, self.kind, self.spec = c, kind, AttentionSpec(c.heads, c.dim, c.dim)
        self.ln1, self.attn_post_norm, self.ln2, self.ffn_post_norm = (
            VisionNorm(file, f"{name}.{part}", n, c.eps) for part in ("ln1", "attn_post_norm", "ln2", "ffn_post_norm")
        )
        self.q_norm, self.k_norm = (VisionNorm(file, f"{name}.attn_{x}_norm", c.dim, c.eps, c.heads) for x in "qk")
        self.v_norm = np.ones(c.dim, np.float32)
        inv_freq = plain_inv_freq(c.dim // 2, base).astype(np.float32)
        self.ropes = [Rope(inv_freq, neox=True, axes=(axis,) * len(inv_freq)) for axis in (0, 1)]
        self.q, self.k, self.v, self.out = (
            ClampedLinear(file, f"{name}.attn_{x}", n, n) for x in ("q", "k", "v", "out")
        )
        self.gate, self.up = (ClampedLinear(file, f"{name}.ffn_{x}", c.feed_forward, n) for x in ("gate", "up"))
        self.down = ClampedLinear(file, f"{name}.ffn_down", n, c.feed_forward)

    def __call__(self, ops: Ops, x: Value) -> Value:
        x = x + self.attn_post_norm(ops, self.attend(ops, self.ln1(ops, x)))
        rows = self.ln2(ops, x)
        fed = self.down(ops, gate(ops, self.gate(ops, rows), self.up(ops, rows), self.kind))
        return x + self.ffn_post_norm(ops, fed)

    def attend(self, ops: Ops, x: Value) -> Value:
        q, k = self.rotate(ops, self.q_norm(ops, self.q(ops, x))), self.rotate(ops, self.k_norm(ops, self.k(ops, x)))
        v = ops.norm(self.v(ops, x), self.v_norm, self.c.eps, self.c.heads)
        return self.out(ops, ops.attend(LAYER, q, k, v, spec=self.spec, scale=1.0, causal=False))

    def rotate(self, ops: Ops, x: Value) -> Value:
        heads, half = self.c.heads, self.c.dim // 2
        first, second = (
            ops.rope(ops.columns(x, start, half, heads), heads, rope)
            for start, rope in zip((0, half), self.ropes, strict=True)
        )
        return ops.join(first, second, heads)


class ClampedLinear(Linear):
    """A matrix whose inputs and outputs are kept within limits, where the file has them."""

    def __init__(self, file: Checkpoint, name: str, rows: int, columns: int) -> None:
        super().__init__(file, name, rows, columns)
        least_in, most_in, least_out, most_out = (file.vector_or_none(f"{name}.{limit}", 1) for limit in LIMITS)
        self.inputs, self.outputs = (least_in, most_in), (least_out, most_out)

    def __call__(self, ops: Ops, x: Value) -> Value:
        return clamp(ops, super().__call__(ops, clamp(ops, x, self.inputs)), self.outputs)


def clamp(ops: Ops, x: Value, limits: tuple[Floats | None, Floats | None]) -> Value:
    low, high = (
        default if limit is None else float(limit[0])
        for limit, default in zip(limits, (-math.inf, math.inf), strict=True)
    )
    return x if math.isinf(low) and math.isinf(high) else ops.clamp(x, low, high)


def tower_pixels(rules: PixelRules) -> PixelRules:
    """The processor's pixels x, as the tower takes them: 2 x - 1."""
    mean = tuple(mean + std / 2 for mean, std in zip(rules.mean, rules.std, strict=True))
    return PixelRules(mean, tuple(std / 2 for std in rules.std), rules.resample)


def budgeted(width: int, height: int, side: int, max_tokens: int) -> tuple[int, int]:
    """The largest width and height in multiples of `side` that give at most `max_tokens` squares, and about the shape.

    >>> budgeted(100, 40, 48, 280), budgeted(1, 1000, 48, 280)
    ((1248, 480), (48, 13440))
    """
    factor = math.sqrt(max_tokens * side**2 / (width * height))
    columns, rows = (math.floor(factor * size / side) for size in (width, height))
    if not rows:
        rows, columns = 1, min(width // height, max_tokens)
    elif not columns:
        rows, columns = min(height // width, max_tokens), 1
    return columns * side, rows * side

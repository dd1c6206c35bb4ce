"""Layers that image encoders share; they read their tensors when constructed, and record operations when called."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...arrays import Floats
from ...errors import FileError
from ...images import PixelRules, ResampleName
from ...images.pixels import RESAMPLES
from ...ops.graph import Rope, Value
from ...ops.recorder import Ops
from ...ops.specs import AttentionSpec
from ...tensor import QuantTensor
from ..checkpoint import Checkpoint
from ..config import MAX_LAYERS
from ..layers import Linear
from .activation import activate, gate

CHANNELS = 3
LAYER = 0  # all layers keep K and V in the same place: nothing outlives its layer


@dataclass(frozen=True, slots=True)
class VisionSizes:
    """The sizes of an encoder."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    patch: int  # pixels on a side
    image: int  # pixels on a side, where it is fixed
    out: int  # values of an embedding of the text model
    eps: float

    @classmethod
    def read(cls, file: Checkpoint) -> VisionSizes:
        size = file.size
        found = cls(
            layers=size("vision.block_count", most=MAX_LAYERS),
            hidden=size("vision.embedding_length", most=1 << 16),
            feed_forward=size("vision.feed_forward_length"),
            heads=size("vision.attention.head_count", most=1 << 12),
            patch=size("vision.patch_size", most=1 << 8),
            image=size("vision.image_size", default=1 << 12, most=1 << 14),
            out=size("vision.projection_dim"),
            eps=file.number("vision.attention.layer_norm_epsilon", default=1e-6, least=0),
        )
        if found.hidden % found.heads or found.patch > found.image:
            raise FileError(f"{file.path}: the sizes of the image encoder do not fit each other: {found}")
        return found

    @property
    def dim(self) -> int:
        return self.hidden // self.heads

    @property
    def side(self) -> int:
        """Patches on a side of an image of fixed size."""
        return self.image // self.patch


def read_pixels(file: Checkpoint, resample: ResampleName) -> PixelRules:
    """How pixels become floats; `resample` counts unless the file has its own."""
    number = file.size("vision.resample", default=RESAMPLES.index(resample), least=0, most=len(RESAMPLES) - 1)
    mean, std = (file.number_list(f"vision.image_{name}", CHANNELS) for name in ("mean", "std"))
    if min(std) <= 0:
        raise FileError(f"{file.path}: vision.image_std must hold positive numbers, it is {std}")
    return PixelRules(mean, std, RESAMPLES[number])


def as_tensor(values: npt.NDArray[np.float32]) -> QuantTensor:
    """A matrix of floats as a weight."""
    return QuantTensor.from_bytes(np.ascontiguousarray(values, np.float32), values.shape, "f32")


class PatchEmbedding:
    """Patches times the weights of a convolution, or the sum of those of several frames; `names` are its tensors."""

    def __init__(self, file: Checkpoint, c: VisionSizes, *names: str) -> None:
        shape = c.hidden, CHANNELS, c.patch, c.patch
        every = [file.array(name, *shape) for name in names or ("v.patch_embd.weight",)]
        self.weight = as_tensor(np.sum(every, axis=0, dtype=np.float32).reshape(c.hidden, -1))
        self.bias = file.vector_or_none("v.patch_embd.bias", c.hidden)
        self.values = CHANNELS * c.patch**2

    def __call__(self, ops: Ops) -> Value:
        return ops.linear(ops.given(self.values), self.weight, self.bias)


class VisionLayerNorm:
    """Mean and variance norm."""

    def __init__(self, file: Checkpoint, name: str, size: int, eps: float) -> None:
        self.weight, self.eps = file.vector(f"{name}.weight", size), eps
        self.bias = file.vector_or_none(f"{name}.bias", size)

    def __call__(self, ops: Ops, x: Value) -> Value:
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


class VisionNorm:
    """Root mean square norm."""

    def __init__(self, file: Checkpoint, name: str, size: int, eps: float, heads: int = 1) -> None:
        self.weight, self.eps, self.heads = file.vector(f"{name}.weight", size), eps, heads

    def __call__(self, ops: Ops, x: Value) -> Value:
        return ops.norm(x, self.weight, self.eps, self.heads)


class VisionAttention:
    """Attention of each patch to all of its tile, or with `windows` to those of its window. Q, K and V may be fused."""

    def __init__(
        self, file: Checkpoint, layer: int, c: VisionSizes, *, rope: Rope | None = None, windows: bool = False
    ) -> None:
        name, n = f"v.blk.{layer}", c.hidden
        self.rope, self.windows, self.heads = rope, windows, c.heads
        self.spec, self.scale = AttentionSpec(c.heads, c.dim, c.dim), 1 / math.sqrt(c.dim)
        if file.has_tensor(f"{name}.attn_qkv.weight"):
            parts = [Linear(file, f"{name}.attn_qkv", 3 * n, n, (i * n, (i + 1) * n)) for i in range(3)]
        else:
            parts = [Linear(file, f"{name}.attn_{part}", n, n) for part in "qkv"]
        self.q, self.k, self.v = parts
        self.out = Linear(file, f"{name}.attn_out", n, n)

    def __call__(self, ops: Ops, x: Value) -> Value:
        return self.attend(ops, self.q(ops, x), self.k(ops, x), self.v(ops, x))

    def attend(self, ops: Ops, q: Value, k: Value, v: Value) -> Value:
        if self.rope is not None:
            q, k = ops.rope(q, self.heads, self.rope), ops.rope(k, self.heads, self.rope)
        y = ops.attend(LAYER, q, k, v, spec=self.spec, scale=self.scale, causal=False, spans=self.windows)
        return self.out(ops, y)


class VisionFeedForward:
    """down(kind(up(x))), or down(kind(gate(x)) * up(x)), as wide as the file has it. Old files have the names of up and
    down exchanged."""

    def __init__(self, file: Checkpoint, layer: int, c: VisionSizes, kind: str) -> None:
        name = f"v.blk.{layer}"
        up, down = f"{name}.ffn_up", f"{name}.ffn_down"
        rows, columns = file.shape(f"{up}.weight")
        if rows == c.hidden != columns:
            up, down, rows = down, up, columns
        self.kind = kind
        self.up = Linear(file, up, rows, c.hidden)
        self.down = Linear(file, down, c.hidden, rows)
        is_gated = file.has_tensor(f"{name}.ffn_gate.weight")
        self.gate = Linear(file, f"{name}.ffn_gate", rows, c.hidden) if is_gated else None

    def __call__(self, ops: Ops, x: Value) -> Value:
        if self.gate is not None:
            return self.down(ops, gate(ops, self.gate(ops, x), self.up(ops, x), self.kind))
        return self.down(ops, activate(ops, self.up(ops, x), self.kind))


class VisionBlock:
    """A pre-norm block."""

    def __init__(
        self,
        file: Checkpoint,
        layer: int,
        c: VisionSizes,
        kind: str,
        *,
        norm: type[VisionLayerNorm] | type[VisionNorm] = VisionLayerNorm,
        rope: Rope | None = None,
        windows: bool = False,
    ) -> None:
        self.ln1, self.ln2 = (norm(file, f"v.blk.{layer}.{name}", c.hidden, c.eps) for name in ("ln1", "ln2"))
        self.attn = VisionAttention(file, layer, c, rope=rope, windows=windows)
        self.ffn = VisionFeedForward(file, layer, c, kind)

    def __call__(self, ops: Ops, x: Value) -> Value:
        x = x + self.attn(ops, self.ln1(ops, x))
        return x + self.ffn(ops, self.ln2(ops, x))


def neighbours(hidden: Floats, rows: int, columns: int, merge: int) -> Floats:
    """Each square of merge x merge patches, side by side: (rows / merge, columns / merge, merge, merge, values)."""
    cut = hidden.reshape(rows // merge, merge, columns // merge, merge, hidden.shape[-1])
    return cut.transpose(0, 2, 1, 3, 4)

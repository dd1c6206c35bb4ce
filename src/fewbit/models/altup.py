"""AltUp, of Gemma 3n: several hidden rows for each token, of which a layer computes one and predicts the others.

The rows of a token are one row of `count` parts here. What is a number for each token (a coefficient, a magnitude) is
spread over as many columns as it multiplies, by a matrix of ones.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Floats
from ..ops.graph import Value
from ..ops.recorder import Ops
from ..tensor import QuantTensor
from .checkpoint import Checkpoint
from .config import Config
from .layers import Linear, read_rms_epsilon
from .mistral3 import as_tensor

TINY = 1e-12  # no row is as short


def ones(*shape: int) -> QuantTensor:
    return as_tensor(np.ones(shape, np.float32))


class Magnitude:
    """The root mean square of a row, on `width` columns."""

    def __init__(self, size: int, width: int) -> None:
        self.weight: Floats = np.ones(size, np.float32)
        self.mean, self.spread = as_tensor(np.full((1, size), 1 / size)), ones(width, 1)

    def __call__(self, ops: Ops, x: Value) -> Value:
        products = ops.gate(x, ops.norm(x, self.weight, TINY), "none")
        return ops.linear(ops.linear(products, self.mean), self.spread)


class Streams:
    """The rows at the start of a model, and one row of them at its end: matrices, after which lengths are as before."""

    def __init__(self, file: Checkpoint, c: Config, count: int) -> None:
        self.hidden, self.count, others = c.hidden, count, count - 1
        self.proj = file.experts("altup_proj.weight", others, c.hidden, c.hidden)
        self.unembd_proj = file.experts("altup_unembd_proj.weight", others, c.hidden, c.hidden)
        self.magnitude = Magnitude(c.hidden, others * c.hidden)

    def split(self, ops: Ops, x: Value) -> Value:
        return ops.join(x, self.turned(ops, repeated(ops, x, self.count - 1), self.proj, x), 1)

    def joined(self, ops: Ops, x: Value) -> Value:
        first, others = ops.columns(x, 0, self.hidden), ops.columns(x, self.hidden, (self.count - 1) * self.hidden)
        others = self.turned(ops, others, self.unembd_proj, first)
        for i in range(self.count - 1):
            first = first + ops.columns(others, i * self.hidden, self.hidden)
        return ops.scale(first, 1 / self.count)

    def turned(self, ops: Ops, x: Value, w: QuantTensor, like: Value) -> Value:
        """Rows times matrices, as long as `like`."""
        unit = ops.norm(ops.linear_heads(x, w), self.magnitude.weight, TINY, self.count - 1)
        return ops.gate(self.magnitude(ops, like), unit, "none")


class AltUp:
    """What a layer does with the rows before and after its own work on one of them, which is number `active`."""

    def __init__(self, file: Checkpoint, layer: int, c: Config, count: int, active: int) -> None:
        name = f"blk.{layer}.altup"
        self.hidden, self.count, self.active = c.hidden, count, active
        self.eps = read_rms_epsilon(file)
        self.router_norm = file.vector(f"{name}_router_norm.weight", c.hidden) / np.float32(c.hidden)
        self.router = Linear(file, f"{name}_router", count, c.hidden)
        self.predict_coef = Linear(file, f"{name}_predict_coef", count * count, count)
        self.correct_coef = Linear(file, f"{name}_correct_coef", count, count)
        self.spread = ones(count, c.hidden, 1)

    def row(self, ops: Ops, x: Value, number: int) -> Value:
        return ops.columns(x, number * self.hidden, self.hidden)

    def predict(self, ops: Ops, x: Value) -> Value:
        """Row i plus the sum over j of coefficient (i, j) times row j."""
        coefs, out = self.predict_coef(ops, self.modalities(ops, self.row(ops, x, self.active))), x
        for j in range(self.count):
            factors = ops.linear_heads(ops.columns(coefs, j, 1, self.count), self.spread)
            out = out + ops.gate(factors, repeated(ops, self.row(ops, x, j), self.count), "none")
        return out

    def correct(self, ops: Ops, x: Value, computed: Value) -> Value:
        """Each row plus a coefficient times what the computed one has more than was predicted."""
        coefs = ops.shift(self.correct_coef(ops, self.modalities(ops, computed)), np.ones(self.count, np.float32))
        news = computed + ops.scale(self.row(ops, x, self.active), -1.0)
        return x + ops.gate(ops.linear_heads(coefs, self.spread), repeated(ops, news, self.count), "none")

    def modalities(self, ops: Ops, x: Value) -> Value:
        """The tangent is a soft cap at 1."""
        return ops.softcap(self.router(ops, ops.norm(x, self.router_norm, self.eps)), 1.0)


def repeated(ops: Ops, x: Value, count: int) -> Value:
    out = x
    for _ in range(count - 1):
        out = ops.join(out, x, 1)
    return out

"""The head of classifiers and rerankers: it makes a number for each label of a text's pooled hidden row.

GGUF files call its parts `cls` (a product and an activation), `cls.norm` and `cls.output`. It runs in NumPy, since it
takes one row of each text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..arrays import Doubles, Floats
from .checkpoint import Checkpoint

POOLINGS = ("none", "mean", "cls", "last")  # numbered so in GGUF files
SMALLEST = 1e-5  # added to variances, unless a file says otherwise


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A matrix, and a bias if it has one."""

    weight: Floats  # (outputs, inputs)
    bias: Floats | None = None

    def __call__(self, x: Doubles) -> Doubles:
        found = self.weight.astype(np.float64) @ x
        return np.asarray(found if self.bias is None else found + self.bias, np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Classifier:
    """Makes logits of a text's hidden rows.

    Args:
        pooling: How the rows of a text become one.
        dense: A product before the last one.
        activation: What follows it: "tanh" or "gelu".
        norm: Weights of a norm after that.
        output: The last product.
        labels: Names of what the logits stand for, if the file has them.
        is_multi_label: Several labels may hold at once.
        epsilon: Of the norm.
    """

    pooling: str
    dense: Product | None
    output: Product | None
    activation: str = "tanh"
    norm: Floats | None = None
    labels: tuple[str, ...] = ()
    is_multi_label: bool = False
    epsilon: float = SMALLEST

    def __call__(self, pooled: Floats) -> Floats:
        """The logits of a pooled row, (labels,)."""
        x = np.asarray(pooled, np.float64)
        if self.dense is not None:
            x = self.dense(x)
            x = np.tanh(x) if self.activation == "tanh" else gelu(x)
            if self.norm is not None:
                x = (x - x.mean()) / np.sqrt(x.var() + self.epsilon) * self.norm
        return np.asarray(x if self.output is None else self.output(x), np.float32)

    @property
    def num_labels(self) -> int:
        last = self.dense if self.output is None else self.output
        return 0 if last is None else len(last.weight)

    def names(self) -> list[str]:
        """The labels; those without names are called as transformers calls them."""
        return [*self.labels] if len(self.labels) == self.num_labels else [f"LABEL_{i}" for i in range(self.num_labels)]


def gelu(x: Doubles) -> Doubles:
    """
    >>> gelu(np.array([-1.0, 0.0, 1.0])).round(4).tolist()
    [-0.1587, 0.0, 0.8413]
    """
    return np.array([value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x.tolist()])


def read_classifier(file: Checkpoint, hidden: int, activation: str = "tanh", pooling: str = "cls") -> Classifier | None:
    """The head of a file, if it has one."""
    if not any(file.has_tensor(f"{name}.weight") for name in ("cls", "cls.output")):
        return None
    dense = _product(file, "cls", hidden)
    inputs = hidden if dense is None else len(dense.weight)
    kind = file.size("classifier.pooling_type", default=POOLINGS.index(pooling), least=1, most=3)
    return Classifier(
        POOLINGS[kind], dense, _product(file, "cls.output", inputs), activation,
        file.vector_or_none("cls.norm.weight", inputs), file.words("classifier.output_labels"),
        file.flag("classifier.multi_label", default=False),
        file.number("attention.layer_norm_epsilon", default=SMALLEST, least=0.0),
    )  # fmt: skip


def _product(file: Checkpoint, name: str, columns: int) -> Product | None:
    if not file.has_tensor(f"{name}.weight"):
        return None
    weight = file.table(f"{name}.weight", columns)
    return Product(weight, file.vector_or_none(f"{name}.bias", len(weight)))

"""The contract between models and backends: the operations that a model is written in.

A backend gives an `Ops` for one step: some tokens of some sequences, in rows. Rows are float arrays (rows, columns);
what they are is the backend's business, but `a + b` adds two of them. Arrays are never changed once they are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..tensor import QuantTensor

Floats = npt.NDArray[np.float32]
Rows = Any  # (rows, columns), with +

GATES = ("silu", "gelu", "gelu_tanh", "relu")


@dataclass(frozen=True, eq=False, slots=True)
class Rope:
    """Rotary positions: pair i of a head is turned by position * inverse[i]; cosines and sines are scaled."""

    inverse: Floats
    scale: float = 1.0
    halves: bool = False  # pairs lie in the two halves of what is turned, else side by side


class Ops(Protocol):
    """What a model can do with the rows of a step."""

    def embed(self, table: QuantTensor, scale: float = 1.0) -> Rows:
        """The row of the table for each token, times scale."""

    def norm(self, x: Rows, weight: Floats, eps: float) -> Rows:
        """x / sqrt(mean(x ** 2) + eps) * weight."""

    def linear(self, x: Rows, w: QuantTensor, bias: Floats | None = None) -> Rows:
        """x @ w.T + bias."""

    def gate(self, gate: Rows, up: Rows, kind: str = "silu") -> Rows:
        """kind(gate) * up; kind is one of GATES."""

    def rope(self, x: Rows, heads: int, rope: Rope) -> Rows:
        """Heads turned by their tokens' positions."""

    def attend(
        self,
        layer: int,
        q: Rows,
        k: Rows,
        v: Rows,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Floats | None = None,
    ) -> Rows:
        """Keep k and v in the cache of a layer, and attend to all that it holds of each sequence."""

    def wanted(self, x: Rows) -> Rows:
        """The rows of the tokens whose logits are wanted. After the last attention the others are not needed."""

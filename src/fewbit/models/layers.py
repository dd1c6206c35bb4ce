"""Parts that models share."""

from __future__ import annotations

from ..ops.graph import Ops, Value
from .checkpoint import Checkpoint


class Linear:
    """A matrix, and a bias if the file has one."""

    def __init__(self, file: Checkpoint, name: str, rows: int, columns: int) -> None:
        self.weight = file.weight(f"{name}.weight", rows, columns)
        self.bias = file.vector_or_none(f"{name}.bias", rows)

    def __call__(self, ops: Ops, x: Value) -> Value:
        return ops.linear(x, self.weight, self.bias)

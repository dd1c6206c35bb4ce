"""A product as dispatches: one for each buffer of the matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .activations import KINDS
from .device import Dispatch, Gpu, Memory, Size
from .products import FEW, PLAIN, TILE, Epilogue, few_rows, many_rows, rows_per_block
from .weights import Matrix, row_blocks
from .wgsl import COUNTS, Kernel

ONE: Size = ("one", 1)


class RowsAt(NamedTuple):
    """f32 rows in a buffer: that of token t begins at number offset + stride * t."""

    memory: Memory
    width: int
    stride: int
    offset: int = 0

    def columns(self, first: int, width: int) -> RowsAt:
        return RowsAt(self.memory, width, self.stride, self.offset + first)


@dataclass(frozen=True)
class Product:
    """What is multiplied and where it goes. `tokens` is one of FEW, or 0 for many rows."""

    matrix: Matrix
    step: Memory
    x: RowsAt
    y: RowsAt
    tokens: int
    count: str = "tokens"
    bias: Memory | None = None
    residual: RowsAt | None = None
    gate: str | None = None  # the matrix holds pairs; what the gate applies
    f16: bool = False

    @property
    def epilogue(self) -> Epilogue:
        kind = "none" if self.residual is None else "own" if self.residual.memory is self.y.memory else "other"
        return Epilogue(self.gate is not None, self.bias is not None, kind)  # type: ignore[arg-type]

    def dispatches(self, gpu: Gpu) -> list[Dispatch]:
        rest = [self.bias] if self.bias else []
        if self.epilogue.residual == "other" and self.residual:
            rest.append(self.residual.memory)
        kernel, rows, tokens = self._kernel(gpu)
        out = []
        for part in self.matrix.parts:
            buffers = (self.step, *self.matrix.buffers(part), self.x.memory, self.y.memory, *rest)
            x, z = row_blocks(part.rows, rows)
            grid: tuple[Size, Size, Size] = (("one", x), (self.count, tokens), ("one", z))
            out.append(Dispatch(kernel, buffers, self._values(part.first, part.rows), grid, kernel.name))
        return out

    def _kernel(self, gpu: Gpu) -> tuple[Kernel, int, int]:
        """The kernel, rows of weights and rows of x of a workgroup."""
        fmt = self.matrix.format
        if self.tokens:
            few = few_rows(fmt, self.tokens, self.epilogue, gpu.has_subgroups, self.f16)
            return few, rows_per_block(fmt, self.tokens, self.epilogue), self.tokens
        return many_rows(fmt, self.epilogue, self.f16), TILE, TILE

    def _values(self, first: int, rows: int) -> dict[str, float]:
        residual = self.residual or self.y
        return {
            **self.matrix.values, "n": rows, "x_offset": self.x.offset, "x_stride": self.x.stride,
            "y_offset": self.y.offset + first, "y_stride": self.y.stride, "r_offset": residual.offset + first,
            "r_stride": residual.stride, "b_offset": first, "count_at": COUNTS.index(self.count),
            "kind": KINDS[self.gate or "none"],
        }  # fmt: skip


def token_class(count: int) -> int:
    """Which kernels take so many rows: the smallest of FEW that holds them, 0 for more.

    >>> token_class(3), token_class(9)
    (4, 0)
    """
    return next((few for few in FEW if few >= count), 0)


__all__ = ["ONE", "PLAIN", "Product", "RowsAt", "token_class"]

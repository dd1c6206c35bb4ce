"""Sequences whose K and V lie in pages, for tests of attention."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from fewbit.arrays import Bytes, Doubles, Floats, Longs
from fewbit.formats import Format, get
from fewbit.formats.decode import decode
from fewbit.ops.attention import hadamard
from fewbit.ops.specs import AttentionParams, KVArrays, PageTables

from ..exact_attention import exact

RAGGED = [(1, 1), (70, 1), (33, 33), (100, 7), (40, 0)]  # tokens of a sequence, and how many of them ask


class Batch:
    """Sequences with K and V in pages that lie anywhere, between bytes that are NaN in most formats."""

    def __init__(
        self,
        sequences: list[tuple[int, int]],
        dim: int,
        group: int = 1,
        kv_heads: int = 2,
        page_tokens: int = 16,
        seed: int = 0,
        v_dim: int | None = None,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.sequences, self.dim, self.kv_heads, self.page_tokens = sequences, dim, kv_heads, page_tokens
        self.v_dim = dim if v_dim is None else v_dim
        self.k, self.v = ([normal(rng, n, kv_heads, width) for n, _ in sequences] for width in (dim, self.v_dim))
        self.q = [normal(rng, rows, kv_heads * group, dim) for _, rows in sequences]
        counts = [-(-length // page_tokens) for length, _ in sequences]
        self.pages = sum(counts) + 3
        self.tables = rng.permutation(self.pages)[: sum(counts)].astype(np.int32)
        self.table_starts = _starts(counts)
        self.lengths = np.array([length for length, _ in sequences], np.int64)
        self.q_starts = _starts(rows for _, rows in sequences)

    def slots(self, s: int) -> Longs:
        table = self.tables[self.table_starts[s] : self.table_starts[s + 1]].astype(np.int64)
        at = np.arange(self.lengths[s])
        return table[at // self.page_tokens] * self.page_tokens + at % self.page_tokens

    def store(self, kernels: ModuleType, fmt: Format, x: list[Floats], rotate: bool = False) -> Bytes:
        row_bytes = fmt.row_bytes(x[0].shape[2])
        store = np.full((self.pages, self.kv_heads, self.page_tokens, row_bytes), 255, np.uint8)
        for s, values in enumerate(x):
            kernels.kv_write(fmt, store, values, self.slots(s), rotate)
        return store

    def both(self, kernels: ModuleType, k: Format, v: Format, rotate: bool = False) -> tuple[Bytes, Bytes]:
        return self.store(kernels, k, self.k, rotate), self.store(kernels, v, self.v)

    def decoded(self, store: Bytes, fmt: Format, rotate: bool = False, dim: int | None = None) -> list[Doubles]:
        width = self.dim if dim is None else dim
        rows = store.transpose(0, 2, 1, 3).reshape(-1, self.kv_heads, store.shape[3])
        out = []
        for s, (length, _) in enumerate(self.sequences):
            packed = rows[self.slots(s)].reshape(length * self.kv_heads, -1)
            values = decode(fmt, packed, width).astype(np.float64).reshape(length, self.kv_heads, width)
            out.append(hadamard(values) if rotate else values)
        return out

    def exact(self, k: list[Any], v: list[Any], **options: Any) -> Doubles:
        options = {"scale": self.dim**-0.5} | options
        return np.concatenate([exact(*one, **options) for one in zip(self.q, k, v, strict=True)])

    def attend(
        self, kernels: ModuleType, k: Bytes, k_format: Format, v: Bytes, v_format: Format, **options: Any
    ) -> Floats:
        shape = int(self.q_starts[-1]), self.q[0].shape[1], self.v_dim
        options = {"scale": self.dim**-0.5, "rotate": False} | options
        kv = KVArrays(k_format, k, v_format, v, options.pop("rotate"))
        step = PageTables(self.tables, self.table_starts, self.lengths, self.q_starts)
        call = {name: options.pop(name) for name in ("out", "exact", "threads") if name in options}
        call = {"out": np.full(shape, np.nan, np.float32)} | call
        result: Floats = kernels.attend(np.concatenate(self.q), kv, step, AttentionParams(**options), **call)
        return result

    def attend_f32(self, kernels: ModuleType, **options: Any) -> Floats:
        f32 = get("f32")
        k, v = self.both(kernels, f32, f32)
        return self.attend(kernels, k, f32, v, f32, **options)


def normal(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.standard_normal(shape, np.float32)


def _starts(counts: Any) -> Longs:
    return np.cumsum([0, *counts], dtype=np.int64)

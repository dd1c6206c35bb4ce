"""The kernels of a KV cache that is driven by hand."""

from __future__ import annotations

from typing import Protocol

from ..arrays import Bytes, Floats, Longs
from ..formats import Format
from ..ops.specs import AttentionParams, KVArrays, PageTables


class Kernels(Protocol):
    """A module that packs K and V and reads them: `fewbit.ops.cpu`, or `fewbit.ops.attention`, the slow reference."""

    def keeps_tiles(self, k: Format, v: Format, page_tokens: int, dim: int, v_dim: int | None = None) -> bool: ...

    def kv_write(
        self,
        fmt: Format,
        store: Bytes,
        x: Floats,
        slots: Longs,
        rotate: bool = False,
        is_value: bool = False,
        threads: int | None = None,
    ) -> None: ...

    def attend(
        self,
        q: Floats,
        kv: KVArrays,
        step: PageTables,
        params: AttentionParams,
        *,
        out: Floats | None = None,
        exact: bool = True,
        threads: int | None = None,
    ) -> Floats: ...


def native() -> Kernels:
    """The native CPU code; it is loaded now."""
    from ..ops import cpu

    return cpu

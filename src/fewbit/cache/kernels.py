"""What a KV cache that is driven by hand asks of kernels."""

from __future__ import annotations

from typing import Protocol

from ..arrays import Bytes, Floats, Ints, Longs
from ..formats import Format


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
        k: Bytes,
        k_format: Format,
        v: Bytes,
        v_format: Format,
        tables: Ints,
        table_starts: Longs,
        lengths: Longs,
        q_starts: Longs,
        *,
        scale: float,
        rotate: bool = False,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Floats | None = None,
        out: Floats | None = None,
        exact: bool = True,
        threads: int | None = None,
    ) -> Floats: ...


def native() -> Kernels:
    """The native CPU code; it is loaded now."""
    from ..ops import cpu

    return cpu

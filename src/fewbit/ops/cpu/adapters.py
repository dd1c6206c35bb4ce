"""Adapters for native plans: B lies in panels of 64 rows, each of them transposed, so that a step reads it in order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ... import _native
from ...arrays import Bytes
from ..low_rank import LowRank, ProductKey, Reals, Terms

PANEL = 64  # kLowRankPanel in csrc/low_rank_kernels.h


def native_adapter(terms: Terms, numbers: Mapping[ProductKey, int]) -> _native.Adapter:
    """The terms of an adapter as plans take them, by the numbers of their products."""
    adapter = _native.Adapter()
    for key, term in terms.items():
        adapter.add(numbers[key], *_packed(term), term.kind, term.rank, term.k, term.n, term.scale, key[0] == "embed")
    return adapter


def _packed(term: LowRank) -> tuple[Bytes | None, Bytes | None]:
    a = None if term.a is None else _bytes(term.a)
    return a, None if term.b is None else _bytes(panels(term.b))


def panels(b: Reals) -> Reals:
    """
    >>> panels(np.arange(6, dtype=np.float32).reshape(3, 2)).tolist()
    [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]
    """
    n, r = b.shape
    full = n // PANEL * PANEL
    whole = b[:full].reshape(-1, PANEL, r).swapaxes(1, 2)
    return np.concatenate([whole.reshape(-1), b[full:].T.reshape(-1)])


def _bytes(values: Reals) -> Bytes:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)

"""Stores without a page: an error that says so, or nothing to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats, Ints, Longs
from fewbit.cache.kv import KVCache
from fewbit.cache.layout import make_layout
from fewbit.cache.store import HostStore
from fewbit.formats import get
from fewbit.ops import cpu
from fewbit.ops.specs import AttentionParams, AttentionSpec, KVArrays, PageTables

F16 = get("f16")
EMPTY = np.zeros((0, 1, 32, 128), np.uint8)
Q = np.zeros((1, 1, 64), np.float32)


def ints(*values: int) -> Ints:
    return np.array(values, np.int32)


def longs(*values: int) -> Longs:
    return np.array(values, np.int64)


@pytest.mark.parametrize("sizes", [{"tokens": 0}, {"pages": 0}])
def test_a_cache_needs_a_page(sizes: dict[str, int]) -> None:
    with pytest.raises(fb.FewbitError, match="must be at least 1, got 0"):
        KVCache(1, 1, 64, **sizes)


def test_a_plan_needs_a_page() -> None:
    store = HostStore(make_layout([AttentionSpec(1, 64, 64)], "f16"), (0,))
    plan = cpu.Plan()
    buffers = [plan.buffer(64, False, slot) for slot in range(4)]
    kv = store.kv(0)
    with pytest.raises(ValueError, match="a store needs at least one page"):
        plan.attend(
            cpu.number(kv.k_format), kv.k, 64, cpu.number(kv.v_format), kv.v, 64, 0, False, *buffers, 1.0, 0, 0.0, None
        )  # fmt: skip


def test_nothing_is_written_to_no_page(isa: str) -> None:
    cpu.kv_write(F16, EMPTY, Q[:0], longs())
    with pytest.raises(ValueError, match="slot 0 of 0"):
        cpu.kv_write(F16, EMPTY, Q, longs(0))


def attend(q: Floats, *step: Any) -> Floats:
    return cpu.attend(q, KVArrays(F16, EMPTY, F16, EMPTY), PageTables(*step), AttentionParams(1.0))


def test_nothing_is_read_from_no_page(isa: str) -> None:
    none, one = longs(0), longs(0, 1)
    assert attend(Q[:0], ints(), none, longs(), none).size == 0
    assert attend(Q[:0], ints(), longs(0, 0), none, longs(0, 0)).size == 0
    with pytest.raises(ValueError, match="page 0 of 0"):
        attend(Q, ints(0), one, longs(1), one)
    with pytest.raises(ValueError, match="tokens of a sequence"):
        attend(Q, ints(), longs(0, 0), longs(1), one)

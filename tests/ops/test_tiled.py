"""Stores whose pages hold K and V as matrix tiles want them, on every instruction set: beside rows, and float64."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.arrays import Bytes, Floats
from fewbit.formats import Format, get
from fewbit.ops import cpu, tiled
from fewbit.ops.specs import AttentionParams, KVArrays, PageTables

from ..exact_attention import error
from .attention_cases import Batch

FORMATS = ["q8_0", "q4_0", "iq4_nl"]


class TiledBatch(Batch):
    """As `Batch`, in slabs of 32 tokens; what nobody wrote is NaN in the scales."""

    def __init__(self, *args: Any, page_tokens: int = 32, **options: Any) -> None:
        super().__init__(*args, page_tokens=page_tokens, **options)

    def slabs(self, fmt: Format, x: list[Floats], is_value: bool, rotate: bool = False) -> Bytes:
        slab_bytes = tiled.SLAB * fmt.row_bytes(x[0].shape[2])
        shape = self.pages, self.kv_heads, self.page_tokens // tiled.SLAB, slab_bytes
        store = np.full(shape, 255, np.uint8)
        for s, values in enumerate(x):
            cpu.kv_write(fmt, store, values, self.slots(s), rotate, is_value=is_value)
        return store

    def both_slabs(self, k: Format, v: Format, rotate: bool = False) -> tuple[Bytes, Bytes]:
        return self.slabs(k, self.k, False, rotate), self.slabs(v, self.v, True)

    def best(self, k: Bytes, k_format: Format, v: Bytes, v_format: Format, rotate: bool = False, **options: Any) -> Any:
        """Exact attention over what the stores hold."""
        keys, values = tiled.to_rows(k_format, k, self.dim, False), tiled.to_rows(v_format, v, self.v_dim, True)
        decoded = self.decoded(keys, k_format, rotate), self.decoded(values, v_format, dim=self.v_dim)
        return self.exact(*decoded, **options)


@pytest.mark.parametrize("is_value", [False, True])
@pytest.mark.parametrize("name", FORMATS)
@given(dim=st.sampled_from([64, 128, 192, 256]), slabs=st.integers(1, 3), seed=st.integers(0, 1000))
def test_slabs_hold_the_bytes_of_rows(name: str, is_value: bool, dim: int, slabs: int, seed: int) -> None:
    fmt, rng = get(name), np.random.default_rng(seed)
    rows = rng.integers(0, 256, (2, 32 * slabs, fmt.row_bytes(dim)), dtype=np.uint8)
    there = tiled.to_slabs(fmt, rows, dim, is_value)
    assert there.nbytes == rows.nbytes
    np.testing.assert_array_equal(tiled.to_rows(fmt, there, dim, is_value), rows)


@pytest.mark.parametrize("is_value", [False, True])
@pytest.mark.parametrize("dim", [64, 128, 192, 256])
@pytest.mark.parametrize("name", FORMATS)
def test_writing_takes_what_it_should_and_touches_nothing_else(
    native_kernels: ModuleType, name: str, dim: int, is_value: bool
) -> None:
    fmt, rng = get(name), np.random.default_rng(1)
    x = rng.standard_normal((37, 3, dim), np.float32)
    slots = rng.permutation(4 * 64)[:37].astype(np.int64)
    rows = rng.integers(0, 256, (4, 3, 64, fmt.row_bytes(dim)), dtype=np.uint8)
    slabs = tiled.to_slabs(fmt, rows, dim, is_value)
    native_kernels.kv_write(fmt, rows, x, slots, is_value=is_value)
    native_kernels.kv_write(fmt, slabs, x, slots, is_value=is_value, threads=2)
    np.testing.assert_array_equal(slabs, tiled.to_slabs(fmt, rows, dim, is_value))


SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-40, -1e-38, 1e-30, 1e-7, 3e4, 7e4, -3e38, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("is_value", [False, True])
@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
@given(
    scale=st.sampled_from([1e-39, 1e-31, 1e-6, 0.5, 1.0, 3e4, 1e30]),
    specials=st.lists(st.tuples(st.integers(0, 127), st.sampled_from(SPECIAL)), max_size=6),
    zeros=st.sampled_from([0, 32, 64]),
    token=st.integers(0, 31),
    seed=st.integers(0, 1000),
)
def test_any_floats_are_packed_as_in_rows(
    name: str, is_value: bool, scale: float, specials: list[tuple[int, float]], zeros: int, token: int, seed: int
) -> None:
    """Halves lie between two codes, and both signs of the greatest magnitude occur."""
    fmt, rng = get(name), np.random.default_rng(seed)
    x = (rng.integers(-254, 255, (1, 1, 128)) / 2 * scale).astype(np.float32)
    x[..., :zeros] = 0
    for i, v in specials:
        x[0, 0, i] = v
    rows = np.full((1, 1, 32, fmt.row_bytes(128)), 7, np.uint8)
    slabs = tiled.to_slabs(fmt, rows, 128, is_value)
    for store in (rows, slabs):
        cpu.kv_write(fmt, store, x, np.array([token], np.int64), is_value=is_value)
    np.testing.assert_array_equal(tiled.to_rows(fmt, slabs, 128, is_value), rows)


@pytest.mark.parametrize("group", [1, 3, 4, 8, 12])
@pytest.mark.parametrize("dim", [64, 128, 192, 256])
@pytest.mark.parametrize("name", FORMATS)
def test_loses_no_more_than_the_format(native_kernels: ModuleType, name: str, dim: int, group: int) -> None:
    fmt = get(name)
    batch = TiledBatch([(1, 1), (70, 1), (33, 33), (100, 7), (40, 0), (2100, 1)], dim, group, 1)
    k, v = batch.both_slabs(fmt, fmt, rotate=True)
    for options in ({}, {"window": 45, "softcap": 3.0, "sinks": np.linspace(-2, 2, group, dtype=np.float32)}):
        y = batch.attend(native_kernels, k, fmt, v, fmt, rotate=True, **options)
        best = batch.best(k, fmt, v, fmt, rotate=True, **options)
        wanted = batch.exact(batch.k, batch.v, **options)
        assert error(y, best) <= 5e-5
        assert error(y, wanted) <= 1.05 * error(best, wanted)


@pytest.mark.parametrize("page_tokens", [32, 96])
@pytest.mark.parametrize("window", [1, 31, 32, 33, 1000])
def test_windows_begin_anywhere(native_kernels: ModuleType, window: int, page_tokens: int) -> None:
    fmt = get("q8_0")
    batch = TiledBatch([(1, 1), (64, 1), (65, 1), (200, 1), (130, 5)], 64, 4, page_tokens=page_tokens)
    k, v = batch.both_slabs(fmt, fmt)
    y = batch.attend(native_kernels, k, fmt, v, fmt, window=window)
    assert error(y, batch.best(k, fmt, v, fmt, window=window)) <= 5e-5


@pytest.mark.parametrize(("k_name", "v_name"), [("q8_0", "q4_0"), ("iq4_nl", "q8_0"), ("q4_0", "iq4_nl")])
def test_k_and_v_of_different_formats(native_kernels: ModuleType, k_name: str, v_name: str) -> None:
    k_format, v_format = get(k_name), get(v_name)
    batch = TiledBatch([(150, 1), (70, 20)], 128, 4)
    k, v = batch.both_slabs(k_format, v_format)
    y = batch.attend(native_kernels, k, k_format, v, v_format)
    assert error(y, batch.best(k, k_format, v, v_format)) <= 5e-5


@pytest.mark.parametrize("name", FORMATS)
def test_threads_and_heads_together_change_nothing(native_kernels: ModuleType, name: str) -> None:
    fmt = get(name)
    batch = TiledBatch([(1, 1), (2100, 1), (40, 0), (2049, 1), (64, 30)], 64, group=3, kv_heads=5)
    k, v = batch.both_slabs(fmt, fmt)
    first, *others = (batch.attend(native_kernels, k, fmt, v, fmt, threads=n) for n in (1, 2, 64))
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_rounding_is_allowed_where_it_is_not_exact(native_kernels: ModuleType) -> None:
    fmt, batch = get("q8_0"), TiledBatch([(33, 33), (200, 150)], 128, 4)
    k, v = batch.both_slabs(fmt, fmt)
    best = batch.best(k, fmt, v, fmt)
    assert error(batch.attend(native_kernels, k, fmt, v, fmt), best) <= 5e-5
    assert error(batch.attend(native_kernels, k, fmt, v, fmt, exact=False), best) <= 5e-3


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
def test_a_bad_value_is_not_silent(native_kernels: ModuleType, name: str, bad: float) -> None:
    fmt, batch = get(name), TiledBatch([(200, 1), (200, 1)], 128, 4)
    k, v = batch.both_slabs(fmt, fmt)
    good = batch.attend(native_kernels, k, fmt, v, fmt)
    batch.v[0][70, 0, 5] = bad
    y = batch.attend(native_kernels, k, fmt, batch.slabs(fmt, batch.v, True), fmt)
    assert not np.isfinite(y[0, :4, :32]).any()
    np.testing.assert_array_equal(y[0, 4:], good[0, 4:])
    np.testing.assert_array_equal(y[1], good[1])


def test_small_values_beside_great_ones_stay_exact(native_kernels: ModuleType) -> None:
    fmt, batch = get("q8_0"), TiledBatch([(300, 1)], 128, 4)
    batch.v[0][..., 32:64] *= 1000
    k, v = batch.both_slabs(fmt, fmt)
    best, y = batch.best(k, fmt, v, fmt), batch.attend(native_kernels, k, fmt, v, fmt)
    assert error(y[..., :32], best[..., :32]) <= 5e-5


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_query_spoils_its_own_result_alone(native_kernels: ModuleType, bad: float) -> None:
    fmt, batch = get("q8_0"), TiledBatch([(200, 1), (200, 1)], 64, 4)
    k, v = batch.both_slabs(fmt, fmt)
    good = batch.attend(native_kernels, k, fmt, v, fmt)
    batch.q[0][0, 1, 5] = bad
    y = batch.attend(native_kernels, k, fmt, v, fmt)
    assert np.isnan(y[0, 1]).all()
    y[0, 1] = good[0, 1]
    np.testing.assert_array_equal(y, good)


def arguments(k: Bytes, k_name: str, v: Bytes, v_name: str, dim: int) -> tuple[Any, ...]:
    starts = np.arange(2, dtype=np.int64)
    q = np.zeros((1, 2, dim), np.float32)
    step = PageTables(np.zeros(1, np.int32), starts, np.ones(1, np.int64), starts)
    return q, KVArrays(get(k_name), k, get(v_name), v), step, AttentionParams(1.0)


def slabs_of(name: str, dim: int) -> Bytes:
    return np.zeros((1, 2, 1, 32 * get(name).row_bytes(dim)), np.uint8)


def test_what_cannot_lie_so_is_refused() -> None:
    rows: Bytes = np.zeros((1, 2, 1, get("q8_0").row_bytes(64)), np.uint8)
    with pytest.raises(ValueError, match="both lie as tiles"):
        cpu.attend(*arguments(slabs_of("q8_0", 64), "q8_0", rows, "q8_0", 64))
    for name, dim in (("q5_0", 64), ("q4_1", 64), ("f16", 64), ("q8_0", 96), ("q8_0", 320)):
        assert not cpu.keeps_tiles(get(name), get(name), 32, dim)
        with pytest.raises(ValueError, match="bytes of a row of the store"):
            cpu.attend(*arguments(slabs_of(name, dim), name, slabs_of(name, dim), name, dim))
    with pytest.raises(ValueError, match="slot 32 of 32"):
        cpu.kv_write(get("q8_0"), slabs_of("q8_0", 64), np.zeros((1, 2, 64), np.float32), np.array([32]))


def test_tiles_are_kept_where_they_are_multiplied(native_kernels: ModuleType) -> None:
    q8, q4, q5 = get("q8_0"), get("q4_0"), get("q5_0")
    on_tiles = native_kernels.isa() == "amx"
    assert native_kernels.keeps_tiles(q8, q4, 32, 128) == native_kernels.keeps_tiles(q4, q4, 64, 64) == on_tiles
    assert not native_kernels.keeps_tiles(q8, q4, 16, 128)
    assert not native_kernels.keeps_tiles(q8, q5, 32, 128)

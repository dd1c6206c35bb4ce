"""K and V of different widths, in every backend; and pages before the window, which nobody reads."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fewbit.formats import get
from fewbit.ops import cpu, tiled

from ..exact_attention import KV_FORMATS, PACKED, error
from .attention_cases import RAGGED, Batch, normal
from .test_tiled import TiledBatch

WIDTHS = [(192, 128), (64, 32), (96, 64), (80, 48), (32, 160)]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"window": 45, "softcap": 3.0, "sinks": np.linspace(-2, 2, 8, dtype=np.float32)},
]
SOME_FORMATS = ["f32", "f16", "f8_e4m3", "q8_0", "q4_0", "q4_1"]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "window"])
@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize(("k_dim", "v_dim"), WIDTHS)
def test_f32_is_exact(kernels: ModuleType, k_dim: int, v_dim: int, group: int, options: dict[str, Any]) -> None:
    batch = Batch(RAGGED, k_dim, group, kv_heads=8 // group, v_dim=v_dim)
    y = batch.attend_f32(kernels, **options)
    assert y.shape == (42, 8, v_dim)
    assert error(y, batch.exact(batch.k, batch.v, **options)) <= 2e-6


@pytest.mark.parametrize(("k_dim", "v_dim"), WIDTHS)
def test_many_queries_may_be_rounded(kernels: ModuleType, k_dim: int, v_dim: int) -> None:
    batch = Batch([*RAGGED, (200, 150)], k_dim, 3, v_dim=v_dim)
    assert error(batch.attend_f32(kernels, exact=False), batch.exact(batch.k, batch.v)) <= 5e-3


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize(("k_dim", "v_dim"), WIDTHS)
@pytest.mark.parametrize("name", PACKED)
def test_packed_loses_what_the_format_loses(
    kernels: ModuleType, name: str, k_dim: int, v_dim: int, rotate: bool
) -> None:
    fmt, batch = get(name), Batch([(70, 1), (40, 12)], k_dim, 4, v_dim=v_dim)
    k, v = batch.both(kernels, fmt, fmt, rotate)
    best = batch.exact(batch.decoded(k, fmt, rotate), batch.decoded(v, fmt, dim=v_dim))
    assert error(batch.attend(kernels, k, fmt, v, fmt, rotate=rotate), best) <= 5e-5


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "window"])
@pytest.mark.parametrize(("k_dim", "v_dim"), WIDTHS)
@pytest.mark.parametrize("name", SOME_FORMATS)
def test_long_contexts(kernels: ModuleType, name: str, k_dim: int, v_dim: int, options: dict[str, Any]) -> None:
    fmt = get(name)
    batch = Batch([(128, 1), (2100, 1), (333, 2)], k_dim, group=8, kv_heads=1, page_tokens=32, v_dim=v_dim)
    k, v = batch.both(kernels, fmt, fmt)
    best = batch.exact(batch.decoded(k, fmt), batch.decoded(v, fmt, dim=v_dim), **options)
    for is_exact, limit in ((True, 5e-5), (False, 5e-3)):
        assert error(batch.attend(kernels, k, fmt, v, fmt, exact=is_exact, **options), best) <= limit


@pytest.mark.parametrize(("k_dim", "v_dim"), WIDTHS)
@pytest.mark.parametrize("name", KV_FORMATS)
def test_threads_change_nothing(native_kernels: ModuleType, name: str, k_dim: int, v_dim: int) -> None:
    fmt = get(name)
    batch = Batch([(1, 1), (2100, 1), (40, 0), (64, 30)], k_dim, group=3, kv_heads=5, page_tokens=32, v_dim=v_dim)
    k, v = batch.both(native_kernels, fmt, fmt)
    first, *others = (batch.attend(native_kernels, k, fmt, v, fmt, threads=n) for n in (1, 2, 64))
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("group", [1, 3, 8])
@pytest.mark.parametrize(("k_dim", "v_dim"), [(192, 128), (64, 256), (128, 64)])
@pytest.mark.parametrize("name", ["q8_0", "q4_0", "iq4_nl"])
def test_tiles(native_kernels: ModuleType, name: str, k_dim: int, v_dim: int, group: int) -> None:
    fmt = get(name)
    batch = TiledBatch([(1, 1), (70, 1), (33, 33), (100, 7), (40, 0), (2100, 1)], k_dim, group, 1, v_dim=v_dim)
    k, v = batch.both_slabs(fmt, fmt, rotate=True)
    for options in ({}, {"window": 45, "softcap": 3.0, "sinks": np.linspace(-2, 2, group, dtype=np.float32)}):
        best = batch.best(k, fmt, v, fmt, rotate=True, **options)
        assert error(batch.attend(native_kernels, k, fmt, v, fmt, rotate=True, **options), best) <= 5e-5
        rounded = batch.attend(native_kernels, k, fmt, v, fmt, rotate=True, exact=False, **options)
        assert error(rounded, best) <= 5e-3


@pytest.mark.parametrize("name", ["f32", "f16", "f8_e4m3", "q8_0", "q4_1"])
@pytest.mark.parametrize(("page_tokens", "window"), [(16, 5), (16, 16), (32, 40), (8, 100)])
def test_pages_before_the_window_are_not_read(kernels: ModuleType, name: str, page_tokens: int, window: int) -> None:
    fmt, batch = get(name), Batch([(300, 1), (217, 9), (120, 100)], 64, 4, page_tokens=page_tokens, v_dim=32)
    k, v = batch.both(kernels, fmt, fmt)
    good = batch.attend(kernels, k, fmt, v, fmt, window=window)
    assert np.isfinite(good).all()
    bad_page = np.setdiff1d(np.arange(batch.pages), batch.tables)[0]
    for s, (length, rows) in enumerate(batch.sequences):
        first = max(0, length - rows - window + 1) // page_tokens
        table = batch.tables[batch.table_starts[s] : batch.table_starts[s + 1]]
        k[table[:first]], v[table[:first]] = 255, 255  # NaN, or scales that are
        table[: first // 2] = bad_page
    np.testing.assert_array_equal(batch.attend(kernels, k, fmt, v, fmt, window=window), good)


def test_slabs_before_the_window_are_not_read(native_kernels: ModuleType) -> None:
    fmt, batch = get("q8_0"), TiledBatch([(300, 1), (217, 9)], 128, 4, v_dim=64)
    k, v = batch.both_slabs(fmt, fmt)
    good = batch.attend(native_kernels, k, fmt, v, fmt, window=40)
    for s, (length, rows) in enumerate(batch.sequences):
        before = batch.tables[batch.table_starts[s] :][: (length - rows - 39) // tiled.SLAB]
        k[before], v[before] = 255, 255
    np.testing.assert_array_equal(batch.attend(native_kernels, k, fmt, v, fmt, window=40), good)


def test_v_is_as_wide_as_k_unless_out_says_more() -> None:
    batch = Batch([(40, 3)], 64)
    assert batch.attend_f32(cpu, out=None).shape == (3, 2, 64)


@pytest.mark.parametrize(("shape", "match"), [
    ((3, 2, 64), "bytes of a row of the store"),
    ((3, 1, 32), "sizes of the result"),
    ((2, 2, 32), "sizes of the result"),
])  # fmt: skip
def test_results_that_do_not_fit(shape: tuple[int, ...], match: str) -> None:
    batch = Batch([(40, 3)], 64, v_dim=32)
    with pytest.raises(ValueError, match=match):
        batch.attend_f32(cpu, out=normal(np.random.default_rng(0), *shape))


def test_tiles_are_kept_where_both_widths_fit(native_kernels: ModuleType) -> None:
    q8 = get("q8_0")
    on_tiles = native_kernels.isa() == "amx"
    assert native_kernels.keeps_tiles(q8, q8, 32, 192, 128) == on_tiles
    assert not native_kernels.keeps_tiles(q8, q8, 32, 128, 96)
    assert not native_kernels.keeps_tiles(q8, q8, 32, 576, 512)

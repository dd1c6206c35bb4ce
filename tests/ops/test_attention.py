"""Packing K and V into pages, and attention over them: every backend beside float64."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from fewbit.errors import ArgumentError
from fewbit.formats import get
from fewbit.formats.encode import encode
from fewbit.ops import attention, cpu
from fewbit.ops.attention import hadamard
from fewbit.ops.specs import AttentionParams, KVArrays, PageTables

from ..exact_attention import KV_FORMATS, PACKED, error
from .attention_cases import RAGGED, Batch, normal

SOME_PAIRS = [("q8_0", "q4_0"), ("f32", "q5_1"), ("iq4_nl", "f16"), ("bf16", "q8_0"), ("f8_e4m3", "q4_0"),
              ("q8_0", "f8_e4m3")]  # fmt: skip


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("dim", [32, 64, 80, 96, 128, 256])
def test_f32_is_exact(kernels: ModuleType, dim: int, group: int) -> None:
    batch = Batch(RAGGED, dim, group)
    y = batch.attend_f32(kernels)
    assert y.dtype == np.float32
    assert error(y, batch.exact(batch.k, batch.v)) <= 2e-6


@pytest.mark.parametrize("group", [1, 3, 8])
@pytest.mark.parametrize("dim", [32, 80, 128, 256])
def test_rounding_is_allowed_where_it_is_not_exact(kernels: ModuleType, dim: int, group: int) -> None:
    batch = Batch([*RAGGED, (200, 150)], dim, group)
    truth = batch.exact(batch.k, batch.v)
    assert error(batch.attend_f32(kernels, exact=False), truth) <= 5e-3
    on_tiles = kernels is cpu and cpu.isa() == "amx"
    assert np.array_equal(batch.attend_f32(kernels, exact=False), batch.attend_f32(kernels)) != on_tiles


@pytest.mark.parametrize("page_tokens", [1, 8, 32, 256])
@pytest.mark.parametrize("window", [0, 1, 5, 40, 1000])
def test_windows_and_page_sizes(kernels: ModuleType, window: int, page_tokens: int) -> None:
    batch = Batch(RAGGED, 64, 2, page_tokens=page_tokens)
    assert error(batch.attend_f32(kernels, window=window), batch.exact(batch.k, batch.v, window=window)) <= 2e-6


@pytest.mark.parametrize("page_tokens", [8, 32])
@pytest.mark.parametrize("window", [1, 5, 32, 40, 1000])
def test_chunks(kernels: ModuleType, window: int, page_tokens: int) -> None:
    """Each token sees those before it in its own chunk."""
    batch, options = Batch([*RAGGED, (200, 150)], 64, 2, page_tokens=page_tokens), {"window": window, "chunked": True}
    assert error(batch.attend_f32(kernels, **options), batch.exact(batch.k, batch.v, **options)) <= 2e-6


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("softcap", [0.0, 0.5, 30.0])
def test_softcap_and_sinks(kernels: ModuleType, softcap: float, has_sinks: bool, window: int) -> None:
    batch = Batch(RAGGED, 96, 3)
    sinks = np.array([-3, 0, 1, 5, 20, -np.inf], np.float32) if has_sinks else None
    options = {"softcap": softcap, "sinks": sinks, "window": window, "scale": 0.3}
    assert error(batch.attend_f32(kernels, **options), batch.exact(batch.k, batch.v, **options)) <= 2e-6


@pytest.mark.parametrize("dim", [80, 128])
@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("name", PACKED)
def test_packed_loses_what_the_format_loses(kernels: ModuleType, name: str, rotate: bool, dim: int) -> None:
    fmt, batch = get(name), Batch([(70, 1), (40, 12)], dim, 4)
    k, v = batch.both(kernels, fmt, fmt, rotate)
    wanted = batch.exact(batch.k, batch.v)
    best = batch.exact(batch.decoded(k, fmt, rotate), batch.decoded(v, fmt))
    y = batch.attend(kernels, k, fmt, v, fmt, rotate=rotate)
    assert error(y, wanted) <= 1.05 * error(best, wanted)


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("dim", [32, 80, 96, 128, 256])
@pytest.mark.parametrize("name", ["q8_0", "q5_0", "q4_0", "iq4_nl"])
def test_long_contexts_lose_no_more(kernels: ModuleType, name: str, dim: int, group: int) -> None:
    """Where there are int8 tiles or dot products, they multiply what is packed: by queries and weights of 16 bits."""
    fmt, batch = get(name), Batch([(128, 1), (147, 1), (2100, 1), (333, 2)], dim, group, 1, page_tokens=32)
    k, v = batch.both(kernels, fmt, fmt, rotate=True)
    in_bf16 = kernels is cpu and cpu.isa() == "amx" and 2 * group > 8  # unless it is exact: more rows than 8
    for options in ({}, {"window": 150, "softcap": 3.0, "sinks": np.linspace(-2, 2, group, dtype=np.float32)}):
        wanted = batch.exact(batch.k, batch.v, **options)
        best = batch.exact(batch.decoded(k, fmt, True), batch.decoded(v, fmt), **options)
        for is_exact in (True,) if in_bf16 else (True, False):
            y = batch.attend(kernels, k, fmt, v, fmt, rotate=True, exact=is_exact, **options)
            assert error(y, best) <= 5e-5
            assert error(y, wanted) <= 1.05 * error(best, wanted)


@pytest.mark.parametrize("name", ["f32", "q8_0", "f8_e4m3"])
def test_nan_spoils_its_own_query_alone(kernels: ModuleType, name: str) -> None:
    fmt, batch = get(name), Batch([(200, 1), (200, 1)], 64, 4, page_tokens=32)
    k, v = batch.both(kernels, fmt, fmt)
    good = batch.attend(kernels, k, fmt, v, fmt)
    batch.q[0][0, 1, 5] = np.nan
    y = batch.attend(kernels, k, fmt, v, fmt)
    assert np.isnan(y[0, 1]).all()
    y[0, 1] = good[0, 1]
    np.testing.assert_array_equal(y, good)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
@pytest.mark.parametrize("rows", [1, 40])
def test_what_is_no_number_is_seen_in_8_bit_floats(kernels: ModuleType, rows: int, bad: float) -> None:
    """In K it spoils all who see the token, in V one value of theirs; the other sequence has the same bits."""
    fmt, batch = get("f8_e4m3"), Batch([(200, rows), (200, rows)], 64, 4, page_tokens=32)
    good = batch.attend(kernels, *(x for one in batch.both(kernels, fmt, fmt) for x in (one, fmt)))
    for what, spoilt in ((batch.k, slice(None)), (batch.v, slice(5, 6))):
        kept = float(what[0][100, 1, 5])
        what[0][100, 1, 5] = bad
        y = batch.attend(kernels, *(x for one in batch.both(kernels, fmt, fmt) for x in (one, fmt)))
        what[0][100, 1, 5] = kept
        assert np.isnan(y[:rows, 4:, spoilt]).all()
        y[:rows, 4:, spoilt] = good[:rows, 4:, spoilt]
        np.testing.assert_array_equal(y, good)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["f32", "q8_0"])
def test_a_bad_query_hides_no_great_score_of_another(kernels: ModuleType, name: str, bad: float) -> None:
    """The largest score so far is only looked for where one passes it: that must not depend on other queries."""
    fmt, batch = get(name), Batch([(200, 1)], 64, 4, 1, page_tokens=32)
    batch.k[0][150] = 30 * batch.q[0][0, 2]
    k, v = batch.both(kernels, fmt, fmt)
    good = batch.attend(kernels, k, fmt, v, fmt)
    batch.q[0][0, 1] = bad
    y = batch.attend(kernels, k, fmt, v, fmt)
    assert np.isfinite(good).all()
    np.testing.assert_array_equal(np.delete(y, 1, axis=1), np.delete(good, 1, axis=1))


@pytest.mark.parametrize(("k_name", "v_name"), SOME_PAIRS)
def test_k_and_v_of_different_formats(kernels: ModuleType, k_name: str, v_name: str) -> None:
    k_format, v_format, batch = get(k_name), get(v_name), Batch(RAGGED, 128, 4)
    k, v = batch.both(kernels, k_format, v_format)
    wanted = batch.exact(batch.k, batch.v)
    best = batch.exact(batch.decoded(k, k_format), batch.decoded(v, v_format))
    y = batch.attend(kernels, k, k_format, v, v_format)
    assert error(y, wanted) <= 1.05 * error(best, wanted)


@pytest.mark.parametrize(("name", "part"), [("q4_0", 0.5), ("iq4_nl", 0.5), ("mxfp4", 0.5), ("q4_1", 0.7)])
def test_rotation_saves_4_bit_k_with_outlier_channels(kernels: ModuleType, name: str, part: float) -> None:
    """K, V and q are normal, but four of the 128 channels of K, one in each block of 32, are 20 or -20 more.

    V is f32, so that the error is that of K alone: of the output, against float64 on the original K. Rotation at least
    halves it on these data; q4_1, which has a min, suffers less without it.
    """
    fmt, f32 = get(name), get("f32")
    batch = Batch([(256, 8), (200, 8)], 128, 4, seed=7)
    for k in batch.k:
        k[:, :, [5, 48, 70, 127]] += np.array([20, -20, 20, -20], np.float32)
    v = batch.store(kernels, f32, batch.v)
    wanted = batch.exact(batch.k, batch.v)
    plain, rotated = (
        error(batch.attend(kernels, batch.store(kernels, fmt, batch.k, r), fmt, v, f32, rotate=r), wanted)
        for r in (False, True)
    )
    assert rotated <= part * plain


@pytest.mark.parametrize("dim", [32, 80, 128])
@pytest.mark.parametrize("name", KV_FORMATS)
def test_writing_packs_rows_and_touches_nothing_else(kernels: ModuleType, name: str, dim: int) -> None:
    fmt, rng = get(name), np.random.default_rng(1)
    x = normal(rng, 9, 3, dim)
    store = rng.integers(0, 256, (5, 3, 4, fmt.row_bytes(dim)), dtype=np.uint8)
    slots = rng.permutation(20)[:9].astype(np.int64)
    wanted = store.copy()
    padded = np.zeros((9, 3, -(-dim // 32) * 32 if fmt.block == 32 else dim), np.float32)
    padded[:, :, :dim] = x
    for t, slot in enumerate(slots):
        wanted[slot // 4, :, slot % 4] = encode(fmt, padded[t])
    kernels.kv_write(fmt, store, x, slots)
    np.testing.assert_array_equal(store, wanted)


@pytest.mark.parametrize("dim", [32, 80, 96, 256])
@pytest.mark.parametrize("name", KV_FORMATS)
def test_writing_rotated_loses_no_more(kernels: ModuleType, name: str, dim: int) -> None:
    """Sums may be rounded in another order, and then a code may be the one beside."""
    fmt, batch = get(name), Batch([(50, 0)], dim)
    ours, reference = (
        error(batch.decoded(batch.store(ops, fmt, batch.k, True), fmt, True)[0], batch.k[0])
        for ops in (kernels, attention)
    )
    assert ours <= 1.01 * reference + 1e-6


@pytest.mark.parametrize("name", ["f16", "f8_e4m3", "q8_0", "q4_1"])
def test_heads_of_a_page_taken_together(kernels: ModuleType, name: str) -> None:
    """One thread takes several heads at a time where there are many pieces; 64 threads take them one by one."""
    if kernels is attention:
        pytest.skip("the reference takes every head alone")
    fmt, sequences = get(name), [(1, 1), (2100, 1), (40, 0), (2049, 1), (2048, 2), (2300, 1)]
    batch = Batch(sequences, 32, group=3, kv_heads=5, page_tokens=32)
    k, v = batch.both(kernels, fmt, fmt)
    sinks = np.linspace(-2, 2, 15, dtype=np.float32)
    together, alone = (batch.attend(kernels, k, fmt, v, fmt, sinks=sinks, threads=n) for n in (1, 64))
    np.testing.assert_array_equal(together, alone)
    wanted = batch.exact(batch.decoded(k, fmt), batch.decoded(v, fmt), sinks=sinks)
    assert error(together, wanted) <= 5e-5


@pytest.mark.parametrize("name", ["f32", "f16", "f8_e4m3", "q8_0", "q4_0"])
def test_threads_change_nothing(kernels: ModuleType, name: str) -> None:
    fmt, batch = get(name), Batch([(300, 1), (64, 30), (5000, 1)], 64, 4, page_tokens=32)
    k, v = batch.both(kernels, fmt, fmt)
    one, two = (batch.attend(kernels, k, fmt, v, fmt, threads=threads) for threads in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_great_logits_pick_one_value(kernels: ModuleType) -> None:
    batch = Batch([(60, 5)], 64)
    assert error(batch.attend_f32(kernels, scale=500.0), batch.exact(batch.k, batch.v, scale=500.0)) <= 2e-6


def test_result_goes_to_out(kernels: ModuleType) -> None:
    batch = Batch(RAGGED, 64, 2)
    out = np.full((42, 4, 64), np.nan, np.float32)
    assert batch.attend_f32(kernels, out=out) is out
    assert error(out, batch.exact(batch.k, batch.v)) <= 2e-6


def test_nothing_to_do(kernels: ModuleType) -> None:
    assert Batch([(5, 0), (0, 0)], 64).attend_f32(kernels).shape == (0, 2, 64)
    assert Batch([(16, 0)], 64).attend_f32(kernels).shape == (0, 2, 64)


def test_the_result_must_not_lie_in_the_queries() -> None:
    q, store = np.zeros((1, 2, 32), np.float32), np.zeros((1, 2, 16, 128), np.uint8)
    one, starts = np.ones(1, np.int64), np.arange(2, dtype=np.int64)
    kv, step = KVArrays(get("f32"), store, get("f32"), store), PageTables(np.zeros(1, np.int32), starts, one, starts)
    with pytest.raises(ValueError, match="must not lie in q"):
        cpu.attend(q, kv, step, AttentionParams(1.0), out=q)


def test_native_attention_over_pages_is_causal() -> None:
    q, none = np.zeros((0, 2, 32), np.float32), np.zeros(1, np.int64)
    kv = KVArrays(get("f32"), np.zeros((1, 2, 16, 128), np.uint8), get("f32"), np.zeros((1, 2, 16, 128), np.uint8))
    with pytest.raises(ArgumentError, match="causal"):
        cpu.attend(q, kv, PageTables(np.zeros(0, np.int32), none, none[:0], none), AttentionParams(1.0, causal=False))


@pytest.mark.parametrize(("dim", "size"), [(1, 1), (32, 32), (80, 16), (96, 32), (128, 128), (256, 256)])
def test_hadamard_is_its_own_inverse_block_by_block(dim: int, size: int) -> None:
    matrix = hadamard(np.eye(dim))
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-15)
    np.testing.assert_allclose(matrix @ matrix, np.eye(dim), atol=1e-13)
    blocks = np.kron(np.eye(dim // size), np.ones((size, size)))
    np.testing.assert_allclose(abs(matrix), blocks / np.sqrt(size), atol=1e-15)


def test_hadamard_is_in_natural_order() -> None:
    bits = np.array([[(i & j).bit_count() % 2 for j in range(64)] for i in range(64)])
    np.testing.assert_allclose(hadamard(np.eye(64)), (1 - 2 * bits) / 8)

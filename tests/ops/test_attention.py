"""Packing K and V into pages, and attention over them: every backend beside float64."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fewbit.formats import Format, get
from fewbit.formats.decode import decode
from fewbit.formats.encode import encode
from fewbit.ops import attention, cpu
from fewbit.ops.attention import hadamard

from ..exact_attention import HAS_NATIVE, KV_FORMATS, PACKED, error, exact

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

RAGGED = [(1, 1), (70, 1), (33, 33), (100, 7), (40, 0)]  # tokens of a sequence, and how many of them ask


@pytest.fixture(scope="module", params=["numpy", *(cpu.isas() if HAS_NATIVE else [])])
def backend(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The NumPy reference, and the native code with each instruction set."""
    if request.param == "numpy":
        yield attention
        return
    with cpu.forced_isa(request.param):
        yield cpu


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
    ) -> None:
        rng = np.random.default_rng(seed)
        self.sequences, self.dim, self.kv_heads, self.page_tokens = sequences, dim, kv_heads, page_tokens
        self.k, self.v = ([_normal(rng, n, kv_heads, dim) for n, _ in sequences] for _ in range(2))
        self.q = [_normal(rng, rows, kv_heads * group, dim) for _, rows in sequences]
        counts = [-(-length // page_tokens) for length, _ in sequences]
        self.pages = sum(counts) + 3
        self.tables = rng.permutation(self.pages)[: sum(counts)].astype(np.int32)
        self.table_starts = _starts(counts)
        self.lengths = np.array([length for length, _ in sequences], np.int64)
        self.q_starts = _starts(rows for _, rows in sequences)

    def slots(self, s: int) -> npt.NDArray[np.int64]:
        table = self.tables[self.table_starts[s] : self.table_starts[s + 1]].astype(np.int64)
        at = np.arange(self.lengths[s])
        return table[at // self.page_tokens] * self.page_tokens + at % self.page_tokens

    def store(self, backend: ModuleType, fmt: Format, x: list[Floats], rotate: bool = False) -> Bytes:
        store = np.full((self.pages, self.kv_heads, self.page_tokens, fmt.row_bytes(self.dim)), 255, np.uint8)
        for s, values in enumerate(x):
            backend.kv_write(fmt, store, values, self.slots(s), rotate)
        return store

    def decoded(self, store: Bytes, fmt: Format, rotate: bool = False) -> list[npt.NDArray[np.float64]]:
        rows = store.transpose(0, 2, 1, 3).reshape(-1, self.kv_heads, store.shape[3])
        out = []
        for s, (length, _) in enumerate(self.sequences):
            packed = rows[self.slots(s)].reshape(length * self.kv_heads, -1)
            values = decode(fmt, packed, self.dim).astype(np.float64).reshape(length, self.kv_heads, self.dim)
            out.append(hadamard(values) if rotate else values)
        return out

    def exact(self, k: list[Any], v: list[Any], **options: Any) -> npt.NDArray[np.float64]:
        options = {"scale": self.dim**-0.5} | options
        return np.concatenate([exact(*one, **options) for one in zip(self.q, k, v, strict=True)])

    def attend(
        self, backend: ModuleType, k: Bytes, k_format: Format, v: Bytes, v_format: Format, **options: Any
    ) -> Floats:
        options = {"scale": self.dim**-0.5} | options
        result: Floats = backend.attend(
            np.concatenate(self.q), k, k_format, v, v_format,
            self.tables, self.table_starts, self.lengths, self.q_starts, **options,
        )  # fmt: skip
        return result

    def attend_f32(self, backend: ModuleType, **options: Any) -> Floats:
        f32 = get("f32")
        k, v = self.store(backend, f32, self.k), self.store(backend, f32, self.v)
        return self.attend(backend, k, f32, v, f32, **options)


def _normal(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.standard_normal(shape, np.float32)


def _starts(counts: Any) -> npt.NDArray[np.int64]:
    return np.cumsum([0, *counts], dtype=np.int64)


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("dim", [32, 64, 80, 96, 128, 256])
def test_f32_is_exact(backend: ModuleType, dim: int, group: int) -> None:
    batch = Batch(RAGGED, dim, group)
    y = batch.attend_f32(backend)
    assert y.dtype == np.float32
    assert error(y, batch.exact(batch.k, batch.v)) <= 2e-6


@pytest.mark.parametrize("group", [1, 3, 8])
@pytest.mark.parametrize("dim", [32, 80, 128, 256])
def test_rounding_is_allowed_where_it_is_not_exact(backend: ModuleType, dim: int, group: int) -> None:
    batch = Batch([*RAGGED, (200, 150)], dim, group)
    truth = batch.exact(batch.k, batch.v)
    assert error(batch.attend_f32(backend, exact=False), truth) <= 5e-3
    on_tiles = backend is cpu and cpu.isa() == "amx"
    assert np.array_equal(batch.attend_f32(backend, exact=False), batch.attend_f32(backend)) != on_tiles


@pytest.mark.parametrize("page_tokens", [1, 8, 32, 256])
@pytest.mark.parametrize("window", [0, 1, 5, 40, 1000])
def test_windows_and_page_sizes(backend: ModuleType, window: int, page_tokens: int) -> None:
    batch = Batch(RAGGED, 64, 2, page_tokens=page_tokens)
    assert error(batch.attend_f32(backend, window=window), batch.exact(batch.k, batch.v, window=window)) <= 2e-6


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("softcap", [0.0, 0.5, 30.0])
def test_softcap_and_sinks(backend: ModuleType, softcap: float, has_sinks: bool, window: int) -> None:
    batch = Batch(RAGGED, 96, 3)
    sinks = np.array([-3, 0, 1, 5, 20, -np.inf], np.float32) if has_sinks else None
    options = {"softcap": softcap, "sinks": sinks, "window": window, "scale": 0.3}
    assert error(batch.attend_f32(backend, **options), batch.exact(batch.k, batch.v, **options)) <= 2e-6


@pytest.mark.parametrize("dim", [80, 128])
@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("name", PACKED)
def test_packed_loses_what_the_format_loses(backend: ModuleType, name: str, rotate: bool, dim: int) -> None:
    fmt, batch = get(name), Batch([(70, 1), (40, 12)], dim, 4)
    k, v = batch.store(backend, fmt, batch.k, rotate), batch.store(backend, fmt, batch.v)
    wanted = batch.exact(batch.k, batch.v)
    best = batch.exact(batch.decoded(k, fmt, rotate), batch.decoded(v, fmt))
    y = batch.attend(backend, k, fmt, v, fmt, rotate=rotate)
    assert error(y, wanted) <= 1.05 * error(best, wanted)


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("dim", [32, 80, 96, 128, 256])
@pytest.mark.parametrize("name", ["q8_0", "q5_0", "q4_0", "iq4_nl"])
def test_long_contexts_lose_no_more(backend: ModuleType, name: str, dim: int, group: int) -> None:
    """Where there are int8 tiles or dot products, they multiply what is packed: by queries and weights of 16 bits."""
    fmt, batch = get(name), Batch([(128, 1), (147, 1), (2100, 1), (333, 2)], dim, group, 1, page_tokens=32)
    k, v = batch.store(backend, fmt, batch.k, True), batch.store(backend, fmt, batch.v)
    for options in ({}, {"window": 150, "softcap": 3.0, "sinks": np.linspace(-2, 2, group, dtype=np.float32)}):
        wanted = batch.exact(batch.k, batch.v, **options)
        best = batch.exact(batch.decoded(k, fmt, True), batch.decoded(v, fmt), **options)
        for is_exact in (True, False):
            y = batch.attend(backend, k, fmt, v, fmt, rotate=True, exact=is_exact, **options)
            assert error(y, best) <= 5e-5
            assert error(y, wanted) <= 1.05 * error(best, wanted)


@pytest.mark.parametrize("name", ["f32", "q8_0"])
def test_nan_spoils_its_own_query_alone(backend: ModuleType, name: str) -> None:
    fmt, batch = get(name), Batch([(200, 1), (200, 1)], 64, 4, page_tokens=32)
    k, v = batch.store(backend, fmt, batch.k), batch.store(backend, fmt, batch.v)
    good = batch.attend(backend, k, fmt, v, fmt)
    batch.q[0][0, 1, 5] = np.nan
    y = batch.attend(backend, k, fmt, v, fmt)
    assert np.isnan(y[0, 1]).all()
    y[0, 1] = good[0, 1]
    np.testing.assert_array_equal(y, good)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["f32", "q8_0"])
def test_a_bad_query_hides_no_great_score_of_another(backend: ModuleType, name: str, bad: float) -> None:
    """The largest score so far is only looked for where one passes it: that must not depend on other queries."""
    fmt, batch = get(name), Batch([(200, 1)], 64, 4, 1, page_tokens=32)
    batch.k[0][150] = 30 * batch.q[0][0, 2]
    k, v = batch.store(backend, fmt, batch.k), batch.store(backend, fmt, batch.v)
    good = batch.attend(backend, k, fmt, v, fmt)
    batch.q[0][0, 1] = bad
    y = batch.attend(backend, k, fmt, v, fmt)
    assert np.isfinite(good).all()
    np.testing.assert_array_equal(np.delete(y, 1, axis=1), np.delete(good, 1, axis=1))


@pytest.mark.parametrize(("k_name", "v_name"), [("q8_0", "q4_0"), ("f32", "q5_1"), ("iq4_nl", "f16"), ("bf16", "q8_0")])
def test_k_and_v_of_different_formats(backend: ModuleType, k_name: str, v_name: str) -> None:
    k_format, v_format, batch = get(k_name), get(v_name), Batch(RAGGED, 128, 4)
    k, v = batch.store(backend, k_format, batch.k), batch.store(backend, v_format, batch.v)
    wanted = batch.exact(batch.k, batch.v)
    best = batch.exact(batch.decoded(k, k_format), batch.decoded(v, v_format))
    y = batch.attend(backend, k, k_format, v, v_format)
    assert error(y, wanted) <= 1.05 * error(best, wanted)


@pytest.mark.parametrize(("name", "part"), [("q4_0", 0.5), ("iq4_nl", 0.5), ("mxfp4", 0.5), ("q4_1", 0.7)])
def test_rotation_saves_4_bit_k_with_outlier_channels(backend: ModuleType, name: str, part: float) -> None:
    """K, V and q are normal, but four of the 128 channels of K, one in each block of 32, are 20 or -20 more.

    V is f32, so that the error is that of K alone: of the output, against float64 on the original K. Rotation at least
    halves it on these data; q4_1, which has a min, suffers less without it.
    """
    fmt, f32 = get(name), get("f32")
    batch = Batch([(256, 8), (200, 8)], 128, 4, seed=7)
    for k in batch.k:
        k[:, :, [5, 48, 70, 127]] += np.array([20, -20, 20, -20], np.float32)
    v = batch.store(backend, f32, batch.v)
    wanted = batch.exact(batch.k, batch.v)
    plain, rotated = (
        error(batch.attend(backend, batch.store(backend, fmt, batch.k, r), fmt, v, f32, rotate=r), wanted)
        for r in (False, True)
    )
    assert rotated <= part * plain


@pytest.mark.parametrize("dim", [32, 80, 128])
@pytest.mark.parametrize("name", KV_FORMATS)
def test_writing_packs_rows_and_touches_nothing_else(backend: ModuleType, name: str, dim: int) -> None:
    fmt, rng = get(name), np.random.default_rng(1)
    x = _normal(rng, 9, 3, dim)
    store = rng.integers(0, 256, (5, 3, 4, fmt.row_bytes(dim)), dtype=np.uint8)
    slots = rng.permutation(20)[:9].astype(np.int64)
    wanted = store.copy()
    padded = np.zeros((9, 3, -(-dim // 32) * 32 if fmt.block == 32 else dim), np.float32)
    padded[:, :, :dim] = x
    for t, slot in enumerate(slots):
        wanted[slot // 4, :, slot % 4] = encode(fmt, padded[t])
    backend.kv_write(fmt, store, x, slots)
    np.testing.assert_array_equal(store, wanted)


@pytest.mark.parametrize("dim", [32, 80, 96, 256])
@pytest.mark.parametrize("name", KV_FORMATS)
def test_writing_rotated_loses_no_more(backend: ModuleType, name: str, dim: int) -> None:
    """Sums may be rounded in another order, and then a code may be the one beside."""
    fmt, batch = get(name), Batch([(50, 0)], dim)
    ours, reference = (
        error(batch.decoded(batch.store(ops, fmt, batch.k, True), fmt, True)[0], batch.k[0])
        for ops in (backend, attention)
    )
    assert ours <= 1.01 * reference + 1e-6


@pytest.mark.parametrize("name", ["f16", "q8_0", "q4_1"])
def test_heads_of_a_page_taken_together(backend: ModuleType, name: str) -> None:
    """One thread takes several heads at a time where there are many pieces; 64 threads take them one by one."""
    if backend is attention:
        pytest.skip("the reference takes every head alone")
    fmt, sequences = get(name), [(1, 1), (2100, 1), (40, 0), (2049, 1), (2048, 2), (2300, 1)]
    batch = Batch(sequences, 32, group=3, kv_heads=5, page_tokens=32)
    k, v = batch.store(backend, fmt, batch.k), batch.store(backend, fmt, batch.v)
    sinks = np.linspace(-2, 2, 15, dtype=np.float32)
    together, alone = (batch.attend(backend, k, fmt, v, fmt, sinks=sinks, threads=n) for n in (1, 64))
    np.testing.assert_array_equal(together, alone)
    wanted = batch.exact(batch.decoded(k, fmt), batch.decoded(v, fmt), sinks=sinks)
    assert error(together, wanted) <= 5e-5


@pytest.mark.parametrize("name", ["f32", "f16", "q8_0", "q4_0"])
def test_threads_change_nothing(backend: ModuleType, name: str) -> None:
    fmt, batch = get(name), Batch([(300, 1), (64, 30), (5000, 1)], 64, 4, page_tokens=32)
    k, v = batch.store(backend, fmt, batch.k), batch.store(backend, fmt, batch.v)
    one, two = (batch.attend(backend, k, fmt, v, fmt, threads=threads) for threads in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_great_logits_pick_one_value(backend: ModuleType) -> None:
    batch = Batch([(60, 5)], 64)
    assert error(batch.attend_f32(backend, scale=500.0), batch.exact(batch.k, batch.v, scale=500.0)) <= 2e-6


def test_result_goes_to_out(backend: ModuleType) -> None:
    batch = Batch(RAGGED, 64, 2)
    out = np.full((42, 4, 64), np.nan, np.float32)
    assert batch.attend_f32(backend, out=out) is out
    assert error(out, batch.exact(batch.k, batch.v)) <= 2e-6


def test_nothing_to_do(backend: ModuleType) -> None:
    assert Batch([(5, 0), (0, 0)], 64).attend_f32(backend).shape == (0, 2, 64)
    assert Batch([(16, 0)], 64).attend_f32(backend).shape == (0, 2, 64)


def test_the_result_must_not_lie_in_the_queries() -> None:
    if not HAS_NATIVE:
        pytest.skip("the native part is not built")
    q, store = np.zeros((1, 2, 32), np.float32), np.zeros((1, 2, 16, 128), np.uint8)
    one, starts = np.ones(1, np.int64), np.arange(2, dtype=np.int64)
    tables = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="must not lie in q"):
        cpu.attend(q, store, get("f32"), store, get("f32"), tables, starts, one, starts, scale=1.0, out=q)


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

"""Attention of single tokens on a GPU against NumPy: fresh data, ragged lengths, outputs poisoned before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fewbit.cache.layout import make_layout
from fewbit.errors import ArgumentError, ShapeError
from fewbit.formats import get
from fewbit.formats.decode import decode
from fewbit.ops import attention as reference
from fewbit.ops import cuda
from fewbit.ops import numpy as plain
from fewbit.ops.cuda.attention import (
    Fragments,
    Int8Row,
    attend_entry,
    attend_shape,
    decode_attention,
    gather_turns,
    make_rope_table,
    page_shape,
    write_rows,
)
from fewbit.ops.cuda.compile import compile_all
from fewbit.ops.cuda.kernels_attention import write_kv
from fewbit.ops.cuda.pages import DeviceStore
from fewbit.ops.cuda.values import GroupTables, Launcher, Rows, StepInputs
from fewbit.ops.graph import Rope
from fewbit.ops.specs import AttentionParams, AttentionSpec, KVArrays, PageTables

from .cases import relative_error

pytestmark = pytest.mark.cuda
rng = np.random.default_rng(0)
PAD = 5  # values between what rows hold


@dataclass(frozen=True)
class Case:
    """A layer, and what a step does with it."""

    k: str
    v: str
    k_dim: int
    v_dim: int
    kv_heads: int
    q_heads: int
    lengths: tuple[int, ...] = (70, 1, 33, 0, 190, 32)  # with the new tokens
    new: int = 1  # tokens of each sequence
    window: int = 0
    chunked: bool = False
    softcap: float = 0.0
    has_sinks: bool = False
    rope: Rope | None = None
    max_length: int = 0

    def __str__(self) -> str:
        return f"{self.k}-{self.v}-{self.k_dim}-{self.v_dim}-{self.q_heads // self.kv_heads}"

    @property
    def spec(self) -> AttentionSpec:
        return AttentionSpec(self.kv_heads, self.k_dim, self.v_dim, self.window, self.chunked)


def rope(pairs: int, neox: bool) -> Rope:
    return Rope((1e4 ** -np.linspace(0, 1, pairs, endpoint=False)).astype(np.float32), 1.1, neox)


LLAMA = Case("q8_0", "q8_0", 128, 128, 2, 8, rope=rope(64, False))
FP8 = Case("f8_e4m3", "f8_e4m3", 128, 128, 2, 8, rope=rope(64, True))
CASES = [
    LLAMA,
    Case("f16", "f16", 128, 128, 2, 2, rope=rope(64, True)),
    Case("bf16", "q4_0", 64, 96, 1, 12, rope=rope(16, True)),
    Case("q4_0", "bf16", 256, 256, 1, 4, rope=rope(128, False)),
    Case("q8_0", "q4_0", 192, 128, 1, 3),
    Case("q4_0", "f16", 96, 32, 2, 34, lengths=(45, 0, 100)),
    Case("f32", "f32", 80, 48, 2, 6, rope=rope(20, False)),
    Case("q8_0", "f16", 48, 40, 1, 1, rope=rope(24, True)),
    Case("f16", "q8_0", 576, 512, 1, 20, lengths=(40, 0, 65)),
    FP8,
    Case("f8_e4m3", "q4_0", 64, 96, 1, 12, rope=rope(16, True)),
    Case("bf16", "f8_e4m3", 192, 256, 1, 4, rope=rope(96, False)),
    Case("f8_e4m3", "f8_e4m3", 48, 40, 2, 6, rope=rope(20, False)),
]


class World:
    """A store with the older tokens of some sequences, on the GPU and as the reference has it, and a step."""

    def __init__(self, device: cuda.Session, case: Case) -> None:
        self.device, self.case = device, case
        layout = make_layout([case.spec], case.k, case.v)
        counts = [-(-length // 32) for length in case.lengths]
        self.store = DeviceStore(device, layout, (sum(counts) + 3,))
        self.pages = self.store.kv(0)
        self.tables = rng.permutation(sum(counts) + 3)[: sum(counts)].astype(np.int32)
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        self.host = [
            np.zeros((sum(counts) + 3, case.kv_heads, 32, size), np.uint8) for size in layout.row_bytes(case.spec)
        ]
        self.news = [min(case.new, length) or 1 for length in case.lengths]  # a padded sequence has one row
        self.q_starts = np.concatenate([[0], np.cumsum(self.news)])
        self.rows = int(self.q_starts[-1])
        self.sequences = np.repeat(np.arange(len(counts)), self.news)
        before = np.maximum(np.array(case.lengths) - self.news, 0)
        self.positions = np.arange(self.rows) - self.q_starts[self.sequences] + before[self.sequences]
        self.axes = rng.integers(0, 40, (2, self.rows)).astype(np.int32)  # for ropes that have axes
        self.is_real = np.array(case.lengths)[self.sequences] > 0
        self.slots = np.array(
            [self._slot(int(s), int(p)) for s, p in zip(self.sequences, self.positions, strict=True)], np.int32
        )
        self._fill(before)
        widths = case.q_heads * case.k_dim, case.kv_heads * case.k_dim, case.kv_heads * case.v_dim
        self.values = [rng.standard_normal((self.rows, width), np.float32) for width in widths]
        self.sinks = rng.standard_normal(case.q_heads, np.float32) if case.has_sinks else None

    def _slot(self, sequence: int, position: int) -> int:
        if not self.case.lengths[sequence]:
            return -1
        return int(self.tables[self.starts[sequence] + position // 32]) * 32 + int(position) % 32

    def _fill(self, before: np.ndarray) -> None:
        """Older tokens; what lies behind them are NaN or numbers without meaning, which nobody may read."""
        dims = self.case.k_dim, self.case.v_dim
        for host, fmt, dim, rotate in zip(self.host, self.formats, dims, (self.pages.rotate, False), strict=True):
            host[...] = 0xFF
            for sequence, count in enumerate(before):
                slots = np.array([self._slot(sequence, position) for position in range(count)], np.int64)
                x = rng.standard_normal((count, self.case.kv_heads, dim), np.float32)
                reference.kv_write(fmt, host, x, slots, rotate)
        for page in range(len(self.host[0])):
            self.store.write(0, page, [host[page].swapaxes(0, 1) for host in self.host])

    @property
    def formats(self) -> tuple[Any, Any]:
        return self.pages.k_format, self.pages.v_format

    def expected(self, keep: bool = True) -> np.ndarray:
        """What NumPy makes of it; the host's pages then hold the new tokens."""
        case, real = self.case, self.is_real
        q, k, v = self.values
        step: Any = SimpleNamespace(positions=self.positions, axes=self.axes)
        if case.rope:
            q = plain.rope(step, q, heads=case.q_heads, rope=case.rope)
            k = plain.rope(step, k, heads=case.kv_heads, rope=case.rope)
        if keep:
            for fmt, host, x, dim, rotate in (
                (self.formats[0], self.host[0], k, case.k_dim, self.pages.rotate),
                (self.formats[1], self.host[1], v, case.v_dim, False),
            ):
                new = x[real].reshape(-1, case.kv_heads, dim)
                reference.kv_write(fmt, host, new, self.slots[real].astype(np.int64), rotate)
        out = np.zeros((self.rows, case.q_heads, case.v_dim), np.float32)
        for s, length in enumerate(case.lengths):
            if not length:
                continue
            own = slice(self.q_starts[s], self.q_starts[s + 1])
            queries = q[own].reshape(-1, case.q_heads, case.k_dim)
            kv = KVArrays(self.formats[0], self.host[0], self.formats[1], self.host[1], self.pages.rotate)
            lengths, rows = np.array([length]), np.array([0, self.news[s]])
            step = PageTables(self.tables, self.starts[s : s + 2], lengths, rows)
            params = AttentionParams(0.3 / case.k_dim**0.5, case.window, case.softcap, self.sinks, chunked=case.chunked)
            out[own] = reference.attend(queries, kv, step, params, out=out[own].copy())
        return out.reshape(self.rows, -1)

    def inputs(self) -> StepInputs:
        self.held = [
            self.device.array(np.ascontiguousarray(values, np.int32))
            for values in (
                self.positions,
                self.sequences,
                self.q_starts,
                self.case.lengths,
                self.tables,
                self.starts,
                self.slots,
                self.axes,
            )
        ]
        positions, sequences, q_starts, lengths, tables, starts, slots, axes = (array.pointer for array in self.held)
        most = max(self.case.max_length, *self.case.lengths)
        return StepInputs(
            0, 0, positions, sequences, q_starts, lengths, 0, 0, 0, (GroupTables(tables, starts, slots),), self.rows,
            len(self.case.lengths), 0, max(self.news), most, axes=axes, num_axes=2,
        )  # fmt: skip

    def given(self) -> list[Rows]:
        """q, k and v beside each other in rows with something between them."""
        widths = [x.shape[1] for x in self.values]
        wide = np.full((self.rows, sum(widths) + 3 * PAD), np.nan, np.float32)
        at = np.cumsum([PAD, *(width + PAD for width in widths)])
        for first, x in zip(at, self.values, strict=False):
            wide[:, first : first + x.shape[1]] = x
        self.wide = self.device.array(wide)
        whole = Rows(self.wide.pointer, wide.shape[1], wide.shape[1])
        return [whole.columns(int(first), width) for first, width in zip(at, widths, strict=False)]

    def launcher(self) -> Launcher:
        return Launcher(self.device, self.device.stream)

    def attend(self, out: Any = None, keep: bool = True, batch_invariant: bool = False) -> np.ndarray:
        case, result = self.case, None
        width = case.q_heads * case.v_dim
        if out is None:
            result = self.device.empty((self.rows, width + PAD))
            self.device.fill(result.pointer, 0xFF, result.nbytes)
            out = Rows(result.pointer, width, width + PAD)
        table = make_rope_table(self.device, case.rope, max(case.lengths)) if case.rope else None
        sinks = None if self.sinks is None else self.device.array(self.sinks)
        q, k, v = self.given()
        step = self.inputs()
        if table is not None:
            gather_turns(self.launcher(), step, table)
        decode_attention(
            self.launcher(), step, self.pages, q, k, v, out, scale=0.3 / case.k_dim**0.5,
            softcap=case.softcap, sinks=sinks.pointer if sinks else 0, rope=table, keep=keep,
            batch_invariant=batch_invariant,
        )  # fmt: skip
        if result is None:
            self.device.stream.sync()
            return np.zeros(0)
        found = result.numpy()
        assert np.isnan(found[:, width:]).all()
        return found[:, :width]

    def check_pages(self) -> None:
        """The bytes of the host, but where a rotation in f32 rounded a value to the other side."""
        for page in range(len(self.host[0])):
            for found, host, rotated in zip(
                self.store.read(0, page, 32), self.host, (self.pages.rotate, False), strict=True
            ):
                same = found == host[page].swapaxes(0, 1)
                assert same.mean() > 0.99 if rotated else same.all()


@pytest.fixture(scope="module")
def device(device: cuda.Session) -> cuda.Session:
    """With the kernels of these tests, compiled at once."""
    sources = set()
    for case in CASES:
        shape = page_shape(DeviceStore(device, make_layout([case.spec], case.k, case.v), (1,)).kv(0))
        for fused in (True, False):
            cut = attend_shape(shape, 6, 200, 0, case.kv_heads, case.q_heads, batch_invariant=False)
            sources |= {attend_entry(shape, cut, fused).source, write_kv(shape).source}
    if device.arch != "emulated":
        compile_all(sorted(sources), device.arch)
    return device


def check(world: World, keep: bool = True, batch_invariant: bool = False) -> None:
    found = world.attend(keep=keep, batch_invariant=batch_invariant)
    expected = world.expected(keep)
    assert not found[~world.is_real].any()
    assert relative_error(found, expected.astype(np.float64)) < 2e-3
    world.check_pages()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_decoding(device: cuda.Session, case: Case) -> None:
    check(World(device, case))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_several_tokens_of_a_sequence(device: cuda.Session, case: Case) -> None:
    check(World(device, replace(case, new=37)))


@pytest.mark.parametrize("new", [1, 5])
@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[6]], ids=str)
def test_positions_on_axes(device: cuda.Session, case: Case, new: int) -> None:
    assert case.rope is not None
    axes = tuple(pair % 2 for pair in range(len(case.rope.inv_freq)))
    check(World(device, replace(case, new=new, rope=replace(case.rope, axes=axes))))


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[6], FP8], ids=str)
@pytest.mark.parametrize("window", [1, 33, 64])
def test_windows_sinks_and_soft_caps(device: cuda.Session, case: Case, window: int) -> None:
    check(World(device, replace(case, window=window, has_sinks=True, softcap=2.0)))
    check(World(device, replace(case, window=window, new=3)))


@pytest.mark.parametrize("case", [CASES[0], CASES[2]], ids=str)
@pytest.mark.parametrize("chunk", [1, 32, 50])
def test_chunks(device: cuda.Session, case: Case, chunk: int) -> None:
    check(World(device, replace(case, window=chunk, chunked=True)))
    check(World(device, replace(case, window=chunk, chunked=True, new=3)))


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[6], FP8], ids=str)
@pytest.mark.parametrize("window", [0, 700])
def test_pieces_of_long_contexts(device: cuda.Session, case: Case, window: int) -> None:
    long = replace(case, lengths=(1500, 0, 2, 512, 513, 1025), window=window, has_sinks=True, max_length=4000)
    check(World(device, long))
    check(World(device, long), batch_invariant=True)


def test_layers_that_share_what_another_kept(device: cuda.Session) -> None:
    world = World(device, LLAMA)
    first = world.attend()
    assert np.array_equal(world.attend(keep=False), first)  # the same bits: both take what was packed
    world.values[1:] = [np.full_like(x, np.nan) for x in world.values[1:]]
    assert np.array_equal(world.attend(keep=False), first)


@pytest.mark.parametrize("case", [CASES[0], CASES[6], FP8], ids=str)
def test_a_row_has_the_same_bits_alone_and_in_a_batch(device: cuda.Session, case: Case) -> None:
    """And as the last of many tokens of its sequence, or as one."""
    world = World(device, replace(case, lengths=(1400, 40), new=30))
    together = world.attend(batch_invariant=True)
    for s in (0, 1):
        row = int(world.q_starts[s + 1]) - 1
        alone = World(device, replace(case, lengths=(world.case.lengths[s],)))
        alone.values = [x[row : row + 1] for x in world.values]
        for page, source in enumerate(world.tables[world.starts[s] : world.starts[s + 1]]):
            alone.store.write(0, int(alone.tables[page]), world.store.read(0, int(source), 32))
        found = alone.attend(batch_invariant=True)
        assert np.array_equal(found[0], together[row])


@pytest.mark.parametrize("v_dim", [256, 264], ids=["mma", "plain"])
def test_every_8_bit_float_is_read_as_it_is(device: cuda.Session, v_dim: int) -> None:
    """Attention to one token gives its V. Codes of NaN spoil their own value alone."""
    world = World(device, Case("f8_e4m3", "f8_e4m3", 64, v_dim, 1, 1, lengths=(1,)))
    codes = np.resize(np.arange(256, dtype=np.uint8), (1, 1, v_dim))
    world.store.write(0, int(world.tables[0]), [np.zeros((1, 1, 64), np.uint8), codes])
    assert np.array_equal(world.attend(keep=False), decode(get("f8_e4m3"), codes[0], v_dim), equal_nan=True)


def test_a_row_of_8_bits(device: cuda.Session) -> None:
    world = World(device, replace(LLAMA, lengths=(77,)))
    codes, scales = device.empty((8, 128), "u8"), device.empty((8 * 4, 2), "i32")
    world.attend(Int8Row(codes.pointer, scales.pointer))
    expected = world.expected().reshape(-1, 32)
    pairs, found = scales.numpy(), codes.numpy().view(np.int8).reshape(-1, 32)
    values = found * np.ascontiguousarray(pairs[:, :1]).view(np.float32)
    assert relative_error(values.astype(np.float32), expected.astype(np.float64)) < 1e-2
    halves = found.reshape(-1, 2, 16).sum(axis=2, dtype=np.int64)
    assert np.array_equal(pairs[:, 1], ((halves[:, 0] & 0xFFFF) | halves[:, 1] << 16).astype(np.int32))


@pytest.mark.parametrize("case", [LLAMA, CASES[2]], ids=str)
def test_rows_as_fragments(device: cuda.Session, case: Case) -> None:
    world = World(device, replace(case, lengths=(9, 40, 33, 0, 64, 1, 2, 100, 77, 31)))
    width = case.q_heads * case.v_dim
    columns = -(-width // 128)
    out = device.array(np.zeros((columns, 4, 2, 32, 8), np.float16))
    world.attend(Fragments(out.pointer, 2))
    placed = out.numpy().reshape(columns, 4, 2, 8, 4, 8)  # (column, s, token tile, token, granule, value)
    rows = placed.transpose(2, 3, 0, 4, 1, 5).reshape(16, columns * 128)
    assert not rows[10:].any()
    assert not rows[:, width:].any()
    assert relative_error(rows[:10, :width].astype(np.float32), world.expected().astype(np.float64)) < 3e-3


def test_tokens_without_a_slot_are_not_kept(device: cuda.Session) -> None:
    world = World(device, replace(LLAMA, new=20))
    world.slots[[3, 21]] = -1
    world.is_real &= world.slots >= 0
    write_rows(
        world.launcher(), world.inputs(), world.pages, *world.given()[1:],
        rope=make_rope_table(device, LLAMA.rope, 200) if LLAMA.rope else None,
    )  # fmt: skip
    world.expected()
    world.check_pages()


@pytest.mark.parametrize("case", [CASES[2], FP8], ids=str)
def test_copies_of_pages(device: cuda.Session, case: Case) -> None:
    world = World(device, case)
    pairs = [(0, 1), (1, 2), (3, 0), *((i, i + 4) for i in range(4, 8))]
    world.store.copy(0, pairs)
    for source, destination in pairs:
        for host in world.host:
            host[destination] = host[source]
    world.check_pages()


def test_what_does_not_fit_is_one_sentence(device: cuda.Session) -> None:
    world = World(device, LLAMA)
    with pytest.raises(ArgumentError, match="of one token"):
        world.attend(Int8Row(0, 0))
    with pytest.raises(ArgumentError, match="fragments of 0 tokens"):
        world.attend(Fragments(0, 0))
    with pytest.raises(ShapeError, match="rows of the result have 1024 values, not 3"):
        world.attend(Rows(0, 3, 3))

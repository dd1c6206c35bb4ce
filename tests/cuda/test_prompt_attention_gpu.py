"""Prompt attention on a GPU against the NumPy reference: fresh data, ragged prompts, outputs poisoned before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fewbit.arrays import Bytes, Doubles, Floats, Longs
from fewbit.errors import ArgumentError, ShapeError
from fewbit.formats import get
from fewbit.ops import cuda
from fewbit.ops.attention import attend, kv_write
from fewbit.ops.cuda import prompt_attention as module
from fewbit.ops.cuda.attention import RopeTable
from fewbit.ops.cuda.compile import compile_all
from fewbit.ops.cuda.kernels_prompt import attend_prompt, gather_kv
from fewbit.ops.cuda.pages import PAGE_TOKENS, LayerPages, to_pages
from fewbit.ops.cuda.prompt_attention import card_shape, prompt_attention
from fewbit.ops.cuda.values import GroupTables, Launcher, Rows, StepInputs
from fewbit.ops.specs import AttentionParams, AttentionSpec, KVArrays, PageTables

from .cases import relative_error

pytestmark = pytest.mark.cuda
rng = np.random.default_rng(0)


@dataclass(frozen=True)
class Case:
    """Prompts: lengths, and how many tokens of each are new."""

    k_dim: int
    v_dim: int
    formats: tuple[str, str] = ("f16", "f16")
    lengths: tuple[int, ...] = (200,)
    new: tuple[int, ...] = (200,)
    kv_heads: int = 2
    group: int = 2
    window: int = 0
    chunked: bool = False
    causal: bool = True
    around: int = 0
    softcap: float = 0.0
    has_sinks: bool = False
    pairs: int = 0
    neox: bool = False
    dtype: str = "f32"
    least: int = 1
    spans: tuple[tuple[int, ...], ...] = ()  # where they begin, of each sequence; tokens before have their own

    @property
    def spec(self) -> AttentionSpec:
        return AttentionSpec(self.kv_heads, self.k_dim, self.v_dim, self.window, self.chunked)

    @property
    def rotate(self) -> bool:
        return self.formats[0] == "q4_0"


CASES = {
    "long": Case(128, 128, lengths=(333,), new=(333,), group=4),
    "cached": Case(128, 128, lengths=(700, 33, 129), new=(300, 1, 64), kv_heads=1, group=7, least=2),
    "padded rows": Case(128, 128, lengths=(90, 0), new=(90, 5)),
    "encoder": Case(64, 64, lengths=(300, 1, 77), new=(300, 1, 77), group=1, causal=False),
    "around": Case(64, 64, ("bf16", "f32"), (300, 64), (300, 64), causal=False, around=20, pairs=32, neox=True),
    "q8_0": Case(128, 128, ("q8_0", "q8_0"), (500, 65), (130, 65), pairs=64, neox=True),
    "q4_0": Case(128, 128, ("q4_0", "q4_0"), (500, 65), (130, 65), pairs=64, window=100),
    "f8_e4m3": Case(128, 128, ("f8_e4m3", "f8_e4m3"), (500, 65), (130, 65), pairs=64, window=100),
    "f8_e4m3 36/20": Case(36, 20, ("f8_e4m3", "f8_e4m3"), (150, 40), (77, 40), kv_heads=1, group=3, has_sinks=True),
    "f8_e4m3 encoder": Case(64, 96, ("f8_e4m3", "q8_0"), (150, 1, 77), (150, 1, 77), causal=False),
    "dim 80": Case(80, 80, ("q4_0", "q8_0"), (150,), (77,), pairs=20, has_sinks=True),
    "dim 96": Case(96, 96, ("q8_0", "q4_0"), (150,), (77,), window=40),
    "dim 32": Case(32, 32, ("f32", "bf16"), (150, 40), (77, 40), has_sinks=True),
    "dim 256": Case(256, 256, lengths=(300,), new=(120,), softcap=20.0, window=128),
    "chunks": Case(64, 64, lengths=(300, 70), new=(120, 70), window=100, chunked=True),
    "spans": Case(64, 64, lengths=(300, 90), new=(300, 60), spans=((70, 140, 141, 200), (30, 64))),
    "spans in a window": Case(80, 80, ("q8_0", "q8_0"), (300,), (200,), window=40, spans=((100, 230, 231),), pairs=20),
    "windows": Case(72, 72, lengths=(300, 90), new=(300, 90), causal=False, spans=((0, 7, 90, 220), (0, 64))),
    "192/128": Case(192, 128, ("q8_0", "q8_0"), (150,), (77,), group=1),
    "576/512": Case(576, 512, ("bf16", "bf16"), (150,), (40,), kv_heads=1, group=3),
    "36/20": Case(36, 20, lengths=(150,), new=(77,), kv_heads=1, group=3, dtype="bf16"),
    "f16": Case(36, 20, lengths=(150,), new=(77,), kv_heads=1, group=3, dtype="f16"),
    "bf16": Case(128, 128, lengths=(150,), new=(77,), dtype="bf16", has_sinks=True),
}


@pytest.fixture(scope="module")
def device(device: cuda.Session) -> cuda.Session:
    """With the kernels of these tests, compiled at once."""
    entries = []
    for case in CASES.values():
        shape, rotated = card_shape(device, case.spec), case.k_dim & -case.k_dim if case.rotate else 0
        entries.append(gather_kv(*map(get, case.formats), case.k_dim, case.v_dim, shape))
        entries.append(attend_prompt(shape, rotated, case.softcap > 0, case.dtype, bool(case.spans)))
    if device.arch != "emulated":
        compile_all([entry.source for entry in entries], device.arch)
    return device


class Sample:
    """Random K, V and q of a case; the bytes on the card, and what NumPy says."""

    def __init__(self, device: cuda.Session, case: Case) -> None:
        self.device, self.case = device, case
        self.lengths, new = np.array(case.lengths), np.array(case.new)
        counts = -(-self.lengths // PAGE_TOKENS)
        self.starts, self.q_starts = (np.concatenate([[0], np.cumsum(n)]) for n in (counts, new))
        self.tables = rng.permutation(self.starts[-1]).astype(np.int32) + 1
        self.heads, self.tokens = case.kv_heads * case.group, int(self.q_starts[-1])
        self.q = rng.standard_normal((self.tokens, self.heads, case.k_dim), np.float32)
        self.sinks = rng.standard_normal(self.heads, np.float32) if case.has_sinks else None
        self.formats = get(case.formats[0]), get(case.formats[1])
        self.stores = [self._store(i) for i in range(2)]
        self.positions = np.concatenate(
            [np.arange(n - m, n) if n else np.zeros(m, int) for n, m in zip(case.lengths, case.new, strict=True)]
        )

    @property
    def spans(self) -> Longs:
        """First position and end of the span of each row."""
        rows = []
        for begins, length, new in zip(self.case.spans, self.lengths.tolist(), self.case.new, strict=True):
            edges = [*begins, length]
            for position in range(length - new, length):
                held = [(a, b) for a, b in pairwise(edges) if a <= position < b]
                rows.append(held[0] if held else (position, position + 1))
        return np.array(rows, np.int64)

    def _store(self, which: int) -> Bytes:
        """Tokens that are seen; elsewhere are bytes of NaN."""
        case, fmt, dim = self.case, self.formats[which], (self.case.k_dim, self.case.v_dim)[which]
        store = np.full((len(self.tables) + 1, case.kv_heads, PAGE_TOKENS, fmt.row_bytes(dim)), 0xFF, np.uint8)
        for s, length in enumerate(case.lengths):
            hidden = length - case.new[s] - case.window + 1 if case.window and not case.spans else 0
            at = np.arange(max(hidden, 0), length)
            slots = self.tables[self.starts[s] + at // PAGE_TOKENS].astype(np.int64) * PAGE_TOKENS + at % PAGE_TOKENS
            x = rng.standard_normal((len(at), case.kv_heads, dim), np.float32)
            kv_write(fmt, store, x, slots, rotate=case.rotate and which == 0)
        return store

    def rope_tables(self) -> tuple[Floats, Floats]:
        angles = np.arange(max(*self.case.lengths, 1))[:, None] * 100.0 ** (-np.arange(self.case.pairs) / 50)
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def expected(self) -> Doubles:
        case, out = self.case, np.zeros((self.tokens, self.heads, self.case.v_dim), np.float32)
        q = self.rotated_q()
        rows = [s for s, n in enumerate(case.lengths) if n]
        for s in rows:
            mine = slice(int(self.q_starts[s]), int(self.q_starts[s + 1]))
            part: Longs = np.array([0, mine.stop - mine.start])
            (k, v), (kf, vf) = self.stores, self.formats
            starts: Longs = np.array([0, len(self.tables)])
            step = PageTables(self.tables[self.starts[s] :], starts, self.lengths[s : s + 1], part)
            params = AttentionParams(
                case.k_dim**-0.5,
                case.window,
                case.softcap,
                self.sinks,
                causal=case.causal,
                radius=case.around,
                chunked=case.chunked,
                spans=self.spans[mine] if case.spans else None,
            )
            attend(q[mine], KVArrays(kf, k, vf, v, case.rotate), step, params, out=out[mine])
        return out.astype(np.float64)

    def rotated_q(self) -> Floats:
        if not self.case.pairs:
            return self.q
        (cos, sin), n, q = self.rope_tables(), self.case.pairs, self.q.copy()
        first, second = (slice(0, n), slice(n, 2 * n)) if self.case.neox else (slice(0, 2 * n, 2), slice(1, 2 * n, 2))
        a, b = self.q[..., first], self.q[..., second]
        c, s = cos[self.positions][:, None], sin[self.positions][:, None]
        q[..., first], q[..., second] = a * c - b * s, a * s + b * c
        return q

    def send(self) -> list[Any]:
        """Arrays on the card, in the order that `run` wants them."""
        pages = [
            np.stack([to_pages(fmt, page, is_value) for page in store])
            for fmt, store, is_value in zip(self.formats, self.stores, (False, True), strict=True)
        ]
        ints = [self.tables, self.starts, self.positions, self.q_starts, self.lengths]
        turns = np.stack(self.rope_tables(), axis=2)
        sinks = np.zeros(0, np.float32) if self.sinks is None else self.sinks
        arrays = [*pages, *(np.asarray(x, np.int32) for x in ints), turns, sinks]
        return [self.device.array(np.ascontiguousarray(x)) for x in arrays]

    def run(self, q: Floats | None = None, **changed: Any) -> Floats:
        """The result in rows with a gap behind each, which must stay as it was."""
        case, device = self.case, self.device
        k, v, tables, starts, positions, q_starts, lengths, turns, sinks = self.send()
        values = (self.q if q is None else q).reshape(self.tokens, -1)
        wide = np.full((self.tokens, values.shape[1] + 3), np.nan, np.float32)
        wide[:, : values.shape[1]] = values
        sent = device.array(wide)
        width = -(-self.heads * case.v_dim // 8) * 8
        out = device.empty((self.tokens, width + 4), case.dtype)
        device.fill(out.pointer, 0xFF, out.nbytes)
        spans = device.array((self.spans if case.spans else np.zeros((1, 2))).astype(np.int32))
        longest = int((self.spans[:, 1] - self.spans[:, 0]).max()) if case.spans else 0
        step = StepInputs(
            0, 0, positions.pointer, 0, q_starts.pointer, lengths.pointer, 0, 0, 0,
            (GroupTables(tables.pointer, starts.pointer, 0),), self.tokens, len(case.lengths), 0,
            max(case.new), max(case.lengths), spans=spans.pointer, max_span=longest,
        )  # fmt: skip
        rope = RopeTable(turns.pointer, case.pairs, case.neox, max(case.lengths), turns) if case.pairs else None
        options: dict[str, Any] = {
            "scale": case.k_dim**-0.5, "softcap": case.softcap, "sinks": sinks.pointer if case.has_sinks else 0,
            "causal": case.causal, "radius": case.around, "rope": rope, "dtype": case.dtype, "least": case.least,
            "spans": bool(case.spans),
        }  # fmt: skip
        pages = LayerPages(k.pointer, v.pointer, *self.formats, case.spec, 0, case.rotate)
        rows = Rows(sent.pointer, values.shape[1], wide.shape[1]), Rows(out.pointer, width, width + 4)
        prompt_attention(Launcher(device, device.stream), step, pages, *rows, **(options | changed))
        found = out.numpy()
        assert np.isnan(found[:, width:]).all()
        return found[:, :width]


@pytest.mark.parametrize("name", CASES)
def test_prompts(device: cuda.Session, name: str) -> None:
    case = CASES[name]
    sample = Sample(device, case)
    found, columns = sample.run(), sample.heads * case.v_dim
    expected = sample.expected().reshape(sample.tokens, -1)
    taken = np.repeat(np.array(case.new) >= case.least, case.new)
    assert np.isnan(found[~taken]).all()
    assert not found[taken][:, columns:].any()
    assert relative_error(found[taken][:, :columns], expected[taken]) < (5e-3 if case.dtype == "bf16" else 3e-3)
    padded = np.repeat(np.array(case.lengths) == 0, case.new)
    assert not found[padded].any()


@pytest.mark.parametrize("name", ["q4_0", "f8_e4m3", "long"])
def test_a_prompt_in_parts_gives_the_same_bits(device: cuda.Session, name: str) -> None:
    case = replace(CASES[name], lengths=(300,), new=(300,), kv_heads=1)
    whole = Sample(device, case)
    expected = whole.run()
    for first, last in ((0, 130), (130, 131), (131, 300)):
        part = Sample(device, replace(case, lengths=(last,), new=(last - first,)))
        part.stores, part.tables, part.q = whole.stores, whole.tables, whole.q[first:last]
        assert np.array_equal(part.run(), expected[first:last])


def test_rows_of_spans_alone(device: cuda.Session) -> None:
    sample = Sample(device, CASES["spans"])
    expected, found = sample.run(), sample.run(spans_only=True)
    is_span = sample.spans[:, 1] - sample.spans[:, 0] > 1
    assert is_span.any()
    assert np.isnan(found[~is_span]).all()
    assert np.array_equal(found[is_span], expected[is_span])


def test_sequence_by_sequence_where_scratch_is_short(device: cuda.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Sample(device, replace(CASES["q8_0"], lengths=(150, 70, 90), new=(40, 70, 1)))
    expected = sample.run()
    monkeypatch.setattr(module, "MAX_SCRATCH", 1)
    assert np.array_equal(sample.run(), expected)


def test_some_of_the_sequences(device: cuda.Session) -> None:
    sample = Sample(device, replace(CASES["q8_0"], lengths=(150, 70, 90), new=(40, 70, 20)))
    expected, found = sample.run(), sample.run(sequences=range(1, 3))
    assert np.isnan(found[:40]).all()
    assert np.array_equal(found[40:], expected[40:])


def test_what_cannot_be_done(device: cuda.Session) -> None:
    sample = Sample(device, CASES["long"])
    with pytest.raises(ArgumentError, match="scale above 0"):
        sample.run(scale=0.0)
    with pytest.raises(ArgumentError, match="f32, f16 or bf16"):
        sample.run(dtype="u8")
    with pytest.raises(ShapeError, match="not heads of 128"):
        sample.run(q=sample.q[..., 1:])

"""The integers of a step: rows that are padded belong to sequences of length 0."""

from __future__ import annotations

import numpy as np
import pytest

from fewbit.arrays import Ints
from fewbit.cache.cache import Cache
from fewbit.cache.layout import make_layout
from fewbit.cache.store import HostStore
from fewbit.ops.cuda.inputs import InputLayout
from fewbit.ops.cuda.padding import prompt_layout
from fewbit.ops.specs import AttentionSpec, RecurrentSpec


@pytest.mark.parametrize("counts", [[1], [3, 2], [1, 5], [1, 1, 1, 1, 1, 1, 1, 1], [8], [4, 1, 1, 2]])
def test_padded_rows(counts: list[int]) -> None:
    size = 8
    cache = Cache(HostStore(make_layout([AttentionSpec(1, 16, 16)]), pages=[16]))
    view = cache.reserve([(cache.new(), count) for count in counts])
    n, s = sum(counts), len(counts)
    layout = InputLayout(size, size, size, (size,), 16, 512)
    out = np.full(layout.total, -7, np.int32)
    layout.pack(out, np.arange(n, dtype=np.int32), view, np.arange(n, dtype=np.int32))

    def part(name: str) -> Ints:
        return out[layout.offsets[name] :][: layout.sizes[name]]

    starts, lengths, owners = part("q_starts"), part("lengths"), part("sequences")
    assert starts[0] == 0
    assert starts[-1] == size
    assert (np.diff(starts) >= 0).all()
    assert np.diff(starts)[:s].tolist() == counts
    np.testing.assert_array_equal(owners, np.repeat(np.arange(size), np.diff(starts)))
    assert lengths[:s].tolist() == counts
    assert not lengths[s:].any()
    assert (part("slots0")[n:] == -1).all()


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [
        ([1, 1, 1, 40], (48, 6, 44, ((4, 4), (2, 44)))),
        ([1] * 9 + [100, 30], (160, 15, 104, ((12, 12), (3, 148)))),
        ([50], (56, 2, 56, ())),
        ([5, 3], (8, 3, 16, ())),
        ([3] * 5, (16, 9, 16, ())),
    ],
)
@pytest.mark.parametrize("is_recurrent", [False, True])
def test_steps_with_prompts_have_few_sizes(counts: list[int], sizes: tuple[object, ...], is_recurrent: bool) -> None:
    """Single tokens come first; what is padded, between them and the prompts and behind these, has no sequence."""
    specs = [AttentionSpec(1, 16, 16), *([RecurrentSpec(8)] if is_recurrent else [])]
    cache = Cache(HostStore(make_layout(specs), pages=[64] + [64] * is_recurrent))
    view = cache.reserve([(cache.new(), count) for count in counts])
    n, ends = sum(counts), np.cumsum(counts) - 1
    layout = prompt_layout(view, len(counts), 4096, 256)
    tokens, sequences, longest, runs = sizes
    assert (layout.tokens, layout.sequences, layout.max_q) == (tokens, sequences, longest)
    assert tuple((len(run.sequences), len(run.rows)) for run in layout.runs) == runs
    assert layout.max_length >= max(counts)
    out = np.full(layout.total, -7, np.int32)
    layout.pack(out, np.arange(1, n + 1, dtype=np.int32), view, ends.astype(np.int32))

    def part(name: str) -> Ints:
        return out[layout.offsets[name] :][: layout.sizes[name]]

    singles = counts.count(1)
    gap = (layout.singles or 0) - singles
    rows = [*range(singles), *range(singles + gap, n + gap)]
    owners, starts, lengths = part("sequences"), part("q_starts"), part("lengths")
    of_rows = np.repeat(np.arange(len(counts)), counts)
    np.testing.assert_array_equal(owners[rows], of_rows + gap * (of_rows >= singles))
    np.testing.assert_array_equal(part("tokens")[rows], np.arange(1, n + 1))
    np.testing.assert_array_equal(part("positions")[rows], view.positions())
    np.testing.assert_array_equal(part("slots0")[rows], view.slots(0))
    np.testing.assert_array_equal(part("tokens")[part("logits_indices")[: len(counts)]], ends + 1)
    np.testing.assert_array_equal(lengths[owners[rows]], np.repeat(view.lengths, counts))
    np.testing.assert_array_equal(np.diff(starts)[owners[rows]], np.repeat(counts, counts))
    np.testing.assert_array_equal(part("starts0")[owners[rows]], view.table_starts[0][of_rows])
    if is_recurrent:
        np.testing.assert_array_equal(part("writes")[owners[rows]], view.writes[of_rows])
    padded = np.setdiff1d(np.arange(layout.tokens), rows)
    assert (part("slots0")[padded] == -1).all()
    assert not lengths[owners[padded]].any()
    assert owners.max() < layout.sequences
    assert (np.diff(starts) >= 0).all()
    assert starts[-1] <= layout.tokens


@pytest.mark.parametrize("counts", [[40, 1], [1, 40, 1, 1], [1, 300], [1] * 257 + [2]])
def test_what_cannot_be_padded_is_exact(counts: list[int]) -> None:
    """Another order, no room, more outputs than a captured step has."""
    cache = Cache(HostStore(make_layout([AttentionSpec(1, 16, 16)]), pages=[512]))
    view = cache.reserve([(cache.new(), count) for count in counts])
    layout = prompt_layout(view, 1, 301, 256)
    assert (layout.tokens, layout.sequences, layout.singles) == (sum(counts), len(counts), None)

"""Parts of prompts that are embeddings: keys for the cache, and what rows bring."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.cache.cache import Cache
from fewbit.cache.layout import make_layout
from fewbit.cache.store import HostStore
from fewbit.devices.batch import Row, lay_out
from fewbit.engine.embedded import FIRST_KEY, EmbeddedPart, EmbeddedPrompt
from fewbit.ops.specs import AttentionSpec


def rows(count: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)


def prompt(*lengths: int, sees_all: bool = False, axes: bool = False) -> EmbeddedPrompt:
    """Tokens and parts in turn."""
    parts, at = [], 0
    for number, length in enumerate(lengths):
        if number % 2 and length:
            parts.append(EmbeddedPart(at, [rows(length, number)], bytes([number]), sees_all))
        at += length
    positions = np.arange(3 * at, dtype=np.int32).reshape(3, at) % 17 if axes else None
    return EmbeddedPrompt(parts, list(range(at)), positions)


def test_keys_follow_from_what_the_rows_were_made_of() -> None:
    first = EmbeddedPart(0, [rows(40)], b"a")
    same, other = EmbeddedPart(7, [rows(40, 1)], b"a"), EmbeddedPart(0, [rows(40)], b"b")
    assert first.keys() == same.keys()
    assert not set(first.keys()) & set(other.keys())
    assert min(first.keys()) >= FIRST_KEY
    assert max(first.keys()) < 1 << 32
    assert len(set(first.keys())) == 40


def test_keys_stand_in_the_places_of_the_rows() -> None:
    one = prompt(3, 5, 2)
    keys = one.keyed(0, [*range(10), 77, 78])
    assert keys[:3] == [0, 1, 2]
    assert keys[8:] == [8, 9, 77, 78]
    assert keys[3:8] == one.parts[0].keys()
    assert one.keyed(6, [6, 7, 8]) == keys[6:9]
    assert one.keyed(11, [78]) == [78]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.data())
def test_cut_anywhere_the_rows_are_the_same(lengths: list[int], data: st.DataObject) -> None:
    one, total = prompt(*lengths, axes=True), sum(lengths)
    whole = np.full((total + 5, 4), np.nan, np.float32)
    cuts = sorted(data.draw(st.lists(st.integers(0, total + 5), max_size=4)))
    axes = []
    for first, end in zip([0, *cuts], [*cuts, total + 5], strict=True):
        inputs = one.row_inputs(first, end - first)
        for part, token, values in inputs.inserted:
            assert part == 0
            whole[first + token : first + token + len(values)] = values
        assert inputs.axes is not None
        axes.append(inputs.axes)
    for part in one.parts:
        np.testing.assert_array_equal(whole[part.start : part.end], part.values()[0])
    assert np.isnan(whole).all(axis=1).sum() == total + 5 - sum(part.end - part.start for part in one.parts)
    joined = np.concatenate(axes, axis=1)
    assert one.axes is not None
    np.testing.assert_array_equal(joined[:, :total], one.axes)
    np.testing.assert_array_equal(joined[:, total:], one.axes.max(initial=-1) + 1 + np.arange(5) + np.zeros((3, 1)))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 60), st.integers(1, 60))
def test_what_sees_all_of_itself_is_not_cut(lengths: list[int], first: int, count: int) -> None:
    one = prompt(*lengths, sees_all=True)
    kept = one.uncut(first, count)
    assert kept <= count
    assert not any(part.start < first + kept < part.end for part in one.parts if first <= part.start)
    spans = one.row_inputs(first, count).spans
    if one.parts:
        assert spans is not None
        assert spans.shape == (count, 2)
        own = np.arange(first, first + count)
        assert ((spans[:, 0] <= own) & (own < spans[:, 1])).all()
        assert (np.diff(spans, axis=0) >= 0).all()


def test_batches_hold_what_rows_bring() -> None:
    store = HostStore(make_layout([AttentionSpec(1, 8, 8)]), [16])
    cache = Cache(store)
    first, second = cache.new(), cache.new()
    one = prompt(2, 3, 1, sees_all=True, axes=True)
    batch_rows = [Row(first, [9, 9]), Row(second, [*range(6)], inputs=one.row_inputs(0, 6))]
    batch = lay_out(batch_rows, cache.reserve([(first, 2), (second, 6)]))
    (inserted,) = batch.inserted
    assert inserted.tokens.tolist() == [4, 5, 6]
    np.testing.assert_array_equal(inserted.rows, one.parts[0].values()[0])
    assert batch.axes is not None
    assert batch.axes[:, :2].tolist() == [[0, 1]] * 3
    assert batch.spans is not None
    assert batch.spans.tolist() == [[0, 1], [1, 2], [0, 1], [1, 2], [2, 5], [2, 5], [2, 5], [5, 6]]


def test_what_sees_later_tokens_may_see_only_so_far_back() -> None:
    one = EmbeddedPrompt([EmbeddedPart(1, [rows(4)], b"", sees_all=True, reach=2)], [*range(6)])
    spans = one.row_inputs(0, 6).spans
    assert spans is not None
    assert spans.tolist() == [[0, 1], [1, 5], [1, 5], [2, 5], [3, 5], [5, 6]]


def test_rows_from_outside_have_the_token_that_is_none() -> None:
    cache = Cache(HostStore(make_layout([AttentionSpec(1, 8, 8)]), [16]))
    sequence = cache.new()
    batch = lay_out([Row(sequence, [9] * 6, inputs=prompt(2, 3, 1).row_inputs(0, 6))], cache.reserve([(sequence, 6)]))
    assert batch.tokens.tolist() == [9, 9, 0, 0, 0, 9]


def test_long_images_need_long_steps() -> None:
    one = prompt(2, 9, sees_all=True)
    one.check(18)
    with pytest.raises(fb.RequestError, match="max_batched_tokens must be at least 18"):
        one.check(17)


def test_parts_are_inside_the_prompt() -> None:
    with pytest.raises(fb.RequestError, match="must follow each other"):
        EmbeddedPrompt([EmbeddedPart(3, [rows(4)], b"")], [1, 2, 3, 4])

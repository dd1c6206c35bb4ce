"""Where K, V and states lie, and what an executor sees of a step."""

from __future__ import annotations

import numpy as np
import pytest

from fewbit.cache.cache import Cache
from fewbit.cache.layout import make_layout
from fewbit.cache.store import HostStore
from fewbit.errors import OutOfPages, PositionError
from fewbit.ops import tiled
from fewbit.ops.specs import AttentionSpec, LayerSpec, RecurrentSpec

FULL, WINDOW, STATE = AttentionSpec(2, 64, 128), AttentionSpec(1, 64, 64, window=3), RecurrentSpec(24)
SPECS: list[LayerSpec] = [WINDOW, FULL, None, STATE]


def make_cache(pages: tuple[int, ...] = (8, 8, 8), page_tokens: int = 4) -> Cache:
    return Cache(HostStore(make_layout(SPECS, "q8_0", "f16", page_tokens=page_tokens), pages))


def test_arrays_have_the_sizes_of_their_layers() -> None:
    store = make_cache((8, 5, 3)).store
    assert isinstance(store, HostStore)
    assert [store.group_of(layer) for layer in (0, 1, 3)] == [1, 0, 2]
    assert [array.shape for array in store.kv(1)[1::2]] == [(8, 2, 4, 68), (8, 2, 4, 256)]
    assert [array.shape for array in store.kv(0)[1::2]] == [(5, 1, 4, 68), (5, 1, 4, 128)]
    assert store.states(3).shape == (3, 24)
    assert store.nbytes == 8 * 2 * 4 * (68 + 256) + 5 * 4 * (68 + 128) + 3 * 24
    for layer in (0, 1, 2):
        with pytest.raises(PositionError, match="keeps no state"):
            store.states(layer)
    for layer in (2, 3, 4):
        with pytest.raises(PositionError, match="keeps no K and V"):
            store.kv(layer)


@pytest.mark.parametrize("is_tiled", [False, True])
def test_pages_are_read_as_they_were_written(is_tiled: bool) -> None:
    layout = make_layout([FULL, STATE], "q8_0", "q4_0", page_tokens=32)
    store = HostStore(layout, (3, 2), lambda spec: is_tiled)
    assert (store.kv(0)[1].shape[2] == 32 // tiled.SLAB) == is_tiled
    rng = np.random.default_rng(0)
    k, v = (rng.integers(0, 256, (7, 2, width), np.uint8) for width in (68, 72))
    store.write(0, 2, [k, v])
    for found, wanted in zip(store.read(0, 2, 7), (k, v), strict=True):
        np.testing.assert_array_equal(found, wanted)
    store.copy(0, [(2, 1), (1, 0)])
    store.write(0, 1, [k, v], first=5)
    for found, wanted in zip(store.read(0, 0, 7), (k, v), strict=True):
        np.testing.assert_array_equal(found, wanted)
    for found, wanted in zip(store.read(0, 1, 12), (k, v), strict=True):
        np.testing.assert_array_equal(found[5:], wanted)
    state = rng.integers(0, 256, 24, np.uint8)
    store.write(1, 1, [state])
    np.testing.assert_array_equal(store.read(1, 1, 1)[0], state)
    store.copy(1, [(0, 1)])
    assert not store.states(1).any()


def test_view_of_a_ragged_step() -> None:
    cache = make_cache()
    a, b, c = (cache.new() for _ in range(3))
    cache.reserve([(a, 9)])
    cache.commit(a, range(9))
    view = cache.reserve([(b, 5), (a, 1), (c, 0)])
    assert view.sequences == (b, a, c)
    assert view.q_starts.tolist() == [0, 5, 6, 6]
    assert view.lengths.tolist() == [5, 10, 0]
    assert view.before.tolist() == [0, 9, 0]
    assert view.positions().tolist() == [0, 1, 2, 3, 4, 9]
    (full, full_starts), (window, window_starts) = view.groups
    assert full_starts.tolist() == window_starts.tolist() == [0, 2, 5, 5]
    assert full.tolist() == [*cache.table(b), *cache.table(a)]
    assert window.tolist()[2] == 0  # no token from 7 on is in the first page
    assert view.slots(0).tolist() == [full[p // 4] * 4 + p % 4 for p in range(5)] + [full[4] * 4 + 1]
    assert view.reads[0] == view.reads[2] == 0
    assert len({*view.reads[1:2].tolist(), *view.writes[:2].tolist()}) == 3
    assert (full.dtype, full_starts.dtype, view.writes.dtype) == (np.int32, np.int64, np.int32)


def test_view_stays_as_it_was() -> None:
    cache = make_cache()
    a = cache.new()
    views = []
    for _ in range(6):
        views.append(cache.reserve([(a, 1)]))
        cache.commit(a, [1])
    assert [view.lengths.tolist() for view in views] == [[n] for n in range(1, 7)]
    assert [view.reads[0] for view in views[1:]] == [view.writes[0] for view in views[:-1]]


def test_rollback_leaves_everything_as_it_was() -> None:
    cache = make_cache()
    a = cache.new()
    cache.reserve([(a, 6)])
    cache.commit(a, range(6))
    before = cache.stats(), cache.available, cache.table(a)
    view = cache.reserve([(a, 12), (cache.new(), 3)])
    cache.rollback(view)
    assert (cache.stats(), cache.available, cache.table(a)) == before
    assert [cache.length(sequence) for sequence in view.sequences] == [6, 0]
    cache.rollback(view)  # there is nothing left to do
    assert cache.length(a) == 6
    view = cache.reserve([(view.sequences[1], 2), (a, 2)])
    cache.free(view.sequences[0])
    cache.rollback(view)
    assert cache.length(a) == 6


def test_reserve_is_for_all_or_none() -> None:
    cache = make_cache((3, 8, 8))
    a, b = cache.new(), cache.new()
    needed = cache.needed(a, 8), cache.needed(b, 5)
    assert needed == ((2, 2, 1), (2, 2, 1))
    assert cache.fits(needed[0])
    assert not cache.fits(*needed)
    with pytest.raises(OutOfPages, match="needed: 4, free or evictable: 3"):
        cache.reserve([(a, 8), (b, 5)])
    assert (cache.length(a), cache.available) == (0, (3, 8, 7))
    assert cache.fits()


def test_prompts_are_cut_at_page_ends_for_recurrent_layers() -> None:
    assert make_cache().wants_page_ends
    assert not Cache(HostStore(make_layout([FULL, WINDOW]), (4, 4))).wants_page_ends


def test_empty_state_is_never_written() -> None:
    cache = make_cache((8, 8, 4))
    writes = set()
    for _ in range(12):
        a = cache.new()
        view = cache.reserve([(a, 1)])
        writes.add(int(view.writes[0]))
        cache.commit(a, [1])
        cache.free(a)
    assert 0 not in writes

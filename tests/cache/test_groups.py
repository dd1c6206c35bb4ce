"""Groups of layers: windows that let pages go, recurrent slots, namespaces, and prefixes that all groups agree on."""

from __future__ import annotations

from array import array

import pytest

from fewbit.cache.groups import LayerGroup, group_layers, pages_by_group
from fewbit.cache.pages import Pages
from fewbit.cache.pool import never_short
from fewbit.cache.view import make_view
from fewbit.errors import OutOfPages, PositionError, ShapeError
from fewbit.ops.specs import AttentionSpec, RecurrentSpec

from .test_pages import computed

FULL, WINDOW, RECURRENT = LayerGroup(), LayerGroup(window=6), LayerGroup(is_recurrent=True)
TEXT = list(range(40))


def make_pages(*groups: LayerGroup, totals: list[int] | None = None, page_tokens: int = 4) -> Pages:
    return Pages(groups, totals or [32] * len(groups), page_tokens)


def run(pages: Pages, sequence: int, tokens: list[int], step: int = 1) -> None:
    for first in range(0, len(tokens), step):
        pages.extend([(sequence, len(tokens[first : first + step]))])
        pages.commit(sequence, tokens[first : first + step])


def evict(pages: Pages, group: int) -> None:
    """Use and free all pages of a group that can be had."""
    pool = pages.space.pools[group]
    for page in [pool.take() for _ in range(pool.available)]:
        pool.decref(page)


def test_window_lets_go_of_pages_that_no_token_sees() -> None:
    pages = make_pages(FULL, WINDOW)
    a = pages.new()
    used = []
    for token in TEXT:
        run(pages, a, [token])
        used.append(sum(map(bool, pages.space.pools[1].references)))
    assert pages.stats().groups[0].used == 10
    assert max(used) == 2  # five tokens before the next one
    assert pages.table(a, 1)[:8] == [0] * 8
    assert pages.state(a).starts == [0, 32]


def test_truncate_where_a_window_let_go() -> None:
    pages = make_pages(FULL, WINDOW)
    a = computed(pages, TEXT[:30])  # pages from token 24 on are there
    pages.truncate(a, 29)
    for length in (28, 9, 1):
        with pytest.raises(PositionError, match=f"cut to {length} tokens: layers with a window of 6 .* before 24"):
            pages.truncate(a, length)
    assert pages.length(a) == 29
    pages.truncate(a, 0)
    assert pages.available == (32, 32)
    assert pages.needed(a, 9) == (3, 3)


def test_prefix_ends_where_the_window_is_there() -> None:
    pages = make_pages(FULL, WINDOW)
    pages.free(computed(pages, TEXT))
    assert pages.lookup(TEXT) == 40
    b = pages.new(TEXT)
    assert pages.table(b, 1)[:8] == [0] * 8
    assert len(pages.table(b, 1)) == 10
    pages.free(b)
    nodes = pages.space.find(array("I", TEXT), "")
    lost = nodes[8].pages[1]
    assert lost is not None
    _drop(pages, 1, lost)
    assert pages.lookup(TEXT) == 32  # 36 and 40 need that page
    _drop(pages, 1, nodes[6].pages[1])
    assert pages.lookup(TEXT) == 24
    evict(pages, 1)
    assert pages.lookup(TEXT) == 0
    evict(pages, 0)
    assert not pages.space.tree._top.children


def _drop(pages: Pages, group: int, page: int | None) -> None:
    """Evict one page."""
    pool = pages.space.pools[group]
    assert page is not None
    pool.idle.move_to_end(page, last=False)
    free, pool.free = pool.free, []
    pool._is_short = lambda: True
    pool.decref(pool.take())
    pool._is_short = never_short
    pool.free += free


def test_window_alone_needs_no_older_pages() -> None:
    pages = make_pages(WINDOW, totals=[5])
    a = pages.new()
    run(pages, a, TEXT, step=4)
    pages.free(a)
    assert pages.lookup(TEXT) == 40
    assert pages.stats().evictions == 5


def test_missing_page_of_a_node_is_filled_in() -> None:
    pages = make_pages(FULL, WINDOW)
    pages.free(computed(pages, TEXT))
    evict(pages, 1)
    assert pages.lookup(TEXT) == 0
    pages.free(computed(pages, TEXT))
    assert pages.lookup(TEXT) == 40
    assert pages.stats().groups[0].cached == 10  # not twice


def test_state_is_written_to_a_fresh_slot() -> None:
    pages = make_pages(FULL, RECURRENT)
    a = pages.new()
    slots = []
    for step in (3, 1, 6):
        pages.extend([(a, step)])
        state = pages.state(a)
        slots.append((state.slot, state.next_slot))
        pages.commit(a, TEXT[:step])
    assert slots[0][0] == 0
    assert [read for read, _ in slots[1:]] == [write for _, write in slots[:-1]]
    assert all(read != write for read, write in slots)


def test_steps_of_recurrent_layers_are_committed_whole() -> None:
    pages = make_pages(FULL, RECURRENT)
    a = pages.new()
    pages.extend([(a, 5)])
    with pytest.raises(PositionError, match=r"state after 5 new tokens, it cannot be\s+committed after 4: roll back"):
        pages.commit(a, TEXT[:4])
    for call in (lambda: pages.fork(a), lambda: pages._refuse_pending(pages.state(a), a)):
        with pytest.raises(PositionError, match="sequence 1 has 5 new tokens, which its recurrent state lacks"):
            call()
    with pytest.raises(PositionError, match="there is no recurrent state after so many"):
        pages.truncate(a, 3)
    pages.truncate(a, 0)
    assert pages.stats().used == 0
    run(pages, a, TEXT[:4], step=4)


def test_recurrent_steps_are_reserved_before_the_one_before_is_committed() -> None:
    pages = make_pages(FULL, RECURRENT)
    a = pages.new()
    run(pages, a, TEXT[:3], step=3)
    views, slots = [], [pages.state(a).slot]
    for count in (5, 1, 2):
        pages.extend([(a, count)])
        views.append(make_view(pages, [(a, count)]))
        slots.append(pages.state(a).next_slot)
    assert [view.reads.tolist() for view in views] == [[slot] for slot in slots[:-1]]
    assert [view.writes.tolist() for view in views] == [[slot] for slot in slots[1:]]
    assert len(set(slots)) == 4
    with pytest.raises(PositionError, match=r"state after 5 and 6 and 8 new tokens, it\s+cannot be committed after 7"):
        pages.commit(a, TEXT[3:10])
    pages.commit(a, TEXT[3:8])
    assert pages.state(a).slot == slots[1]
    pages.truncate(a, 9)
    assert (pages.length(a), pages.state(a).next_slot) == (9, slots[2])
    with pytest.raises(PositionError, match="there is no recurrent state after so many"):
        pages.truncate(a, 7)
    pages.commit(a, TEXT[8:9])
    assert (pages.committed(a), pages.state(a).slot) == (9, slots[2])
    assert pages.stats().groups[1].used == 1
    pages.free(a)
    assert pages.stats().used == 0


def test_recurrent_prefix_ends_at_a_snapshot() -> None:
    pages = make_pages(FULL, RECURRENT)
    a = pages.new()
    run(pages, a, TEXT[:8], step=8)
    run(pages, a, TEXT[8:30], step=22)
    assert pages.lookup(TEXT) == 8  # no step ended with a page after that
    slot = pages.state(a).slot
    pages.truncate(a, 8)
    assert pages.state(a).slot == pages.state(pages.new(TEXT)).slot != slot
    run(pages, a, TEXT[8:12], step=2)
    assert pages.lookup(TEXT) == 12
    with pytest.raises(PositionError, match="there is one after 12, and after 0"):
        pages.truncate(a, 4)


def test_recurrent_layers_alone() -> None:
    pages = make_pages(RECURRENT, totals=[6])
    a = pages.new()
    run(pages, a, TEXT, step=4)
    b, c = pages.fork(a), pages.new(TEXT[:37])
    assert (pages.length(c), pages.state(b).slot) == (36, pages.state(a).slot)
    pages.extend([(a, 1), (b, 1), (c, 1)])  # two slots are read, three written
    d = pages.new()
    with pytest.raises(OutOfPages, match="needed: 1, free or evictable: 0"):
        pages.extend([(d, 1)])
    for sequence in (a, b, c, d):
        pages.free(sequence)
    assert pages.available == (5,)


def test_pinned_snapshots_stay() -> None:
    pages = make_pages(FULL, WINDOW, RECURRENT, totals=[32, 32, 4])
    a = pages.new()
    run(pages, a, TEXT[:16], step=8)
    pin = pages.pin(a)
    pages.free(a)
    for group in range(3):
        evict(pages, group)
    assert pages.lookup(TEXT) == 16
    assert [counts.pinned for counts in pages.stats().groups] == [4, 2, 1]
    pages.unpin(pin)
    for group in range(3):
        evict(pages, group)
    assert pages.lookup(TEXT) == 0


def test_namespaces_share_nothing() -> None:
    pages = make_pages(FULL)
    a, b = computed(pages, TEXT, "a"), computed(pages, TEXT, "b")
    assert not set(pages.table(a)) & set(pages.table(b))
    assert (pages.lookup(TEXT, "a"), pages.lookup(TEXT, "b"), pages.lookup(TEXT)) == (40, 40, 0)
    assert pages.table(pages.new(TEXT, "b")) == pages.table(b)
    assert pages.lookup(TEXT, "c") == pages.lookup(TEXT, "\ud800") == 0
    assert set(pages.space.tree._top.children) == {b"a", b"b"}


def test_restored_page_that_lacks_its_first_tokens_is_nobody_elses() -> None:
    pages = make_pages(FULL, WINDOW)
    a = pages.restore(TEXT[:15], 15, [0, 10])  # from a cache with pages of two tokens
    assert pages.table(a, 1)[:2] == [0, 0]
    pages.commit(a, TEXT[:15])
    assert not any(pages.space.pools[1].nodes)  # of the page with tokens 8 to 11, two are missing
    assert pages.lookup(TEXT) == 0
    with pytest.raises(PositionError, match="before 10"):
        pages.truncate(a, 14)
    run(pages, a, TEXT[15:24])
    assert pages.lookup(TEXT) == 24
    pages.free(a)
    assert sum(pages.space.pools[1].references) == 0


def test_restore_without_room_changes_nothing() -> None:
    pages = make_pages(FULL, WINDOW, totals=[8, 2])
    with pytest.raises(OutOfPages):
        pages.restore(TEXT, 40, [0, 32])
    with pytest.raises(OutOfPages):
        pages.restore(TEXT[:30], 30, [0, 16])
    assert pages.available == (8, 2)
    a = pages.restore(TEXT[:30], 30, [0, 24])
    assert pages.available == (0, 0)
    pages.free(a)


def test_layers_by_group() -> None:
    full, windowed = AttentionSpec(1, 64, 64), AttentionSpec(2, 32, 16, window=128)
    groups = group_layers([windowed, None, RecurrentSpec(4), full, windowed, RecurrentSpec(8)])
    assert [group.layers for group in groups] == [(3,), (0, 4), (2, 5)]
    assert [group.window for group in groups] == [0, 128, 0]
    assert group_layers([None]) == []


def test_pages_by_group() -> None:
    groups = [FULL, LayerGroup(window=100), LayerGroup(window=10**6), RECURRENT]
    sizes = {"max_seqs": 2, "snapshots": 5, "step_tokens": 64}
    assert pages_by_group(groups, 32, tokens=10**5, **sizes) == (3125, 2 * (4 + 2) + 2, 3125, 2 * 2 + 5 + 1)
    assert pages_by_group(groups, 32, pages=7, **sizes) == (7, 7, 7, 10)
    for wrong in ({"max_seqs": 0}, {"snapshots": -1}, {"tokens": 5, "pages": 5}, {"step_tokens": 0}):
        with pytest.raises(ShapeError):
            pages_by_group(groups, 32, **({"tokens": 10} | wrong))  # type: ignore[arg-type]


def test_groups_that_cannot_be() -> None:
    for groups, totals in (([RECURRENT, FULL], [4, 4]), ([FULL], [4, 4]), ([RECURRENT], [1])):
        with pytest.raises(ShapeError):
            Pages(groups, totals)


def test_layers_that_keep_nothing() -> None:
    pages = Pages([], [])
    a = pages.new(TEXT)
    run(pages, a, TEXT, step=7)
    assert (pages.length(a), pages.needed(a, 5), pages.available) == (40, (), ())
    pages.free(a)
    assert not pages.space.tree._top.children

"""Pages: who shares what, when it is copied, and what stays cached."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from fewbit.cache import tree as tree_module
from fewbit.cache.groups import PAGE_TOKENS, LayerGroup
from fewbit.cache.pages import Pages
from fewbit.errors import OutOfPages

Cells = dict[tuple[int, int], object]


def make_pages(total: int, page_tokens: int = PAGE_TOKENS, page_bytes: int = 0, page_f32_bytes: int = 0) -> Pages:
    """One group that keeps all tokens."""
    return Pages([LayerGroup(page_bytes=page_bytes, page_f32_bytes=page_f32_bytes)], [total], page_tokens)


def extend(pages: Pages, sequence: int, count: int = 1) -> list[tuple[int, int]]:
    """Reserve, and give the copies."""
    return pages.extend([(sequence, count)]).get(0, [])


def locate(pages: Pages, sequence: int, position: int) -> tuple[int, int]:
    return pages.table(sequence)[position // pages.page_tokens], position % pages.page_tokens


def write(pages: Pages, cells: Cells, sequence: int, values: list[object]) -> None:
    """Extend a sequence, and do to the cells what the owner of arrays does."""
    start = pages.length(sequence)
    for source, destination in extend(pages, sequence, len(values)):
        for slot in range(pages.page_tokens):
            cells[destination, slot] = cells.get((source, slot))
    for position, value in enumerate(values, start):
        cells[locate(pages, sequence, position)] = value


def read(pages: Pages, cells: Cells, sequence: int) -> list[object]:
    return [cells[locate(pages, sequence, position)] for position in range(pages.length(sequence))]


def computed(pages: Pages, text: list[int], namespace: str = "") -> int:
    """A sequence with this text, committed."""
    sequence = pages.new(text, namespace)
    known = pages.length(sequence)
    extend(pages, sequence, len(text) - known)
    pages.commit(sequence, text[known:])
    return sequence


def state(pages: Pages) -> tuple[object, ...]:
    tables = {s: (pages.table(s), pages.length(s), pages.committed(s)) for s in pages._sequences}
    pool = pages.space.pools[0]
    return tables, pages.stats(), list(pool.idle), [node and node.key for node in pool.nodes]


def test_tokens_go_to_pages_in_order() -> None:
    pages = make_pages(4, page_tokens=4)
    a = pages.new()
    tables = []
    for count in (6, 1, 5, 0):
        assert extend(pages, a, count) == []
        tables.append(pages.table(a))
    assert tables == [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert pages.length(a) == 12


@pytest.mark.parametrize(("length", "copied"), [(8, 0), (10, 1)])
def test_parent_and_forks_never_see_each_other(length: int, copied: int) -> None:
    pages, cells = make_pages(64, page_tokens=4), Cells()
    parent = pages.new()
    write(pages, cells, parent, list(range(length)))
    whole = length // 4
    family = [parent, *(pages.fork(parent) for _ in range(8))]
    assert pages.stats().used == whole + copied
    for written, member in enumerate(family, 1):
        write(pages, cells, member, [("of", member)])
        # one that finds itself the last holder of the page needs no copy
        assert pages.stats().used == whole + written + (copied if written < len(family) else 0)
        for other in family:
            own = [("of", other)] if family.index(other) < written else []
            assert read(pages, cells, other) == list(range(length)) + own
    assert pages.stats().copies == 8 * copied
    assert pages.stats().shared == whole
    for member in family:
        pages.free(member)
    assert pages.stats().free == 64


def test_what_is_not_committed_cannot_be_found() -> None:
    pages = make_pages(8, page_tokens=2)
    a = pages.new()
    extend(pages, a, 4)
    assert pages.lookup([1, 2, 3, 4]) == 0
    pages.commit(a, [1])
    assert pages.lookup([1, 2, 3, 4]) == 0
    pages.commit(a, [2, 3])
    assert pages.lookup([1, 2, 3, 4]) == 2
    pages.truncate(a, pages.committed(a))  # the computation of the last one failed
    assert pages.length(a) == 3
    pages.free(a)
    assert pages.stats().cached == 1


def test_prompts_that_begin_alike_share_pages() -> None:
    pages = make_pages(16, page_tokens=2)
    a = computed(pages, [1, 2, 3, 4, 5])
    b = computed(pages, [1, 2, 3, 9])
    c = computed(pages, [7, 7, 3, 4])  # the second page holds the same tokens, after others
    assert pages.table(b)[0] == pages.table(a)[0]
    assert not set(pages.table(c)) & {*pages.table(a), *pages.table(b)}
    assert pages.lookup([3, 4]) == 0
    stats = pages.stats()
    assert (stats.used, stats.shared, stats.references) == (6, 1, 7)
    assert (stats.lookups, stats.hits) == (6, 1)


def test_same_text_computed_twice_is_kept_once() -> None:
    pages = make_pages(8, page_tokens=2)
    a, b = pages.new([1, 2, 3]), pages.new([1, 2, 3])
    for sequence in (a, b):
        extend(pages, sequence, 3)
    assert pages.stats().used == 4
    for sequence in (a, b):
        pages.commit(sequence, [1, 2, 3])
    assert pages.stats().used == 3
    assert pages.table(a)[0] == pages.table(b)[0]


def test_page_forked_before_its_commit_waits_until_it_has_one_holder() -> None:
    pages = make_pages(8, page_tokens=2)
    a = pages.new()
    extend(pages, a, 4)
    b = pages.fork(a)
    pages.commit(a, [1, 2])
    pages.commit(b, [8, 9])
    assert pages.lookup([1, 2]) == pages.lookup([8, 9]) == 0
    pages.free(b)
    pages.commit(a, [3, 4])
    assert pages.lookup([1, 2, 3, 4]) == 4


def test_write_after_truncating_into_a_cached_page() -> None:
    pages, cells = make_pages(3, page_tokens=4), Cells()
    a = pages.new()
    write(pages, cells, a, [1, 2, 3, 4])
    pages.commit(a, [1, 2, 3, 4])
    pages.truncate(a, 2)
    write(pages, cells, a, [8, 9])
    assert read(pages, cells, a) == [1, 2, 8, 9]
    b = pages.new([1, 2, 3, 4])
    assert read(pages, cells, b) == [1, 2, 3, 4]
    assert pages.stats().copies == 1


@pytest.mark.parametrize("short", [False, True])
def test_pages_that_were_written_come_before_fresh_ones(short: bool) -> None:
    """The system gives memory to a page when it is first written."""
    pages = Pages([LayerGroup()], [64], 2, lambda: short)
    for text in range(20):
        a = computed(pages, [text, 1, text, 2, text])
        extend(pages, a, 8)  # seven pages in all
        assert max(pages.table(a)) < 7 + (0 if short else 2 * text)  # two of each text before are cached
        pages.truncate(a, 5)
        pages.free(a)
    stats = pages.stats()
    assert stats.total == 64
    assert pages.available == (64,)
    assert (stats.evictions > 0) == short
    assert pages.lookup([19, 1, 19, 2]) == 4


def test_last_page_of_all_is_written_in_place() -> None:
    pages = make_pages(1, page_tokens=4)
    a = computed(pages, [1, 2, 3, 4])
    pages.truncate(a, 2)
    assert extend(pages, a, 2) == []
    assert pages.table(a) == [0]
    assert pages.lookup([1, 2, 3, 4]) == 0
    pages.commit(a, [3, 5])
    assert pages.lookup([1, 2, 3, 5]) == 4


def test_pinned_page_is_not_written_in_place() -> None:
    pages = make_pages(1, page_tokens=4)
    a = computed(pages, [1, 2, 3, 4])
    pages.pin(a)
    pages.truncate(a, 2)
    with pytest.raises(OutOfPages):
        extend(pages, a, 1)
    assert pages.lookup([1, 2, 3, 4]) == 4


def test_longest_unused_goes_first_and_from_its_end() -> None:
    pages = make_pages(4, page_tokens=2)
    for text in ([1, 1, 1, 1], [2, 2, 2, 2], [1, 1, 1, 1]):
        pages.free(computed(pages, text))
    assert pages.stats().cached == 4
    a = pages.new()
    found = []
    for _ in range(4):
        extend(pages, a, 2)
        found.append((pages.lookup([1, 1, 1, 1]), pages.lookup([2, 2, 2, 2])))
    assert found == [(4, 2), (4, 0), (2, 0), (0, 0)]
    assert pages.stats().evictions == 4


def test_pins_keep_a_prefix() -> None:
    pages = make_pages(4, page_tokens=2)
    a = computed(pages, [1, 2, 3, 4, 5])
    first, second = pages.pin(a), pages.pin(a)
    pages.free(a)
    stats = pages.stats()
    assert (stats.pinned, stats.cached, stats.free, pages.available) == (2, 2, 2, (2,))
    pages.unpin(first)
    b = pages.new()
    with pytest.raises(OutOfPages):
        extend(pages, b, 5)
    pages.unpin(second)
    extend(pages, b, 5)
    assert pages.lookup([1, 2, 3, 4]) == 2


def test_out_of_pages_changes_nothing() -> None:
    pages = make_pages(6, page_tokens=2)
    pages.free(computed(pages, [5, 6]))
    a = computed(pages, [1, 2, 3, 4, 7])
    b = pages.fork(a)
    before = state(pages)
    with pytest.raises(OutOfPages, match=r"pages needed: 4, free or evictable: 3") as caught:
        extend(pages, b, 6)
    assert (caught.value.needed, caught.value.free) == (4, 3)
    assert state(pages) == before
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.needed) == (str(caught.value), 4)
    assert len(extend(pages, b, 4)) == 1  # three pages: one copy, two new
    assert pages.lookup([5, 6]) == 0


class Colliding(bytes):
    """A key of the tree that has the same hash as any other."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 7


def test_colliding_hashes_find_nothing_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "make_key", Colliding)
    pages = make_pages(64, page_tokens=2)
    texts = [[i, j, k, 0, 1, 2] for i in range(2) for j in range(2) for k in range(2)]
    sequences = [computed(pages, text) for text in texts]
    assert pages.stats().used == 4 + 8 + 8
    for text, sequence in zip(texts, sequences, strict=True):
        again = pages.new(text)
        assert pages.table(again) == pages.table(sequence)
        assert pages.lookup([9, *text[1:]]) == 0
        assert pages.lookup([*text[:2], 9, *text[3:]]) == 2


def test_page_is_found_only_after_the_pages_it_was_computed_after() -> None:
    pages = make_pages(3, page_tokens=2)
    pages.free(computed(pages, [1, 2, 3, 4]))
    pages.free(computed(pages, [5, 6, 7, 8]))  # [7, 8] takes the page that held [3, 4]
    assert pages.stats().evictions == 1
    assert pages.lookup([5, 6, 7, 8]) == 4
    assert pages.lookup([5, 6, 3, 4]) == 2
    assert pages.lookup([1, 2, 7, 8]) == 2


def test_thousand_sequences_share_one_prefix() -> None:
    prefix = list(range(2048))
    shared = len(prefix) // PAGE_TOKENS
    pages = make_pages(shared + 1000, page_bytes=1, page_f32_bytes=4)
    first = computed(pages, prefix)
    for i in range(1000):
        sequence = pages.new([*prefix, i])
        extend(pages, sequence, 2048 + 20 - pages.length(sequence))
        pages.commit(sequence, range(i, i + 20))
    stats = pages.stats()
    assert stats.used == stats.nbytes == shared + 1000
    assert stats.references == shared * 1001 + 1000
    assert stats.copies == 0
    pages.free(first)
    assert pages.stats().used == shared + 1000


def test_long_prefix_is_found() -> None:
    text = [(i * 7919) % (1 << 31) for i in range(32768)]
    pages = make_pages(2048)
    computed(pages, text)
    assert pages.lookup(text) == 32768
    assert pages.lookup(np.array(text)) == 32768
    text[20000] += 1
    assert pages.lookup(text) == 20000 // PAGE_TOKENS * PAGE_TOKENS


def test_stats() -> None:
    pages = make_pages(8, page_tokens=2, page_bytes=100, page_f32_bytes=400)
    assert pages.stats().savings == pages.stats().hit_rate == 0.0
    a = computed(pages, [1, 2, 3, 4, 5])
    pages.fork(a)
    pages.new([1, 2, 9, 9])
    pages.pin(a)
    stats = pages.stats()
    assert (stats.total, stats.free, stats.used, stats.cached) == (8, 5, 3, 0)
    assert (stats.shared, stats.pinned, stats.references) == (3, 2, 7)
    assert (stats.lookups, stats.hits, stats.hit_rate) == (4, 1, 0.25)
    assert (stats.nbytes, stats.f32_bytes, stats.savings) == (300, 1200, 0.75)


def test_where_a_prompt_leaves_a_cached_text_is_counted() -> None:
    pages = make_pages(64, page_tokens=32)
    for text in ([1] * 320, [1] * 384):  # the second goes on where the first ends
        computed(pages, text)
    assert sum(pages.stats().divergence.counts) == 0
    pages.new([2] * 64)
    pages.new([1] * 128 + [2] * 64)
    pages.new([1] * 100)
    pages.new([1] * 320 + [3] * 64)
    assert pages.stats().divergence == ((1, 0, 1, 1, 0, 0, 0, 0), 128 + 320)

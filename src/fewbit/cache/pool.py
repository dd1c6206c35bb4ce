"""The pages of one group: how often each is referenced, which are cached, and which is evicted first.

A page is free (it holds nothing), used (by at least one sequence) or cached (by none, but the prefix tree finds it).
Cached pages are evicted in the order in which they were released. The system commits memory to a page when it is first
written, so `take` prefers a page that was written before. While memory is short, it evicts cached pages before it takes
a fresh one.

Where a group keeps every token, a sequence that references a page also references those before it, and releases the
last one first. So the page that was released first has no page of the group below it in the tree.

There is no compaction: any page serves any sequence, so scattered free pages are as good as consecutive ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from .stats import PageCounts
from .tree import PrefixNode

OnEvict = Callable[[int, int, PrefixNode], None]  # called with group, page and node before the page is overwritten


def never_short() -> bool:
    """Memory is never short."""
    return False


class PagePool:
    """The pages of a group, by number. It trusts its callers.

    >>> pool, node = PagePool(2), PrefixNode(None, b"tokens", 1)
    >>> page = pool.take()
    >>> pool.insert(page, node)
    >>> pool.decref(page)
    >>> node.pages == [page], pool.available
    (True, 2)

    Args:
        total: Number of pages.
        group: Number of the group.
        first: Pages at the beginning that `take` never returns.
        is_short: Whether memory is short.
        on_evict: Called before a cached page is evicted.
    """

    def __init__(
        self,
        total: int,
        group: int = 0,
        first: int = 0,
        is_short: Callable[[], bool] = never_short,
        on_evict: OnEvict | None = None,
    ) -> None:
        self.total = total
        self.group = group
        self.first = first
        self.free: list[int] = []  # written before; the last one is taken first
        # One entry for each page up to the last that was ever taken: the others are fresh.
        self.references = [1] * first  # how many sequences use the page
        self.pins = [0] * first
        self.nodes: list[PrefixNode | None] = [None] * first  # where the page is in the prefix tree
        self.idle: OrderedDict[int, None] = OrderedDict()  # cached and not pinned, the next to be evicted first
        self.evictions = 0
        self._is_short = is_short
        self._on_evict = on_evict

    @property
    def fresh(self) -> int:
        """Pages that were never taken."""
        return self.total - len(self.references)

    @property
    def available(self) -> int:
        """Pages that can be taken: the free ones, and cached ones that are not pinned."""
        return len(self.free) + self.fresh + len(self.idle)

    def insert(self, page: int, node: PrefixNode) -> None:
        """Put a page in the tree. It is read-only from now on."""
        node.pages[self.group] = page
        self.nodes[page] = node

    def has(self, node: PrefixNode | None) -> bool:
        """Whether a node of the tree has a page of this group."""
        return node is not None and node.pages[self.group] is not None

    def share(self, page: int, node: PrefixNode) -> int:
        """The page of a node. If it has none, `page` becomes it; else the reference moves from `page` to it."""
        known = node.pages[self.group]
        if known is None:
            self.insert(page, node)
            return page
        self.incref(known)
        self.decref(page)
        return known

    def is_read_only(self, page: int) -> bool:
        """Whether a sequence that uses the page must not write to it."""
        return self.references[page] > 1 or self.nodes[page] is not None

    def is_kept(self, page: int) -> bool:
        """Whether a page would stay in use, or pinned, after one sequence released it."""
        return self.references[page] > 1 or self.pins[page] > 0

    def take(self) -> int:
        """A page to write, with one reference. A cached page is evicted if no page is free, or memory is short."""
        if self.free:
            page = self.free.pop()
        elif self.fresh and not (self.idle and self._is_short()):
            page = self._touch()
        else:
            page = self._evict()
        self.references[page] = 1
        return page

    def incref(self, page: int) -> None:
        self.references[page] += 1
        self.idle.pop(page, None)

    def decref(self, page: int) -> None:
        self.references[page] -= 1
        self._rest(page)

    def pin(self, page: int) -> None:
        """Protect a page of the tree from eviction."""
        self.pins[page] += 1
        self.idle.pop(page, None)

    def unpin(self, page: int) -> None:
        self.pins[page] -= 1
        self._rest(page)

    def counts(self) -> PageCounts:
        references = self.references[self.first :]
        used = sum(map(bool, references))
        return PageCounts(
            total=self.total - self.first,
            free=len(self.free) + self.fresh,
            used=used,
            cached=len(references) - len(self.free) - used,
            shared=sum(count > 1 for count in references),
            pinned=sum(map(bool, self.pins)),
            references=sum(references),
            evictions=self.evictions,
        )

    def _rest(self, page: int) -> None:
        if self.references[page] or self.pins[page]:
            return
        if self.nodes[page] is None:
            self.free.append(page)
        else:
            self.idle[page] = None

    def _touch(self) -> int:
        self.references.append(0)
        self.pins.append(0)
        self.nodes.append(None)
        return len(self.references) - 1

    def _evict(self) -> int:
        page, _ = self.idle.popitem(last=False)
        node = self.nodes[page]
        assert node is not None
        if self._on_evict is not None:
            self._on_evict(self.group, page, node)
        self.nodes[page] = node.pages[self.group] = None
        node.prune()
        self.evictions += 1
        return page

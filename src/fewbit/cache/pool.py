"""The pages themselves: how often each is held, which can be found again, which goes first when room is needed.

A page is free (it holds nothing), used (in the table of at least one sequence) or cached (in no table, but in the
index, so that its content can be found). The index is a tree: an entry's key is the serial number of the entry before
it and the tokens of its page. The dictionary hashes the key and compares it whole, and a serial number is given out
once. So an entry is found by exactly the tokens from the first position to the end of its page, whatever the hashes.

Whoever holds a page of the index holds the pages before it too, and lets go of the last one first. So the page that
was let go of first has no entry after it, and evicting it leaves nothing in the index that cannot be reached.

There is no compaction: any page serves any sequence, so free pages are as good scattered as in a row.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from itertools import count

Key = tuple[int, bytes]  # the serial number of the entry before, the tokens of the page

ROOT = 0  # stands before the first page


def make_key(parent: int, tokens: bytes) -> Key:
    return parent, tokens


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of pages, now, and of events, since the start.

    >>> Stats(total=8, free=2, used=4, cached=2, page_bytes=10, page_f32_bytes=40).savings
    0.75
    """

    total: int
    free: int  # total = free + used + cached
    used: int
    cached: int
    shared: int = 0  # used by more than one sequence
    pinned: int = 0  # used or cached, and not to be evicted
    references: int = 0  # pages that the sequences would use if none was shared
    lookups: int = 0  # full pages of prompts that were looked for
    hits: int = 0
    copies: int = 0  # of a page, before a write
    evictions: int = 0
    page_bytes: int = 0
    page_f32_bytes: int = 0

    @property
    def hit_rate(self) -> float:
        return self.hits / self.lookups if self.lookups else 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of the pages that hold something."""
        return (self.used + self.cached) * self.page_bytes

    @property
    def f32_bytes(self) -> int:
        """Bytes that the same pages would take in f32."""
        return (self.used + self.cached) * self.page_f32_bytes

    @property
    def savings(self) -> float:
        """The part of the f32 bytes that is not needed."""
        return 1 - self.nbytes / self.f32_bytes if self.f32_bytes else 0.0


class Pool:
    """Pages by number. It trusts its caller, `Pages`, which checks what users give.

    >>> pool = Pool(2)
    >>> page = pool.take()
    >>> pool.enter(page, make_key(ROOT, b"tokens"))
    >>> pool.release(page)
    >>> pool.find(make_key(ROOT, b"tokens")) == page, pool.available
    (True, 2)
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = list(range(total - 1, -1, -1))  # the last one is taken first
        self.references = [0] * total  # how many tables hold the page
        self.pins = [0] * total
        self.serials = [ROOT] * total  # of the page's entry in the index; ROOT: it has none
        self.keys: dict[int, Key] = {}  # page -> its key in the index
        self.index: dict[Key, int] = {}  # key -> its page
        self.idle: OrderedDict[int, None] = OrderedDict()  # cached and not pinned, first let go first
        self.evictions = 0
        self._serials = count(ROOT + 1)

    @property
    def available(self) -> int:
        """Pages that can be taken: the free ones, and cached ones that are not pinned."""
        return len(self.free) + len(self.idle)

    def available_without(self, page: int) -> int:
        """Pages that can be taken after one holder of a frozen page let go of it."""
        return self.available + (self.references[page] == 1 and not self.pins[page])

    def find(self, key: Key) -> int | None:
        return self.index.get(key)

    def find_all(self, tokens: array[int], page_tokens: int) -> list[int]:
        """The pages that hold the beginning of a text, as far as full pages of it are in the index."""
        data, width = tokens.tobytes(), page_tokens * tokens.itemsize
        found: list[int] = []
        parent = ROOT
        for end in range(width, len(data) + 1, width):
            page = self.find(make_key(parent, data[end - width : end]))
            if page is None:
                break
            found.append(page)
            parent = self.serials[page]
        return found

    def enter(self, page: int, key: Key) -> None:
        """Put a page in the index; from now on its content must not change."""
        self.index[key] = page
        self.keys[page] = key
        self.serials[page] = next(self._serials)

    def is_frozen(self, page: int) -> bool:
        """Whether a page must not be written by the sequence that asks, one of its holders."""
        return self.references[page] > 1 or self.serials[page] != ROOT

    def take(self) -> int:
        """A page to write, held once. A cached page is evicted only if no page is free."""
        page = self.free.pop() if self.free else self._evict()
        self.references[page] = 1
        return page

    def hold(self, page: int) -> None:
        self.references[page] += 1
        self.idle.pop(page, None)

    def release(self, page: int) -> None:
        self.references[page] -= 1
        self._rest(page)

    def pin(self, page: int) -> None:
        """Keep a page of the index that is held, also when it is held no more."""
        self.pins[page] += 1

    def unpin(self, page: int) -> None:
        self.pins[page] -= 1
        self._rest(page)

    def stats(self, **events: int) -> Stats:
        used = sum(map(bool, self.references))
        return Stats(
            total=self.total,
            free=len(self.free),
            used=used,
            cached=self.total - len(self.free) - used,
            shared=sum(held > 1 for held in self.references),
            pinned=sum(map(bool, self.pins)),
            references=sum(self.references),
            evictions=self.evictions,
            **events,
        )

    def _rest(self, page: int) -> None:
        if self.references[page] or self.pins[page]:
            return
        if self.serials[page] == ROOT:
            self.free.append(page)
        else:
            self.idle[page] = None

    def _evict(self) -> int:
        page, _ = self.idle.popitem(last=False)
        del self.index[self.keys.pop(page)]
        self.serials[page] = ROOT
        self.evictions += 1
        return page

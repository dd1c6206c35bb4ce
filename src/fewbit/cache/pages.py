"""Who owns which page of the KV cache. There are no arrays here: the owner of the arrays does what this file decides.

A sequence is a table of pages, and a page has room for K and V of `page_tokens` tokens in all layers. Its life:

- `allocate`: the pages that hold the beginning of the prompt already are shared, not computed again.
- `extend`: room for more tokens. The owner makes the copies, in their order, and then writes where the spans say.
- `commit`: the owner says that K and V of these tokens are in place in all layers. Only now can a full page be found by
  others. If the computation failed, nothing was committed, nobody can find the pages, and `truncate` gives them back.
- `fork`, `truncate`, `free`: at any time. Pages in the index stay cached after `free` until their room is needed.

A page is written only while one sequence alone holds it and it is not in the index; otherwise `extend` copies it first.
That is also so after truncating into a page of the index: the old text can still be found, and nothing is lost.
A page enters the index while one sequence alone holds it, since two might commit different tokens: commit, then fork.
If a page with the same tokens is in the index by then, `commit` puts that one in the table: look at `table` afterwards.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import OutOfPages, PositionError, UnknownId
from .arguments import to_count, to_integer, to_size, to_tokens
from .pool import ROOT, Key, Pool, Stats, make_key

PAGE_TOKENS = 32


class Span(NamedTuple):
    """Where some tokens in a row go: `tokens` slots of a page, from `slot` on."""

    page: int
    slot: int
    tokens: int


class Writes(NamedTuple):
    """What `extend` asks of the owner of the arrays: first the copies (source, destination), then new K and V."""

    copies: list[tuple[int, int]]
    spans: list[Span]


@dataclass(slots=True)
class _Sequence:
    table: list[int]
    length: int
    tokens: array[int]  # those committed
    entered: int  # pages at the beginning of the table that are in the index


class Pages:
    """The pages of a KV cache, and the sequences that use them. Not for several threads at once.

    >>> pages = Pages(total=8, page_tokens=4)
    >>> a = pages.allocate()
    >>> pages.extend(a, 5)
    Writes(copies=[], spans=[Span(page=0, slot=0, tokens=4), Span(page=1, slot=0, tokens=1)])
    >>> pages.commit(a, [11, 12, 13, 14, 15])
    >>> b = pages.allocate([11, 12, 13, 14, 99])  # its first page is known
    >>> pages.length(b), pages.table(b)
    (4, [0])
    """

    def __init__(
        self, total: int, page_tokens: int = PAGE_TOKENS, page_bytes: int = 0, page_f32_bytes: int = 0
    ) -> None:
        self.page_tokens = to_size(page_tokens, "page_tokens", least=1)
        self.page_bytes = to_size(page_bytes, "page_bytes")
        self.page_f32_bytes = to_size(page_f32_bytes, "page_f32_bytes")
        self._pool = Pool(to_size(total, "total", least=1))
        self._sequences: dict[int, _Sequence] = {}
        self._pins: dict[int, list[int]] = {}
        self._ids = itertools.count(1)  # never given out twice, so that a stale id is noticed
        self._lookups = self._hits = self._copies = 0

    @property
    def total(self) -> int:
        return self._pool.total

    @property
    def available(self) -> int:
        """Pages that could be had now: free, or cached and not pinned."""
        return self._pool.available

    def allocate(self, tokens: Iterable[int] = ()) -> int:
        """A new sequence that begins with the cached full pages of a prompt; `length` says how many tokens that is.

        The rest of the prompt is for `extend`. If a token is to follow the prompt, one token at least must be
        computed: give all but the last.

        >>> pages = Pages(total=8, page_tokens=2)
        >>> pages.length(pages.allocate([1, 2, 3]))
        0
        """
        prompt = to_tokens(tokens)
        table = self._pool.find_all(prompt, self.page_tokens)
        for page in table:
            self._pool.hold(page)
        self._lookups += len(prompt) // self.page_tokens
        self._hits += len(table)
        length = len(table) * self.page_tokens
        return self._add(_Sequence(table, length, prompt[:length], len(table)))

    def lookup(self, tokens: Iterable[int]) -> int:
        """How many tokens `allocate` would find. This changes nothing, and is not counted.

        >>> Pages(total=8).lookup(range(100))
        0
        """
        return len(self._pool.find_all(to_tokens(tokens), self.page_tokens)) * self.page_tokens

    def extend(self, sequence: int, count: int = 1) -> Writes:
        """Make a sequence longer by a number of tokens: the copies to make, then the places to write.

        Copies of several calls are made in the order of the calls, before anything is written.

        >>> pages = Pages(total=2, page_tokens=4)
        >>> a = pages.allocate()
        >>> pages.extend(a, 3).spans
        [Span(page=0, slot=0, tokens=3)]
        >>> b = pages.fork(a)
        >>> pages.extend(b, 1)
        Writes(copies=[(0, 1)], spans=[Span(page=1, slot=3, tokens=1)])
        >>> pages.extend(a, 2)
        Traceback (most recent call last):
            ...
        fewbit.errors.OutOfPages: the KV cache is full: pages needed: 1, free or evictable: 0
        """
        start = self._get(sequence).length
        copies = self.grow(sequence, count)
        return Writes(copies, self._spans(self._get(sequence), start))

    def grow(self, sequence: int, count: int = 1) -> list[tuple[int, int]]:
        """As `extend`, for an owner who finds the places to write by `table`: the copies alone.

        >>> pages = Pages(total=2, page_tokens=4)
        >>> pages.grow(pages.allocate(), 5)
        []
        """
        record = self._get(sequence)
        start, length = record.length, record.length + to_count(count)
        first = start // self.page_tokens  # the first page to write
        frozen = first < len(record.table) and length > start and self._pool.is_frozen(record.table[first])
        more = self._pages(length) - len(record.table)
        free = self._pool.available_without(record.table[first]) if frozen else self._pool.available
        if more + frozen > free:
            raise OutOfPages(more + frozen, free)
        copies = self._copy_last(record) if frozen else []
        record.table.extend(self._pool.take() for _ in range(more))
        record.length = length
        return copies

    def commit(self, sequence: int, tokens: Iterable[int]) -> None:
        """Say that K and V of the next tokens, in all layers, are written; pages that are full now can be found.

        Tokens follow those committed before, and may be fewer than `extend` made room for: of a draft, commit what
        was accepted and truncate the rest. An owner who knows no tokens commits nothing and shares by `fork` alone.

        >>> pages = Pages(total=8, page_tokens=2)
        >>> a = pages.allocate()
        >>> writes = pages.extend(a, 5)
        >>> pages.lookup([1, 2, 3, 4, 5])
        0
        >>> pages.commit(a, [1, 2, 3, 4, 5])
        >>> pages.lookup([1, 2, 3, 4, 5])
        4
        """
        record, new = self._get(sequence), to_tokens(tokens)
        room = record.length - len(record.tokens)
        if len(new) > room:
            raise PositionError(f"sequence {sequence} has {room} tokens to commit, {len(new)} were given")
        record.tokens.extend(new)
        self._enter(record)

    def step(self, sequence: int) -> bool:
        """`extend` by one token where its page is there and nobody else's, quickly. False: nothing was done.

        >>> pages = Pages(total=2, page_tokens=4)
        >>> a = pages.allocate()
        >>> pages.step(a), pages.grow(a), pages.step(a), pages.length(a)
        (False, [], True, 2)
        """
        record = self._get(sequence)
        if record.length % self.page_tokens == 0 or self._pool.is_frozen(record.table[-1]):
            return False
        record.length += 1
        return True

    def settle(self, sequence: int, token: int) -> bool:
        """`commit` one token that is the only one and fills no page, quickly. False: nothing was done.

        >>> pages = Pages(total=2, page_tokens=4)
        >>> a = pages.allocate()
        >>> copies = pages.grow(a, 3)
        >>> pages.settle(a, 1), pages.commit(a, [1, 2]), pages.settle(a, 3), list(pages.tokens(a))
        (False, None, True, [1, 2, 3])
        """
        record = self._get(sequence)
        count = len(record.tokens) + 1
        if count != record.length or count % self.page_tokens == 0:
            return False
        record.tokens.append(token)
        return True

    def entered(self, sequence: int) -> int:
        """How many pages of a sequence others can find."""
        return self._get(sequence).entered

    def fork(self, sequence: int) -> int:
        """A new sequence with the same content. Pages are shared; the first that writes to one gets a copy.

        Write what `extend` gave out before: a copy holds what is in the page when it is made.

        >>> pages = Pages(total=8, page_tokens=2)
        >>> a = pages.allocate()
        >>> writes = pages.extend(a, 3)
        >>> pages.table(pages.fork(a)) == pages.table(a)
        True
        """
        record = self._get(sequence)
        for page in record.table:
            self._pool.hold(page)
        return self._add(_Sequence(record.table[:], record.length, record.tokens[:], record.entered))

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens of a sequence.

        >>> pages = Pages(total=8, page_tokens=2)
        >>> a = pages.allocate()
        >>> writes = pages.extend(a, 8)
        >>> pages.truncate(a, 3)
        >>> pages.length(a), pages.table(a)
        (3, [0, 1])
        """
        record = self._get(sequence)
        length = to_count(length)
        if length > record.length:
            raise PositionError(f"sequence {sequence} has {record.length} tokens, it cannot be cut to {length}")
        for _ in range(len(record.table) - self._pages(length)):
            self._pool.release(record.table.pop())  # the last page first: see pool.py
        record.length = length
        record.entered = min(record.entered, length // self.page_tokens)
        del record.tokens[length:]

    def free(self, sequence: int) -> None:
        """Give a sequence back. What it committed stays cached as long as there is room.

        >>> pages = Pages(total=8)
        >>> a = pages.allocate()
        >>> pages.free(a)
        >>> pages.free(a)
        Traceback (most recent call last):
            ...
        fewbit.errors.UnknownId: there is no sequence 1
        """
        self.truncate(sequence, 0)
        del self._sequences[sequence]

    def pin(self, sequence: int) -> int:
        """Keep the pages of a sequence that are in the index, even after `free`, until `unpin` of what this returns.

        >>> pages = Pages(total=2, page_tokens=2)
        >>> a = pages.allocate()
        >>> writes = pages.extend(a, 2)
        >>> pages.commit(a, [1, 2])
        >>> pin = pages.pin(a)
        >>> pages.free(a)
        >>> pages.available
        1
        >>> pages.unpin(pin)
        >>> pages.available
        2
        """
        record = self._get(sequence)
        pinned = record.table[: record.entered]
        for page in pinned:
            self._pool.pin(page)
        pin = next(self._ids)
        self._pins[pin] = pinned
        return pin

    def unpin(self, pin: int) -> None:
        """Let pages go that `pin` kept.

        >>> Pages(total=8).unpin(1)
        Traceback (most recent call last):
            ...
        fewbit.errors.UnknownId: there is no pin 1
        """
        pinned = self._pins.pop(to_integer(pin, "a pin"), None)
        if pinned is None:
            raise UnknownId(f"there is no pin {pin}")
        for page in reversed(pinned):
            self._pool.unpin(page)

    def length(self, sequence: int) -> int:
        """The number of tokens of a sequence."""
        return self._get(sequence).length

    def committed(self, sequence: int) -> int:
        """The number of tokens of a sequence that were committed."""
        return len(self._get(sequence).tokens)

    def tokens(self, sequence: int) -> array[int]:
        """The tokens of a sequence that were committed."""
        return self._get(sequence).tokens[:]

    def table(self, sequence: int) -> list[int]:
        """The pages of a sequence: position p is in slot `p % page_tokens` of page `table[p // page_tokens]`."""
        return self._get(sequence).table[:]

    def locate(self, sequence: int, position: int) -> tuple[int, int]:
        """The page and the slot of a position.

        >>> pages = Pages(total=8, page_tokens=4)
        >>> a = pages.allocate()
        >>> writes = pages.extend(a, 6)
        >>> pages.locate(a, 5)
        (1, 1)
        """
        record = self._get(sequence)
        number, slot = divmod(to_integer(position, "a position"), self.page_tokens)
        if not 0 <= position < record.length:
            raise PositionError(f"sequence {sequence} has {record.length} tokens, there is no position {position}")
        return record.table[number], slot

    def stats(self) -> Stats:
        """Counts of pages and events; it looks at each page once.

        >>> Pages(total=8).stats().free
        8
        """
        return self._pool.stats(
            lookups=self._lookups,
            hits=self._hits,
            copies=self._copies,
            page_bytes=self.page_bytes,
            page_f32_bytes=self.page_f32_bytes,
        )

    def _get(self, sequence: int) -> _Sequence:
        record = self._sequences.get(to_integer(sequence, "a sequence"))
        if record is None:
            raise UnknownId(f"there is no sequence {sequence}")
        return record

    def _add(self, record: _Sequence) -> int:
        sequence = next(self._ids)
        self._sequences[sequence] = record
        return sequence

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def _enter(self, record: _Sequence) -> None:
        pool = self._pool
        while (record.entered + 1) * self.page_tokens <= len(record.tokens):
            key, page = self._next_key(record), record.table[record.entered]
            known = pool.find(key)
            if known is not None:
                pool.hold(known)
                pool.release(page)
                record.table[record.entered] = known
            elif pool.references[page] == 1:
                pool.enter(page, key)
            else:
                return  # forked before it was committed; tried again at the next commit
            record.entered += 1

    def _next_key(self, record: _Sequence) -> Key:
        done = record.entered
        parent = self._pool.serials[record.table[done - 1]] if done else ROOT
        return make_key(parent, record.tokens[done * self.page_tokens : (done + 1) * self.page_tokens].tobytes())

    def _copy_last(self, record: _Sequence) -> list[tuple[int, int]]:
        source = record.table.pop()
        self._pool.release(source)
        page = self._pool.take()
        record.table.append(page)
        if page == source:
            return []  # the last page of all: it left the index and is written in place
        self._copies += 1
        return [(source, page)]

    def _spans(self, record: _Sequence, start: int) -> list[Span]:
        spans = []
        while start < record.length:
            number, slot = divmod(start, self.page_tokens)
            tokens = min(self.page_tokens - slot, record.length - start)
            spans.append(Span(record.table[number], slot, tokens))
            start += tokens
        return spans

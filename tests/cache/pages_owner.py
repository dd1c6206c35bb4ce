"""What the owner of the arrays does with pages: it keeps a copy of all that sequences hold."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from fewbit.cache.groups import ZERO_SLOT, LayerGroup
from fewbit.cache.pages import Pages
from fewbit.errors import OutOfPages, PositionError

MAX_SEQUENCES = 8
Text = tuple[int, ...]


@dataclass
class Copy:
    """A sequence of its own: all its tokens, how many are in the arrays, how many were committed."""

    namespace: str
    tokens: list[int]
    written: int
    committed: int
    starts: list[int] = field(default_factory=list)  # the first token that each attention group has
    ends: list[int] = field(default_factory=list)  # of the steps that were not committed


class PagesOwner:
    def begin(self, groups: list[LayerGroup], totals: list[int], page_tokens: int, short: bool) -> None:
        self.pages = Pages(groups, totals, page_tokens, lambda: short)
        self.size = page_tokens
        self.copies: dict[int, Copy] = {}
        self.pins: dict[int, list[tuple[int, int]]] = {}
        self.gone = [0]  # ids given back or never given out
        self.seen: list[list[int]] = [[]]  # texts that may be in the tree
        self.cells: dict[tuple[int, int, int], tuple[str, Text]] = {}  # (group, page, place) -> all tokens up to it
        self.states: dict[int, tuple[str, Text]] = {}  # slot -> all tokens

    @property
    def attention(self) -> list[LayerGroup]:
        return [group for group in self.pages.groups if not group.is_recurrent]

    def pick(self, which: int) -> int:
        sequences = list(self.copies) or [self.add([], "")]
        return sequences[which % len(sequences)]

    def make_room(self) -> None:
        if len(self.copies) == MAX_SEQUENCES:
            self.let_go(next(iter(self.copies)))

    def let_go(self, sequence: int) -> None:
        self.pages.free(sequence)
        del self.copies[sequence]
        self.gone.append(sequence)

    def is_pending(self, copy: Copy) -> bool:
        return self.pages.space.is_recurrent and len(copy.tokens) > copy.committed

    def add(self, text: list[int], name: str) -> int:
        self.make_room()
        found = self.pages.lookup(text, name)
        sequence = self.pages.new(text, name)
        assert self.pages.length(sequence) == found
        starts = [group.first_seen(found) // self.size * self.size for group in self.attention]
        self.copies[sequence] = Copy(name, text[:found], found, found, starts)
        return sequence

    def grow(self, work: dict[int, list[int]]) -> bool:
        requests = [(sequence, len(text)) for sequence, text in work.items()]
        needed = [self.needed(sequence, count) for sequence, count in requests]
        if any(sum(n) > free for n, free in zip(zip(*needed, strict=True), self.pages.available, strict=False)):
            self.refused(OutOfPages, lambda: self.pages.extend(requests))
            self.let_go(next(iter(self.copies)))  # as an engine does, so that things go on
            return False
        for group, pairs in self.pages.extend(requests).items():
            for source, destination in pairs:
                assert source != destination
                for place in range(self.size):
                    self.cells[group, destination, place] = self.cells.get((group, source, place), ("", ()))
        for sequence, text in work.items():
            self.copies[sequence].tokens += text
            self.copies[sequence].ends += [len(self.copies[sequence].tokens)] if text else []
        return True

    def needed(self, sequence: int, more: int) -> list[int]:
        """Pages that more tokens need, in each group."""
        length, needed = len(self.copies[sequence].tokens), []
        for group in range(len(self.attention)):
            table = self.pages.table(sequence, group)
            pages = -(-(length + more) // self.size) - len(table)
            others = {page for other in self.copies if other != sequence for page in self.held(other, group)}
            pinned = {page for pin in self.pins.values() for number, page in pin if number == group}
            pages += more > 0 and length % self.size > 0 and table[-1] in others | pinned
            needed.append(pages)
        needed += [int(more > 0)] if self.pages.space.is_recurrent else []
        assert self.pages.needed(sequence, more) == tuple(needed)
        return needed

    def held(self, sequence: int, group: int) -> list[int]:
        return self.pages.table(sequence, group)[self.copies[sequence].starts[group] // self.size :]

    def fill(self, sequence: int) -> None:
        copy, state = self.copies[sequence], self.pages.state(sequence)
        for group, start in enumerate(copy.starts):
            pool = self.pages.space.pools[group]
            for position in range(max(start, copy.written), len(copy.tokens)):
                page = state.tables[group][position // self.size]
                assert pool.nodes[page] is None, "a page of the tree is written"
                self.cells[group, page, position % self.size] = copy.namespace, tuple(copy.tokens[: position + 1])
        for end, slot in state.fresh:
            assert slot != ZERO_SLOT
            self.states[slot] = copy.namespace, tuple(copy.tokens[:end])
        copy.written = len(copy.tokens)

    def commit_some(self, sequence: int, count: int) -> None:
        copy = self.copies[sequence]
        end = min(copy.committed + count, copy.written)
        new = copy.tokens[copy.committed : end]
        if self.is_pending(copy) and end not in copy.ends:
            self.refused(PositionError, lambda: self.pages.commit(sequence, new))
            return
        self.pages.commit(sequence, new)
        copy.committed = end
        copy.ends = [one for one in copy.ends if one > end]
        first = [group.first_seen(end) // self.size * self.size for group in self.attention]
        copy.starts = [max(start, now) for start, now in zip(copy.starts, first, strict=True)]
        self.seen.append(copy.tokens[:end])

    def cut(self, sequence: int, length: int) -> bool:
        copy, pages = self.copies[sequence], -(-length // self.size)
        if self.is_lost(copy, length) and length < len(copy.tokens):
            self.refused(PositionError, lambda: self.pages.truncate(sequence, length))
            return False
        try:
            self.pages.truncate(sequence, length)
        except PositionError:
            assert self.pages.space.is_recurrent
            assert length not in (0, copy.committed, *copy.ends)
            return False
        if length < len(copy.tokens):
            copy.starts = [min(start, pages * self.size) for start in copy.starts]
        del copy.tokens[length:]
        copy.written, copy.committed = min(copy.written, length), min(copy.committed, length)
        copy.ends = [end for end in copy.ends if end <= length]
        return True

    def is_lost(self, copy: Copy, length: int) -> bool:
        """Whether a window would see tokens that were let go."""
        firsts, pages = [group.first_seen(length) for group in self.attention], -(-length // self.size)
        return any(a < b and a // self.size < pages for a, b in zip(firsts, copy.starts, strict=True))

    def refused(self, kind: type[Exception], call: object) -> None:
        before = self.snapshot()
        with pytest.raises(kind):
            call()  # type: ignore[operator]
        assert self.snapshot() == before

    def snapshot(self) -> tuple[object, ...]:
        tables = {s: [t[:] for t in self.pages.state(s).tables] for s in self.copies}
        slots = {s: (self.pages.state(s).slot, self.pages.state(s).fresh[:]) for s in self.copies}
        pools = [(list(pool.idle), pool.free[:], pool.nodes[:]) for pool in self.pages.space.pools]
        return self.pages.stats(), tables, slots, pools

"""One sequence: how it takes, shares and releases pages.

Nothing is checked here: `Pages` has checked the arguments, and that there are enough pages.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..arrays import Floats
from .groups import ZERO_SLOT
from .space import PageSpace
from .tree import PrefixNode

Copies = dict[int, list[tuple[int, int]]]  # group -> (source, destination)


@dataclass(slots=True, eq=False)
class SequenceState:
    """Pages, tokens and slots of a sequence."""

    space: PageSpace
    node: PrefixNode  # of its last page in the prefix tree, or the root of its namespace
    tables: list[array[int]]  # pages, by attention group; entries before `starts` are 0 and unused
    starts: list[int]  # the first token that is still there, by attention group
    length: int
    tokens: array[int]  # those committed
    inserted: int = 0  # pages at the beginning that are in the tree
    slot: int = ZERO_SLOT  # holds the recurrent state after the committed tokens
    fresh: list[tuple[int, int]] = field(default_factory=list)  # for each step not committed: its end, and its slot
    hidden: tuple[int, Floats] | None = None  # rows of the last tokens, kept by the executor, and the first's position

    @property
    def uncommitted(self) -> int:
        return self.length - len(self.tokens)

    @property
    def next_slot(self) -> int:
        """The slot that the last step writes."""
        return self.fresh[-1][1] if self.fresh else self.slot

    def slot_read(self, length: int) -> int:
        """The slot that a step after so many tokens reads."""
        return next((slot for end, slot in self.fresh if end == length), self.slot)

    def find_slot(self, length: int) -> int | None:
        """The slot that holds the state after so many tokens, if there is one."""
        depth, rest = divmod(length, self.space.page_tokens)
        if length >= len(self.tokens):
            ends = (len(self.tokens), *(end for end, _ in self.fresh))
            return self.slot_read(length) if length in ends else None
        if length == 0:
            return ZERO_SLOT
        return None if rest or depth > self.inserted else self.ancestor(depth).pages[-1]

    def ancestor(self, depth: int) -> PrefixNode:
        """The node of the page before which there are `depth` - 1 others; 0: the root."""
        node = self.node
        for _ in range(self.inserted - depth):
            assert node.parent is not None
            node = node.parent
        return node

    def needed(self, count: int) -> tuple[int, ...]:
        """Pages, by group, that `grow` takes for so many new tokens."""
        if not count:
            return (0,) * len(self.space.groups)
        pages = self.space.pages(self.length + count)
        needed = [pages - len(table) for table in self.tables]
        if self.length % self.space.page_tokens:
            for number, table in enumerate(self.tables):  # a copy takes none if the page can then be evicted
                needed[number] += self.space.pools[number].is_kept(table[-1])
        if self.space.is_recurrent:
            needed.append(1)
        return tuple(needed)

    def grow(self, count: int, copies: Copies) -> None:
        """Take pages for new tokens. A read-only page is replaced by a copy, which is added to `copies`."""
        if not count:
            return
        pools = self.space.pools
        if self.length % self.space.page_tokens:
            for number, table in enumerate(self.tables):
                if pools[number].is_read_only(table[-1]):
                    self._copy_last(number, table, copies)
        self.length += count
        pages = self.space.pages(self.length)
        for number, table in enumerate(self.tables):
            while len(table) < pages:
                table.append(pools[number].take())
        if self.space.is_recurrent:
            self.fresh.append((self.length, pools[-1].take()))

    def skip(self, group: int, start: int) -> None:
        """Have no tokens before `start` in a group."""
        self.release(group, len(self.tables[group]))
        self.tables[group] = released_pages(start // self.space.page_tokens)
        self.starts[group] = start

    def insert(self) -> None:
        """Put pages that are full and committed in the tree, or use those that are there already."""
        size = self.space.page_tokens
        while (self.inserted + 1) * size <= len(self.tokens):
            number = self.inserted
            key = self.space.tree.key(self.tokens, number)
            node = self.node.children.get(key)
            own = [
                (pool, table)
                for pool, table, start in zip(self.space.pools, self.tables, self.starts, strict=False)
                if number * size >= start
            ]
            if any(pool.references[table[number]] > 1 and not pool.has(node) for pool, table in own):
                return  # forked before it was committed; tried again at the next commit
            node = node or PrefixNode(self.node, key, len(self.space.groups))
            for pool, table in own:
                table[number] = pool.share(table[number], node)
            self._move(node, number + 1)
        if self.space.is_recurrent and self.inserted * size == len(self.tokens):
            self.slot = self.space.pools[-1].share(self.slot, self.node)

    def release(self, group: int, end: int) -> None:
        """Release the pages of a table before page number `end`."""
        table, first = self.tables[group], self.starts[group] // self.space.page_tokens
        for place in range(first, end):
            self.space.pools[group].decref(table[place])
            table[place] = 0
        if first < end:
            self.starts[group] = end * self.space.page_tokens

    def cut(self, length: int) -> None:
        """Drop all tokens from `length` on."""
        if self.space.is_recurrent:
            self._cut_slots(length)
        for group in range(len(self.tables)):
            self._cut_table(group, self.space.pages(length))
        depth = length // self.space.page_tokens
        if self.inserted > depth:
            self._move(self.ancestor(depth), depth)
        self.length = length
        del self.tokens[length:]

    def copy(self, length: int) -> SequenceState:
        """A sequence with the first tokens of this one, which shares their pages."""
        size, pools, pages = self.space.page_tokens, self.space.pools, self.space.pages(length)
        for pool, table, start in zip(pools, self.tables, self.starts, strict=False):
            for page in table[start // size : pages]:
                pool.incref(page)
        slot = self.find_slot(length) if self.space.is_recurrent else ZERO_SLOT
        assert slot is not None
        if self.space.is_recurrent:
            pools[-1].incref(slot)
        depth = min(self.inserted, length // size)
        node = self.ancestor(depth)
        node.holders += 1
        starts = [min(start, pages * size) for start in self.starts]
        tables = [table[:pages] for table in self.tables]
        tokens = self.tokens[:length]
        return SequenceState(self.space, node, tables, starts, length, tokens, depth, slot, hidden=self.hidden)

    def free(self) -> None:
        """Release all pages."""
        self.cut(0)
        if self.space.is_recurrent:
            self.space.pools[-1].decref(self.slot)
        self.node.holders -= 1
        self.node.prune()

    def _move(self, node: PrefixNode, inserted: int) -> None:
        """Continue from another node."""
        before, self.node, self.inserted = self.node, node, inserted
        node.holders += 1
        before.holders -= 1
        before.prune()

    def _copy_last(self, group: int, table: array[int], copies: Copies) -> None:
        source, pool = table[-1], self.space.pools[group]
        pool.decref(source)
        table[-1] = pool.take()
        if table[-1] != source:  # else it was the last page of all: it left the tree and is written in place
            copies.setdefault(group, []).append((source, table[-1]))

    def _cut_table(self, group: int, pages: int) -> None:
        """Keep the first pages of a table. The last one is released first: see pool.py."""
        table, size = self.tables[group], self.space.page_tokens
        first = self.starts[group] // size
        while len(table) > pages:
            page = table.pop()
            if len(table) >= first:
                self.space.pools[group].decref(page)
        self.starts[group] = min(self.starts[group], pages * size)

    def _cut_slots(self, length: int) -> None:
        pool = self.space.pools[-1]
        while self.fresh and self.fresh[-1][0] > length:
            pool.decref(self.fresh.pop()[1])
        slot = self.find_slot(length)
        if length < len(self.tokens) and slot is not None:
            pool.incref(slot)
            pool.decref(self.slot)
            self.slot = slot


def begin_sequence(space: PageSpace, nodes: Sequence[PrefixNode], prompt: array[int], namespace: str) -> SequenceState:
    """A sequence that begins with the pages of these nodes."""
    size, depth = space.page_tokens, len(nodes)
    node = nodes[-1] if nodes else space.tree.root(namespace)
    node.holders += 1
    starts = [group.first_page(depth, size) * size for group in space.attention]
    tables = [released_pages(start // size) for start in starts]
    state = SequenceState(space, node, tables, starts, depth * size, prompt[: depth * size], depth)
    for pool, page in space.kept(nodes):
        pool.incref(page)
        if pool.group < len(tables):
            tables[pool.group].append(page)
        else:
            state.slot = page
    if space.is_recurrent and not nodes:
        space.pools[-1].incref(ZERO_SLOT)
    return state


def released_pages(pages: int) -> array[int]:
    """The beginning of a table whose first pages were released."""
    return array("i", bytes(4 * pages))

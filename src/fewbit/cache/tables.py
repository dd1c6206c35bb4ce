"""Tables of pages, in all groups: what sequences take, share and let go of. `Pages` says when.

Nothing here is refused: `Pages` has checked what users give, and that there is room.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from .groups import ZERO_SLOT, Group
from .pool import OnEvict, Pool, plenty
from .sequences import SequenceState, first_page, usable_pages
from .tree import Node, PrefixTree, path

Copies = dict[int, list[tuple[int, int]]]  # group -> (source, destination)


class Tables:
    """The pools of all groups and the prefix tree."""

    def __init__(
        self,
        groups: Sequence[Group],
        totals: Sequence[int],
        page_tokens: int,
        is_short: Callable[[], bool] = plenty,
        on_evict: OnEvict | None = None,
    ) -> None:
        self.page_tokens = page_tokens
        self.groups = groups
        self.pools = [
            Pool(total, number, first=int(group.is_recurrent), is_short=is_short, on_evict=on_evict)
            for number, (group, total) in enumerate(zip(groups, totals, strict=True))
        ]
        self.is_recurrent = bool(groups) and groups[-1].is_recurrent
        self.windows = [(number, group) for number, group in enumerate(groups) if group.window]
        self.tree = PrefixTree(len(groups), page_tokens)
        self.copies = 0
        self._attention = groups[:-1] if self.is_recurrent else groups

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def find(self, tokens: array[int], namespace: str) -> list[Node]:
        """The nodes of the full pages of a prompt that a sequence can begin with."""
        nodes = self.tree.find(namespace, tokens)
        return nodes[: usable_pages(self.groups, nodes, self.page_tokens)]

    def findable(self, state: SequenceState) -> list[tuple[Pool, int]]:
        """The pages that a prompt like this sequence would find."""
        nodes = path(state.node, state.inserted)
        return self._kept(nodes[: usable_pages(self.groups, nodes, self.page_tokens)])

    def begin(self, nodes: Sequence[Node], prompt: array[int], namespace: str) -> SequenceState:
        """A sequence with the pages of these nodes."""
        size, depth = self.page_tokens, len(nodes)
        node = nodes[-1] if nodes else self.tree.root(namespace)
        node.holders += 1
        starts = [first_page(group, depth, size) * size for group in self._attention]
        tables = [_nothing(start // size) for start in starts]
        state = SequenceState(node, tables, starts, depth * size, prompt[: depth * size], depth)
        for pool, page in self._kept(nodes):
            pool.incref(page)
            if pool.group < len(tables):
                tables[pool.group].append(page)
            else:
                state.slot = page
        if self.is_recurrent and not nodes:
            self.pools[-1].incref(ZERO_SLOT)
        return state

    def needed(self, state: SequenceState, count: int) -> tuple[int, ...]:
        """Pages, by group, that more tokens take. This is the only place where pages are counted."""
        if not count:
            return (0,) * len(self.groups)
        pages = -(-(state.length + count) // self.page_tokens)
        needed = [pages - len(table) for table in state.tables]
        if state.length % self.page_tokens:
            for number, table in enumerate(state.tables):  # a copy takes none if the page can then be evicted
                needed[number] += self.pools[number].is_kept(table[-1])
        if self.is_recurrent:
            needed.append(1)
        return tuple(needed)

    def grow(self, state: SequenceState, count: int, copies: Copies) -> None:
        """Take pages for more tokens; a page that must not be written is replaced by a copy."""
        if not count:
            return
        if state.length % self.page_tokens:
            for number, table in enumerate(state.tables):
                if self.pools[number].is_read_only(table[-1]):
                    self._copy_last(number, table, copies)
        state.length += count
        pages = -(-state.length // self.page_tokens)
        for number, table in enumerate(state.tables):
            while len(table) < pages:
                table.append(self.pools[number].take())
        if self.is_recurrent:
            state.fresh.append((state.length, self.pools[-1].take()))

    def skip(self, state: SequenceState, number: int, start: int) -> None:
        """Go on in a group with the token `start`, without those before; the table ends before its page."""
        self.release(state, number, len(state.tables[number]))
        state.tables[number] = _nothing(start // self.page_tokens)
        state.starts[number] = start

    def insert(self, state: SequenceState) -> None:
        """Put pages that are full and committed in the tree, or use those that are there."""
        while (state.inserted + 1) * self.page_tokens <= len(state.tokens):
            number = state.inserted
            key = self.tree.key(state.tokens, number)
            node = state.node.children.get(key)
            own = [
                (pool, table)
                for pool, table, start in zip(self.pools, state.tables, state.starts, strict=False)
                if number * self.page_tokens >= start
            ]
            if any(pool.references[table[number]] > 1 and not pool.has(node) for pool, table in own):
                return  # forked before it was committed; tried again at the next commit
            node = node or Node(state.node, key, len(self.groups))
            for pool, table in own:
                table[number] = pool.share(table[number], node)
            state.move(node, number + 1)
        if self.is_recurrent and state.inserted * self.page_tokens == len(state.tokens):
            state.slot = self.pools[-1].share(state.slot, state.node)

    def release(self, state: SequenceState, number: int, end: int) -> None:
        """Let go of the first pages of a table, up to page number `end`, which stays."""
        table, first = state.tables[number], state.starts[number] // self.page_tokens
        for place in range(first, end):
            self.pools[number].decref(table[place])
            table[place] = 0
        if first < end:
            state.starts[number] = end * self.page_tokens

    def cut(self, state: SequenceState, length: int) -> None:
        """Let go of all tokens from `length` on."""
        if self.is_recurrent:
            self._cut_states(state, length)
        for number in range(len(state.tables)):
            self._pop(state, number, self.pages(length))
        depth = length // self.page_tokens
        if state.inserted > depth:
            state.move(state.ancestor(depth), depth)
        state.length = length
        del state.tokens[length:]

    def copy(self, state: SequenceState, length: int) -> SequenceState:
        """A sequence that begins with the first tokens of another one, and shares their pages."""
        pages, depth = self.pages(length), min(state.inserted, length // self.page_tokens)
        for pool, table, start in zip(self.pools, state.tables, state.starts, strict=False):
            for page in table[start // self.page_tokens : pages]:
                pool.incref(page)
        slot = self.slot_at(state, length) if self.is_recurrent else ZERO_SLOT
        assert slot is not None
        if self.is_recurrent:
            self.pools[-1].incref(slot)
        node = state.ancestor(depth)
        node.holders += 1
        starts = [min(start, pages * self.page_tokens) for start in state.starts]
        tables = [table[:pages] for table in state.tables]
        return SequenceState(node, tables, starts, length, state.tokens[:length], depth, slot)

    def free(self, state: SequenceState) -> None:
        self.cut(state, 0)
        if self.is_recurrent:
            self.pools[-1].decref(state.slot)
        state.node.holders -= 1
        state.node.prune()

    def slot_at(self, state: SequenceState, length: int) -> int | None:
        """The slot that holds the state after so many tokens, if there is one."""
        depth, rest = divmod(length, self.page_tokens)
        if length >= len(state.tokens):
            ends = (len(state.tokens), *(end for end, _ in state.fresh))
            return state.slot_at(length) if length in ends else None
        if length == 0:
            return ZERO_SLOT
        return None if rest or depth > state.inserted else state.ancestor(depth).pages[-1]

    def _kept(self, nodes: Sequence[Node]) -> list[tuple[Pool, int]]:
        """The pages that a sequence which begins with these nodes uses."""
        return [
            (pool, page)
            for pool, group in zip(self.pools, self.groups, strict=True)
            for node in nodes[max(0, first_page(group, len(nodes), self.page_tokens)) :]
            if (page := node.pages[pool.group]) is not None
        ]

    def _copy_last(self, number: int, table: array[int], copies: Copies) -> None:
        source = table[-1]
        self.pools[number].decref(source)
        table[-1] = self.pools[number].take()
        if table[-1] != source:  # else it was the last page of all: it left the tree and is written in place
            self.copies += 1
            copies.setdefault(number, []).append((source, table[-1]))

    def _pop(self, state: SequenceState, number: int, pages: int) -> None:
        """Let go of the last pages of a table, the last one first: see pool.py."""
        table, first = state.tables[number], state.starts[number] // self.page_tokens
        while len(table) > pages:
            page = table.pop()
            if len(table) >= first:
                self.pools[number].decref(page)
        state.starts[number] = min(state.starts[number], pages * self.page_tokens)

    def _cut_states(self, state: SequenceState, length: int) -> None:
        pool = self.pools[-1]
        while state.fresh and state.fresh[-1][0] > length:
            pool.decref(state.fresh.pop()[1])
        slot = self.slot_at(state, length)
        if length < len(state.tokens) and slot is not None:
            pool.incref(slot)
            pool.decref(state.slot)
            state.slot = slot


def _nothing(pages: int) -> array[int]:
    """A table whose first pages are let go of."""
    return array("i", bytes(4 * pages))

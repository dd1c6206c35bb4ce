"""A sequence as `Pages` knows it, and what of the prefix tree a new one can begin with."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .groups import ZERO_SLOT, Group
from .tree import Node


@dataclass(slots=True, eq=False)
class SequenceState:
    """Pages, tokens and the slots of a sequence."""

    node: Node  # of its last page in the prefix tree, or the root of its namespace
    tables: list[array[int]]  # pages, by attention group; an entry before `starts` is 0 and means nothing
    starts: list[int]  # the first token that is still there, by attention group
    length: int
    tokens: array[int]  # those committed
    inserted: int = 0  # pages at the beginning that are in the tree
    slot: int = ZERO_SLOT  # where the recurrent state after the committed tokens is
    fresh: list[tuple[int, int]] = field(default_factory=list)  # for each step not committed: its end, and its slot

    @property
    def uncommitted(self) -> int:
        return self.length - len(self.tokens)

    @property
    def next_slot(self) -> int:
        """The slot that the last step writes."""
        return self.fresh[-1][1] if self.fresh else self.slot

    def slot_at(self, length: int) -> int:
        """The slot that a step after so many tokens reads."""
        return next((slot for end, slot in self.fresh if end == length), self.slot)

    def ancestor(self, depth: int) -> Node:
        """The node of the page before which there are `depth` - 1 others; 0: the root."""
        node = self.node
        for _ in range(self.inserted - depth):
            assert node.parent is not None
            node = node.parent
        return node

    def move(self, node: Node, inserted: int) -> None:
        """Go on from another node."""
        before, self.node, self.inserted = self.node, node, inserted
        node.holders += 1
        before.holders -= 1
        before.prune()


def first_page(group: Group, depth: int, page_tokens: int) -> int:
    """The first page that a group needs to go on after `depth` pages; only the last one holds a state."""
    return depth - 1 if group.is_recurrent else group.first_seen(depth * page_tokens) // page_tokens


class HasPages(Protocol):
    """A page of tokens, and what there is of it by group; None: nothing."""

    pages: list[int | None]


def usable_pages(groups: Sequence[Group], nodes: Sequence[HasPages], page_tokens: int) -> int:
    """How many pages at the beginning of a text, those of `nodes`, a sequence can begin with.

    It ends where every group has what it needs to go on: all pages, those of a window, or a snapshot of the state.
    """
    others = [(number, group) for number, group in enumerate(groups) if not group.keeps_all]
    depth = len(nodes)
    if len(others) < len(groups):  # the first group keeps all
        depth = next((place for place in range(depth) if nodes[place].pages[0] is None), depth)
    while depth:
        missing = (
            place
            for number, group in others
            for place in range(depth - 1, first_page(group, depth, page_tokens) - 1, -1)
            if nodes[place].pages[number] is None
        )
        place = next(missing, None)
        if place is None:
            break
        depth = place
    return depth

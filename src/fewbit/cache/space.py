"""The pools of all groups and the prefix tree: what sequences take pages from, and find them in."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from .groups import LayerGroup
from .pool import OnEvict, PagePool, never_short
from .tree import PrefixNode, PrefixTree


class PageSpace:
    """The pages of all groups. `Pages` documents the parameters."""

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        totals: Sequence[int],
        page_tokens: int,
        is_short: Callable[[], bool] = never_short,
        on_evict: OnEvict | None = None,
    ) -> None:
        self.groups = groups
        self.page_tokens = page_tokens
        self.pools = [
            PagePool(total, number, first=int(group.is_recurrent), is_short=is_short, on_evict=on_evict)
            for number, (group, total) in enumerate(zip(groups, totals, strict=True))
        ]
        self.tree = PrefixTree(len(groups), page_tokens)
        self.is_recurrent = bool(groups) and groups[-1].is_recurrent
        self.attention = groups[:-1] if self.is_recurrent else groups
        self.windows = [(number, group) for number, group in enumerate(groups) if group.window]

    def pages(self, tokens: int) -> int:
        """Pages that so many tokens fill or begin."""
        return -(-tokens // self.page_tokens)

    def find(self, tokens: array[int], namespace: str) -> list[PrefixNode]:
        """The nodes of the full pages of a prompt that a sequence can begin with."""
        return self.usable(self.tree.find(namespace, tokens))

    def usable(self, nodes: list[PrefixNode]) -> list[PrefixNode]:
        """The first of the nodes of a text, as far as a sequence can begin with them."""
        return nodes[: usable_pages(self.groups, nodes, self.page_tokens)]

    def kept(self, nodes: Sequence[PrefixNode]) -> list[tuple[PagePool, int]]:
        """The pages that a sequence needs to go on after these nodes."""
        return [
            (pool, page)
            for pool, group in zip(self.pools, self.groups, strict=True)
            for node in nodes[max(0, group.first_page(len(nodes), self.page_tokens)) :]
            if (page := node.pages[pool.group]) is not None
        ]


class HasPages(Protocol):
    """A page of tokens, and the page of each group that holds it, or None."""

    pages: list[int | None]


def usable_pages(groups: Sequence[LayerGroup], nodes: Sequence[HasPages], page_tokens: int) -> int:
    """How many of the first pages of a text a sequence can begin with.

    That is the largest number after which every group has what it needs to go on: all pages, those that a window
    sees, or a snapshot of the state.
    """
    others = [(number, group) for number, group in enumerate(groups) if not group.keeps_all]
    depth = len(nodes)
    if len(others) < len(groups):  # the first group keeps all
        depth = next((place for place in range(depth) if nodes[place].pages[0] is None), depth)
    while depth:
        missing = (
            place
            for number, group in others
            for place in range(depth - 1, group.first_page(depth, page_tokens) - 1, -1)
            if nodes[place].pages[number] is None
        )
        place = next(missing, None)
        if place is None:
            break
        depth = place
    return depth

"""Where the rows of a step's values lie: those that nobody reads any more leave their place to others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from .graph import Graph, Node, Value
from .slots import Slots


class Place(NamedTuple):
    """Columns of a slot, which `owner` was made for."""

    owner: Value
    slot: int
    first: int


class Placement:
    """Takes the nodes of a graph in their order. `aliases`: values that lie where others do, and are never written."""

    def __init__(self, graph: Graph, aliases: Mapping[Value, Value]) -> None:
        self.aliases = aliases
        self._slots = Slots()
        self.places: dict[Value, Place] = {}
        self._held: Counter[Value] = Counter()  # values that lie in a slot, by its owner
        self._left = graph.uses()
        for alias, value in aliases.items():
            self._left[value] += self._left[alias] - 1
        self._take(graph.result, [(graph.result, 0)])  # nobody else's

    def add(self, node: Node, parts: tuple[int, Sequence[int]] | None = None) -> None:
        """`parts`: its results lie beside each other, in rows of a width, each from a column on."""
        inputs = [self.aliases.get(value, value) for value in node.inputs]
        if parts is not None:
            width, firsts = parts
            self._take(replace(node.outputs[0], width=width), list(zip(node.outputs, firsts, strict=True)))
        elif node.outputs and node.outputs[0] not in self.places:
            self._take_or_share(node, node.outputs[0], inputs)
        self._left.subtract(inputs)
        for value in dict.fromkeys(inputs):
            if not self._left[value]:
                self._release(self.places[value])

    def _take_or_share(self, node: Node, out: Value, inputs: Sequence[Value]) -> None:
        """Rotations, insertions, and products that are added to something, are made in place where nobody else reads
        that."""
        added = {"rope": inputs[:1], "insert": inputs[:1], "linears": inputs[1:]}.get(node.operation, [])
        if not added or self._left[added[0]] != 1 or added[0].logits_only != out.logits_only:
            self._take(out, [(out, 0)])
            return
        self.places[out] = place = self.places[added[0]]
        self._held[place.owner] += 1

    @property
    def widths(self) -> list[int]:
        """Of the widest rows in each slot."""
        return self._slots.widths

    def counts(self, count: Callable[[Value], int]) -> dict[int, int]:
        """Rows of each slot; `count` says how many rows a value can have."""
        return {place.slot: count(place.owner) for place in self.places.values()}

    def _take(self, owner: Value, parts: Sequence[tuple[Value, int]]) -> None:
        slot = self._slots.take(owner)
        self.places.update((value, Place(owner, slot, first)) for value, first in parts)
        self._held[owner] += len(parts)

    def _release(self, place: Place) -> None:
        self._held[place.owner] -= 1
        if not self._held[place.owner]:
            self._slots.release(place.owner, place.slot)

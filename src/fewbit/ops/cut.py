"""Cuts a graph into parts that run one after another: each has some of the layers, and begins with rows of the last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from ..errors import RequestError
from ..tensor import QuantTensor
from .graph import Graph, Node, Value

TABLES = ("embed", "positions")  # operations that read single rows of a matrix


def layers_of(nodes: tuple[Node, ...]) -> set[int]:
    """Layers that keep something of a sequence."""
    return {node.attributes["layer"] for node in nodes if "layer" in node.attributes}


def weights_of(graph: Graph) -> dict[int, QuantTensor]:
    """Matrices that the nodes of a graph use, by their addresses."""
    return _weights(graph.nodes)


def factors_of(graph: Graph) -> dict[int, QuantTensor]:
    """Those that inputs are multiplied by: a step reads all of them."""
    return _weights(node for node in graph.nodes if node.operation not in TABLES)


def cut_all(graph: Graph, counts: Sequence[int]) -> list[Graph]:
    """Split a graph into parts with so many layers each, in their order."""
    parts, rest = [], graph
    for count in reversed(counts[1:]):
        rest, part = cut(rest, count)
        parts.append(part)
    return [rest, *reversed(parts)]


def cut(graph: Graph, layers: int) -> tuple[Graph, Graph]:
    """Split a graph so that the second part has the last `layers` layers; its input is the result of the first part.

    The split is where the fewest columns cross, and no layer's K, V or states are used on both sides. Several values
    cross side by side, as one.
    """
    nodes = graph.nodes
    places = [place for place in _places(nodes, layers) if _is_open(graph, place)]
    if not places:
        total = len(layers_of(nodes))
        raise RequestError(
            f"the model cannot be split before the last {layers} of its {total} layers; try another number"
        )
    place = min(places, key=lambda place: sum(value.width for value in _crossing(nodes, place)))
    crossing = _crossing(nodes, place)
    joined, joins, parts = _join(crossing)
    first = replace(graph, nodes=(*nodes[:place], *joins), result=joined, has_head=False)
    return first, replace(graph, nodes=(Node("given", (), (joined,), {}), *parts, *nodes[place:]))


def _weights(nodes: Iterable[Node]) -> dict[int, QuantTensor]:
    flat = (value for node in nodes for value in node.attributes.values())
    return {w.stored.ctypes.data: w for w in flat if isinstance(w, QuantTensor)}


def _places(nodes: tuple[Node, ...], layers: int) -> Iterator[int]:
    """Places with so many layers after them, the last one first."""
    after: set[int] = set()
    for place in reversed(range(1, len(nodes))):
        after |= layers_of(nodes[place : place + 1])
        if len(after) > layers:
            return
        if len(after) == layers:
            yield place


def _is_open(graph: Graph, place: int) -> bool:
    """Whether rows can cross here: what is kept of sequences does not, nor does the result."""
    nodes = graph.nodes
    if not layers_of(nodes[:place]).isdisjoint(layers_of(nodes[place:])):
        return False
    crossing = _crossing(nodes, place)
    return bool(crossing) and graph.result not in crossing


def _crossing(nodes: tuple[Node, ...], place: int) -> list[Value]:
    """Values that nodes before a place make and nodes after it read."""
    read = {value for node in nodes[place:] for value in node.inputs}
    return [value for node in nodes[:place] for value in node.outputs if value in read]


def _join(values: Sequence[Value]) -> tuple[Value, list[Node], list[Node]]:
    """Several values as one: it, the nodes that make it, and those that take it apart again."""
    joined, joins, starts = values[0], list[Node](), [0, *accumulate(value.width for value in values)]
    if len(values) == 1:
        return joined, joins, []
    for value in values[1:]:
        both = replace(joined, width=joined.width + value.width)
        joins.append(Node("join", (joined, value), (both,), {"heads": 1, "b_heads": None}))
        joined = both
    parts = [
        Node("columns", (joined,), (value,), {"start": start, "width": value.width, "heads": 1})
        for value, start in zip(values, starts, strict=False)
    ]
    return joined, joins, parts

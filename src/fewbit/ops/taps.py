"""A pass that taps the inputs of products: the result of the graph becomes those inputs, side by side.

The graph of a model that runs as usual has no taps, so they cost nothing there. Devices need no operation for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..arrays import Floats
from ..tensor import QuantTensor
from .graph import Graph, Node, Value

PRODUCTS = {"linear": ("w",), "linear_heads": ("w",), "experts": ("gate", "up", "down")}


@dataclass(frozen=True, slots=True, eq=False)
class Tap:
    """A product whose inputs are looked at.

    Args:
        node: The operation.
        columns: Where each of its inputs is in the rows of the tapped graph.
        names: Names of its matrices, by attribute.
    """

    node: Node
    columns: tuple[slice, ...]
    names: Mapping[str, str]

    def inputs(self, rows: Floats) -> list[Floats]:
        """The inputs of the operation, from rows of the tapped graph."""
        return [rows[:, part] for part in self.columns]


def tap(graph: Graph, names: Mapping[int, str]) -> tuple[Graph, list[Tap]]:
    """A graph whose result is the inputs of all products with named matrices, and where each of them is.

    Operations that no product needs are left out, such as that of the logits.

    Args:
        graph: The graph of a model, as it was recorded.
        names: Names of matrices, by the `id` of their tensors.
    """
    found = [(node, named) for node in graph.nodes if (named := _names(node, names))]
    values = list(dict.fromkeys(value for node, _ in found for value in node.inputs))
    columns: dict[Value, slice] = {}
    start = 0
    for value in values:
        columns[value] = slice(start, start + value.width)
        start += value.width
    joins: list[Node] = []
    result = _joined(values, joins)
    taps = [Tap(node, tuple(columns[value] for value in node.inputs), named) for node, named in found]
    return replace(graph, nodes=(*_needed(graph, values), *joins), result=result, has_head=False), taps


def _names(node: Node, names: Mapping[int, str]) -> dict[str, str]:
    """The names of the matrices of a product, by attribute."""
    matrices = {key: node.attributes[key] for key in PRODUCTS.get(node.operation, ())}
    return {key: names[id(w)] for key, w in matrices.items() if isinstance(w, QuantTensor) and id(w) in names}


def _joined(values: Sequence[Value], nodes: list[Node]) -> Value:
    """All values side by side. They are joined in pairs, so that few of them are copied often."""
    if len(values) == 1:
        return values[0]
    middle = len(values) // 2
    parts = _joined(values[:middle], nodes), _joined(values[middle:], nodes)
    both = Value(parts[0].recorder, parts[0].width + parts[1].width)
    nodes.append(Node("join", parts, (both,), {"heads": 1, "b_heads": None}))
    return both


def _needed(graph: Graph, values: Sequence[Value]) -> list[Node]:
    """The nodes that values follow from."""
    needed: set[Value] = set(values)
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            nodes.append(node)
    return nodes[::-1]

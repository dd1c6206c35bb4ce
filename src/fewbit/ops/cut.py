"""Splits a graph between two devices: the first layers on one, the rest on the other."""

from __future__ import annotations

from dataclasses import replace

from ..errors import RequestError
from ..tensor import QuantTensor
from .graph import Graph, Node, Value


def layers_of(nodes: tuple[Node, ...]) -> set[int]:
    """Layers that keep something of a sequence."""
    return {node.attributes["layer"] for node in nodes if "layer" in node.attributes}


def weights_of(graph: Graph) -> dict[int, QuantTensor]:
    """Matrices that the nodes of a graph use, by their addresses."""
    values = (value for node in graph.nodes for value in node.attributes.values())
    return {w.stored.ctypes.data: w for w in values if isinstance(w, QuantTensor)}


def cut(graph: Graph, layers: int) -> tuple[Graph, Graph]:
    """Split a graph so that the second part has the last `layers` layers; its input is the result of the first part.

    The split is where a single value crosses, and no layer's K, V or states are used on both sides.
    """
    nodes = graph.nodes
    for place in reversed(range(1, len(nodes))):
        before, after = nodes[:place], nodes[place:]
        if len(layers_of(after)) != layers:
            continue
        crossing = _crossing(before, after)
        if len(crossing) == 1 and graph.result not in crossing and layers_of(before).isdisjoint(layers_of(after)):
            (value,) = crossing
            first = replace(graph, nodes=before, result=value, has_head=False)
            return first, replace(graph, nodes=(Node("given", (), (value,), {}), *after))
    total = len(layers_of(nodes))
    raise RequestError(f"the model cannot be split with {layers} of its {total} layers on the GPU; try another number")


def _crossing(before: tuple[Node, ...], after: tuple[Node, ...]) -> set[Value]:
    made = {value for node in before for value in node.outputs}
    return {value for node in after for value in node.inputs if value in made}

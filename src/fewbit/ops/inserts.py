"""Rows from outside in the steps of a model: what encoders make of images goes in the place of tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..arrays import Floats, Ints
from .graph import Graph, Node, Value


@dataclass(frozen=True, slots=True, eq=False)
class Inserted:
    """Rows of a step for the operations `insert` of one part.

    Args:
        part: 0: embeddings. Others are added between layers.
        tokens: The tokens of the step that they are for.
        rows: A row for each of them.
    """

    part: int
    tokens: Ints
    rows: Floats


def take_rows(graph: Graph, spans: bool = False) -> Graph:
    """The graph with an `insert` behind the embedding of tokens, unless it has one.

    Args:
        graph: The graph of a model.
        spans: Whether the tokens of a span see each other: in the layers that the model says, or in all.
    """
    in_all = not any(map(_has_spans, graph.nodes))
    nodes: list[Node] = []
    renamed: dict[Value, Value] = {}
    has_insert = any(node.operation == "insert" and node.attributes["part"] == 0 for node in graph.nodes)
    for node in graph.nodes:
        inputs = tuple(renamed.get(value, value) for value in node.inputs)
        nodes.append(_with_spans(replace(node, inputs=inputs), spans and (in_all or _has_spans(node))))
        if node.operation == "embed" and not has_insert:
            (old,) = node.outputs
            renamed[old] = replace(old)
            nodes.append(Node("insert", (old,), (renamed[old],), {"part": 0, "adds": False}))
    return replace(graph, nodes=tuple(nodes))


def drop_rows(graph: Graph) -> Graph:
    """The graph without `insert` and without spans, for a model that reads text alone."""
    if not any(node.operation == "insert" or _has_spans(node) for node in graph.nodes):
        return graph
    renamed: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(renamed.get(value, value) for value in node.inputs)
        if node.operation == "insert":
            renamed[node.outputs[0]] = inputs[0]
        else:
            nodes.append(_with_spans(replace(node, inputs=inputs), False))
    return replace(graph, nodes=tuple(nodes), result=renamed.get(graph.result, graph.result))


def span_reach(graph: Graph) -> int:
    """How far back the tokens of a span see in it: the window of the layers that the model says; 0: all of it."""
    return max((node.attributes["spec"].window for node in graph.nodes if _has_spans(node)), default=0)


def _has_spans(node: Node) -> bool:
    return node.operation == "attend" and bool(node.attributes["spans"])


def _with_spans(node: Node, spans: bool) -> Node:
    return replace(node, attributes={**node.attributes, "spans": spans}) if node.operation == "attend" else node


def inserted_parts(graph: Graph) -> set[int]:
    """The parts whose rows a graph inserts."""
    return {node.attributes["part"] for node in graph.nodes if node.operation == "insert"}

"""Passes: rewrites of a graph, independent of devices. They return a new graph."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ..errors import ArgumentError
from .graph import OPERATIONS, Graph, Node, Value
from .shape_rules import FUSED_GATES


def select_logits(graph: Graph) -> Graph:
    """Compute only the rows whose logits are needed, from as early as possible.

    Inputs of operations with `all_rows`, direct or indirect, are needed for all tokens. The rest is computed for the
    tokens whose logits are needed; a `gather` selects their rows on the way.
    """
    if graph.result.logits_only:
        return graph
    needed = _needed_of_all_tokens(graph)
    nodes: list[Node] = []
    selected: dict[Value, Value] = {}

    def select(value: Value) -> Value:
        if value not in selected:
            selected[value] = replace(value, logits_only=True)
            nodes.append(Node("gather", (value,), (selected[value],), {}))
        return selected[value]

    for node in graph.nodes:
        if needed.issuperset(node.outputs):
            nodes.append(node)
            continue
        inputs = tuple(map(select, node.inputs))
        selected.update({value: replace(value, logits_only=True) for value in node.outputs})
        nodes.append(replace(node, inputs=inputs, outputs=tuple(map(select, node.outputs))))
    result = select(graph.result)
    return replace(graph, nodes=tuple(nodes), result=result)


def _needed_of_all_tokens(graph: Graph) -> set[Value]:
    needed: set[Value] = set()
    for node in reversed(graph.nodes):  # readers of a value before its maker
        if OPERATIONS[node.operation].all_rows or not needed.isdisjoint(node.outputs):
            needed.update(node.outputs, node.inputs)
    return needed


def with_output(graph: Graph, output: str) -> Graph:
    """The graph whose result is "logits", or "hidden" rows."""
    if output == "hidden":
        return hidden(graph)
    if not graph.has_head:
        raise ArgumentError("the model has no output head, so it gives no logits; ask for hidden rows")
    return graph


def hidden(graph: Graph) -> Graph:
    """The graph without the output head: its result are the rows that logits are computed from."""
    if not graph.has_head:
        return graph
    tail = logits_nodes(graph)
    if tail[0].operation != "linear":
        raise ArgumentError(f"hidden rows need a linear output head; logits come from {tail[0].operation}")
    nodes = tuple(node for node in graph.nodes if node not in tail)
    return replace(graph, nodes=nodes, result=tail[0].inputs[0], has_head=False)


def logits_nodes(graph: Graph) -> list[Node]:
    """The node that computes logits, usually a product, and those after it, which gather, scale or cap them."""
    makers = graph.makers()
    nodes = [makers[graph.result]]
    while nodes[0].operation in ("scale", "softcap", "all_gather"):
        nodes.insert(0, makers[nodes[0].inputs[0]])
    return nodes


def fuse(graph: Graph) -> Graph:
    """Fuse operations: `linears` and `gated` replace products with what precedes and follows them.

    A `linears` node makes several products of the same rows, `terms` of a matrix and a bias, or one product with a
    residual added. `norm`, a weight and an epsilon or None, is applied to the rows first.
    """
    for fusion in (fuse_gates, fuse_residuals, merge_linears, fuse_norms):
        graph = fusion(graph)
    return graph


def fuse_gates(graph: Graph) -> Graph:
    """gate(x @ g.T, x @ u.T) as one operation."""
    uses, makers = graph.uses(), graph.makers()
    changes: dict[Node, Node | None] = {}
    for node in graph.nodes:
        if node.operation != "gate" or node.attributes["kind"] not in FUSED_GATES:
            continue
        gate, up = (makers[value] for value in node.inputs)
        alone = all(_is_plain_linear(part) and uses[part.outputs[0]] == 1 for part in (gate, up))
        if alone and gate.inputs == up.inputs:
            weights = {"gate": gate.attributes["w"], "up": up.attributes["w"]}
            changes |= {gate: None, up: None}
            changes[node] = replace(
                node, operation="gated", inputs=gate.inputs, attributes={**node.attributes, **weights, "norm": None}
            )
    return _changed(graph, changes)


def fuse_residuals(graph: Graph) -> Graph:
    """a + x @ w.T as one operation."""
    uses, makers = graph.uses(), graph.makers()
    changes: dict[Node, Node | None] = {}
    for node in graph.nodes:
        if node.operation != "add":
            continue
        for value, residual in (node.inputs[::-1], node.inputs):
            maker = makers[value]
            if maker.operation == "linear" and uses[value] == 1:
                changes[maker] = None
                changes[node] = _linears([maker], (*maker.inputs, residual), node.outputs)
                break
    return _changed(graph, changes)


def score_products(graph: Graph) -> frozenset[Value]:
    """Products that experts are chosen by, before what is done with each value of them.

    Devices make them in f32: rounded ones would choose other experts.
    """
    makers, found = graph.makers(), set()
    for node in graph.nodes:
        if node.operation == "experts":
            value = node.inputs[1]
            while makers[value].operation in ("scale", "softcap", "shift", "activate", "gather"):
                value = makers[value].inputs[0]
            found.add(value)
    return frozenset(found)


def merge_linears(graph: Graph) -> Graph:
    """Products of the same rows as one operation; scores of experts are apart, as they are made in f32."""
    groups: defaultdict[tuple[Value, bool], list[Node]] = defaultdict(list)
    scores = score_products(graph)
    for node in graph.nodes:
        if node.operation == "linear":
            groups[node.inputs[0], node.outputs[0] in scores].append(node)
    changes: dict[Node, Node | None] = {}
    for (x, _), group in groups.items():
        changes |= dict.fromkeys(group)
        changes[group[0]] = _linears(group, (x,), tuple(value for node in group for value in node.outputs))
    return _changed(graph, changes)


def fuse_norms(graph: Graph) -> Graph:
    """A norm as part of the one operation that reads it."""
    uses, makers = graph.uses(), graph.makers()
    changes: dict[Node, Node | None] = {}
    for node in graph.nodes:
        if node.operation not in ("linears", "gated"):
            continue
        x, *others = node.inputs
        maker = makers[x]
        if maker.operation == "norm" and maker.attributes["heads"] == 1 and uses[x] == 1:
            norm = maker.attributes["weight"], maker.attributes["eps"]
            changes[maker] = None
            changes[node] = replace(node, inputs=(*maker.inputs, *others), attributes={**node.attributes, "norm": norm})
    return _changed(graph, changes)


def _is_plain_linear(node: Node) -> bool:
    return node.operation == "linear" and node.attributes["bias"] is None


def _linears(group: list[Node], inputs: tuple[Value, ...], outputs: tuple[Value, ...]) -> Node:
    terms = tuple((node.attributes["w"], node.attributes["bias"]) for node in group)
    return Node("linears", inputs, outputs, {"terms": terms, "norm": None})


def _changed(graph: Graph, changes: dict[Node, Node | None]) -> Graph:
    """The graph with nodes replaced, or removed where the replacement is None."""
    nodes = (changes.get(node, node) for node in graph.nodes)
    return replace(graph, nodes=tuple(node for node in nodes if node is not None))

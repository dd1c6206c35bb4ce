"""The graph of one rank of several that share the work of a model by heads and columns (`regions.py`).

A rank computes its columns of divided rows. Products that read them give a part of a sum, which `all_reduce` adds up
over all ranks, in their order; the rows of the output matrix are divided too, and `all_gather` puts logits together.
Both operations meet the other ranks in a `group`, which the device makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..arrays import Floats
from ..tensor import QuantTensor
from .cut import TABLES
from .graph import Graph, Node, Value
from .low_rank import LowRank, ProductKey, Terms
from .passes import logits_nodes
from .regions import Cuts, cut_evenly, cut_experts, find_cuts
from .slices import take_columns, take_rows
from .specs import AttentionSpec, LayerSpec

LOGITS_STEP = 16  # rows of the output matrix are interleaved in sets of so many
NO_GROUP: Any = None  # of a graph that is only looked at

Span = tuple[int, int]  # the first of some rows or columns, and the one after the last


@dataclass(frozen=True, slots=True, eq=False)
class MatrixPart:
    """What a rank has of a matrix: some rows or some columns."""

    w: QuantTensor
    rows: Span | None = None
    columns: Span | None = None

    def of(self, term: LowRank) -> LowRank:
        """What an adapter adds to this part of the product."""
        if self.rows is not None:
            rows = slice(*self.rows)
            a, b = (term.a, term.b[rows]) if term.b is not None else (_at(term.a, rows), None)
            return replace(term, a=a, b=b, n=self.w.shape[0])
        if self.columns is not None:
            columns = slice(*self.columns)
            a = None if term.a is None else term.a[:, columns]
            b = term.b[:, columns] if term.a is None and term.b is not None else term.b
            return replace(term, a=a, b=b, k=self.w.shape[1])
        return term


def _at(values: Any, rows: slice) -> Any:
    return None if values is None else values[rows]


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """What one rank computes.

    Args:
        graph: Its graph.
        parts: Its parts of matrices, by the products of the whole graph.
        kept: The heads of K and V that it keeps in each layer. None: all of them.
    """

    graph: Graph
    parts: Mapping[ProductKey, MatrixPart]
    kept: Mapping[int, Span | None]

    def terms_of(self, terms: Terms) -> Terms:
        """What an adapter adds here."""
        own = dict(terms)
        for key in terms.keys() & self.parts.keys():
            own["linear", id(self.parts[key].w)] = self.parts[key].of(own.pop(key))
        return own

    def packed(self, pack: Callable[[QuantTensor], QuantTensor]) -> Shard:
        """The same with all matrices but tables in another layout, each once."""
        made: dict[int, QuantTensor] = {}

        def packed(value: Any) -> Any:
            if not isinstance(value, QuantTensor):
                return value
            if id(value) not in made:
                made[id(value)] = pack(value)
            return made[id(value)]

        nodes = tuple(
            node if node.operation in TABLES else
            replace(node, attributes={name: packed(value) for name, value in node.attributes.items()})
            for node in self.graph.nodes
        )  # fmt: skip
        parts = {key: replace(part, w=packed(part.w)) for key, part in self.parts.items()}
        return replace(self, graph=replace(self.graph, nodes=nodes), parts=parts)


def make_shard(graph: Graph, ranks: int, rank: int, group: Any = NO_GROUP) -> Shard:
    """What a rank computes. Without a group nothing is copied, and it tells sizes alone."""
    return _Sharding(graph, ranks, rank, find_cuts(graph, ranks), group).shard()


class _Sharding:
    def __init__(self, graph: Graph, ranks: int, rank: int, cuts: Mapping[Value, Cuts], group: Any) -> None:
        self.graph, self.ranks, self.rank, self.cuts = graph, ranks, rank, cuts
        self.meeting, self.copies = {"group": group, "rank": rank}, group is not NO_GROUP
        self.nodes: list[Node] = []
        self.values: dict[Value, Value] = {}
        self.specs: list[LayerSpec] = [*graph.specs]
        self.parts: dict[ProductKey, MatrixPart] = {}
        self.kept: dict[int, Span | None] = {}
        self.head = logits_nodes(graph)[0] if graph.has_head else None

    def shard(self) -> Shard:
        for node in self.graph.nodes:
            self._add(node)
        graph = replace(
            self.graph, nodes=tuple(self.nodes), result=self.values[self.graph.result], specs=tuple(self.specs)
        )
        return Shard(graph, self.parts, self.kept)

    def _add(self, node: Node) -> None:
        handle = _HANDLERS.get(node.operation)
        if handle is not None:
            handle(self, node)
        elif self._is_cut(node.outputs[0]) and not self._is_cut(node.inputs[0]):
            self._slice_result(node)
        else:
            self._record(node, self._attributes(node))

    # Values and nodes of this rank

    def _is_cut(self, value: Value) -> bool:
        return value in self.cuts

    def _span(self, value: Value) -> Span:
        return self.cuts[value].columns(value.width, self.rank)

    def _own(self, value: Value) -> Value:
        """The value of this rank: its columns, or all."""
        if value not in self.values:
            first, end = self._span(value) if self._is_cut(value) else (0, value.width)
            self.values[value] = replace(value, width=end - first)
        return self.values[value]

    def _record(self, node: Node, attributes: Mapping[str, Any], out: Value | None = None) -> None:
        outputs = (out,) if out is not None else tuple(map(self._own, node.outputs))
        self.nodes.append(Node(node.operation, tuple(map(self._own, node.inputs)), outputs, attributes))

    def _slice_result(self, node: Node) -> None:
        """Computed whole, and read in parts."""
        out = node.outputs[0]
        whole, (first, end) = replace(out), self._span(out)
        self._record(node, node.attributes, whole)
        attributes = {"start": first, "width": end - first, "heads": 1}
        self.nodes.append(Node("columns", (whole,), (self._own(out),), attributes))

    def _attributes(self, node: Node) -> Mapping[str, Any]:
        out = node.outputs[0]
        if not self._is_cut(out):
            return node.attributes
        own, cuts, (first, end) = dict(node.attributes), self.cuts[out], self._span(out)
        for name in ("heads", "b_heads"):
            if (own.get(name) or 0) > 1:
                own[name] = cuts.count(own[name], self.rank)
        if node.operation == "shift":
            own["by"] = own["by"][first:end].copy()
        if node.operation == "linear_heads":
            own["w"] = own["w"][slice(*cuts.columns(len(own["w"]), self.rank))]
        return own

    # Products

    def _linear(self, node: Node) -> None:
        w, bias, (x,), (out,) = node.attributes["w"], node.attributes["bias"], node.inputs, node.outputs
        if self._is_cut(x):
            part = MatrixPart(take_columns(w, *self._span(x), self.copies), columns=self._span(x))
            self._reduced(node, {"w": part.w, "bias": self._once(bias)})
        elif self._is_cut(out):
            part = self._rows_of(w, self._span(out))
            self._record(node, {"w": part.w, "bias": _rows(bias, self._span(out))})
        elif node is self.head:
            step = LOGITS_STEP if w.shape[0] >= LOGITS_STEP * self.ranks else 1
            cuts = cut_evenly(w.shape[0], step, self.ranks, "the vocabulary")
            part = self._rows_of(w, cuts.columns(w.shape[0], self.rank))
            self._gathered(node, {"w": part.w, "bias": _rows(bias, part.rows)}, cuts)
        else:
            part = MatrixPart(w)
            self._record(node, node.attributes)
        self.parts["linear", id(w)] = part

    def _rows_of(self, w: QuantTensor, rows: Span | None) -> MatrixPart:
        assert rows is not None
        return MatrixPart(take_rows(w, *rows), rows=rows)

    def _once(self, bias: Floats | None) -> Floats | None:
        """What one rank adds to a sum over all."""
        return bias if self.rank == 0 else None

    def _reduced(self, node: Node, attributes: Mapping[str, Any]) -> None:
        """A part of a sum, and the sum."""
        part = replace(node.outputs[0])
        self._record(node, attributes, part)
        self.nodes.append(Node("all_reduce", (part,), (self._own(node.outputs[0]),), self.meeting))

    def _gathered(self, node: Node, attributes: Mapping[str, Any], cuts: Cuts) -> None:
        first, end = cuts.columns(node.outputs[0].width, self.rank)
        part = replace(node.outputs[0], width=end - first)
        self._record(node, attributes, part)
        whole = {**self.meeting, "bounds": cuts.bounds}
        self.nodes.append(Node("all_gather", (part,), (self._own(node.outputs[0]),), whole))

    def _experts(self, node: Node) -> None:
        own = dict(node.attributes)
        first, end = cut_experts(node, self.ranks).columns(own["down"].shape[-1], self.rank)
        for name in ("gate", "up"):
            if own[name] is not None:
                own[name] = take_rows(own[name], first, end, self.copies)
            if own[f"{name}_bias"] is not None:
                own[f"{name}_bias"] = own[f"{name}_bias"][:, first:end].copy()
        own |= {"down": take_columns(own["down"], first, end, self.copies), "down_bias": self._once(own["down_bias"])}
        self._reduced(node, own)

    def _attend(self, node: Node) -> None:
        own, layer = dict(node.attributes), node.attributes["layer"]
        spec: AttentionSpec = own["spec"]
        cuts, q = self.cuts[node.outputs[0]], node.inputs[0]
        if spec.kv_heads > 1:
            self.kept[layer] = cuts.columns(spec.kv_heads, self.rank)
            own["spec"] = self.specs[layer] = replace(spec, kv_heads=cuts.count(spec.kv_heads, self.rank))
        own["sinks"] = _rows(own["sinks"], cuts.columns(q.width // spec.k_dim, self.rank))
        self._record(node, own)


def _rows(values: Floats | None, rows: Span | None) -> Floats | None:
    return None if values is None or rows is None else values[slice(*rows)].copy()


_HANDLERS: dict[str, Callable[[_Sharding, Node], None]] = {
    "linear": _Sharding._linear,
    "experts": _Sharding._experts,
    "attend": _Sharding._attend,
}

"""Plans: a model's step recorded once, so that native code runs it without Python.

`record` calls the model with an `Ops` that does nothing but write down what is asked for. What was written down is then
put together: products of the same rows become one operation, norms and gates become part of the products beside them,
and what is added to a product is added by it. Last, rows get buffers, which are used again when nobody reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..formats import Format
from ..tensor import QuantTensor
from . import cpu
from .base import Floats, Ops, Rope


class Cache(Protocol):
    """Where K and V of a layer are kept: `fewbit.KVCache`."""

    def stores(self, layer: int) -> tuple[Format, cpu.Bytes, Format, cpu.Bytes]: ...

    @property
    def dim(self) -> int: ...

    @property
    def rotate(self) -> bool: ...


@dataclass(eq=False, slots=True)
class Value:
    """Rows that a step will make."""

    recorder: Recorder
    width: int
    wanted: bool  # rows of wanted tokens only

    def __add__(self, other: Value) -> Value:
        return self.recorder.node("sum", [self, other], self.width, self.wanted)


@dataclass(eq=False, slots=True)
class Node:
    """One operation."""

    kind: str
    inputs: list[Value]
    outputs: list[Value]
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Term:
    """One product of an operation `linear`."""

    w: QuantTensor
    bias: Floats | None
    added: Value | None = None


class Recorder:
    """The `Ops` that writes down."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def node(self, kind: str, inputs: list[Value], width: int, wanted: bool, **args: Any) -> Value:
        out = Value(self, width, wanted)
        self.nodes.append(Node(kind, inputs, [out], args))
        return out

    def embed(self, table: QuantTensor, scale: float = 1.0) -> Value:
        return self.node("embed", [], table.shape[1], False, table=table, scale=scale)

    def norm(self, x: Value, weight: Floats, eps: float) -> Value:
        return self.node("norm", [x], x.width, x.wanted, weight=weight, eps=eps)

    def linear(self, x: Value, w: QuantTensor, bias: Floats | None = None) -> Value:
        return self.node("linear", [x], w.shape[0], x.wanted, terms=[Term(w, bias)], norm=None)

    def gate(self, gate: Value, up: Value, kind: str = "silu") -> Value:
        return self.node("gate", [gate, up], gate.width, gate.wanted, function=kind)

    def rope(self, x: Value, heads: int, rope: Rope) -> Value:
        return self.node("rope", [x], x.width, x.wanted, heads=heads, rope=rope)

    def attend(
        self,
        layer: int,
        q: Value,
        k: Value,
        v: Value,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Floats | None = None,
    ) -> Value:
        args = {"layer": layer, "scale": scale, "window": window, "softcap": softcap, "sinks": sinks}
        return self.node("attend", [q, k, v], q.width, q.wanted, **args)

    def wanted(self, x: Value) -> Value:
        return self.node("pick", [x], x.width, True)


def record(forward: Callable[[Ops], Any], cache: Cache, fuse: bool = True) -> Any:
    """The native plan of a model's step; its result is what `forward` returns. `fuse=False`: as it was written."""
    recorder = Recorder()
    result = forward(recorder)
    nodes = recorder.nodes
    if fuse:
        for step in (gated_products, added_to_products, joined_products, normed_products):
            nodes = step(nodes, result)
    return _Builder(cache).build(nodes, result)


def gated_products(nodes: list[Node], result: Value) -> list[Node]:
    """gate(x @ g.T, x @ u.T) as one operation."""
    uses, makers = _uses(nodes, result), _makers(nodes)
    gone: set[int] = set()
    for node in nodes:
        parts = [makers[value] for value in node.inputs] if node.kind == "gate" else []
        alone = all(part.kind == "linear" and uses[part.outputs[0]] == 1 for part in parts)
        if parts and alone and parts[0].inputs == parts[1].inputs and not any(_term(p).bias is not None for p in parts):
            gone.update(map(id, parts))
            node.kind, node.inputs = "gated", parts[0].inputs
            node.args |= {"weights": [_term(part).w for part in parts], "norm": None}
    return [node for node in nodes if id(node) not in gone]


def added_to_products(nodes: list[Node], result: Value) -> list[Node]:
    """a + x @ w.T as one operation, in the place of the sum."""
    uses, makers = _uses(nodes, result), _makers(nodes)
    gone: set[int] = set()
    for node in nodes:
        if node.kind != "sum":
            continue
        for value, other in (node.inputs[::-1], node.inputs):
            maker = makers[value]
            if maker.kind == "linear" and uses[value] == 1 and value is not other and _term(maker).added is None:
                gone.add(id(maker))
                node.kind, node.inputs, node.args = "linear", [*maker.inputs, other], maker.args
                _term(node).added = other
                break
    return [node for node in nodes if id(node) not in gone]


def joined_products(nodes: list[Node], result: Value) -> list[Node]:
    """Products of the same rows as one operation, where the first of them stood."""
    first: dict[int, Node] = {}
    out: list[Node] = []
    for node in nodes:
        if node.kind == "linear" and _term(node).added is None:
            leader = first.setdefault(id(node.inputs[0]), node)
            if leader is not node:
                leader.outputs += node.outputs
                leader.args["terms"] += node.args["terms"]
                continue
        out.append(node)
    return out


def normed_products(nodes: list[Node], result: Value) -> list[Node]:
    """A norm as part of the one operation that reads it."""
    uses, makers = _uses(nodes, result), _makers(nodes)
    gone: set[int] = set()
    for node in nodes:
        maker = makers.get(node.inputs[0]) if node.kind in ("linear", "gated") else None
        if maker and maker.kind == "norm" and uses[maker.outputs[0]] == 1:
            gone.add(id(maker))
            node.inputs = [maker.inputs[0], *node.inputs[1:]]
            node.args["norm"] = maker.args
    return [node for node in nodes if id(node) not in gone]


def _term(node: Node) -> Term:
    (term,) = node.args["terms"]
    assert isinstance(term, Term)
    return term


def _uses(nodes: Iterable[Node], result: Value) -> Counter[Value]:
    return Counter([result, *(value for node in nodes for value in node.inputs)])


def _makers(nodes: Iterable[Node]) -> dict[Value, Node]:
    return {value: node for node in nodes for value in node.outputs}


class _Builder:
    """Nodes to a native plan. Rows that nobody reads any more leave their place to others."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.plan = cpu.Plan()
        self.buffers: dict[Value, int] = {}
        self.places: dict[Value, int] = {}
        self.widths: list[int] = []  # of the widest rows in each place
        self.free: dict[bool, list[int]] = {False: [], True: []}  # places of all rows, and of wanted ones
        self.ropes: dict[int, int] = {}

    def build(self, nodes: list[Node], result: Value) -> Any:
        left = _uses(nodes, result)
        self.result = result
        self._find_place(result)  # the caller's memory: nobody else's
        for node in nodes:
            turns = node.kind == "rope" and left[node.inputs[0]] == 1
            if turns:  # in place
                self.buffers[node.outputs[0]] = self.buffers[node.inputs[0]]
                self.places[node.outputs[0]] = self.places[node.inputs[0]]
            for value in node.outputs:
                self._find_place(value)
            getattr(self, f"_{node.kind}")(node, *map(self.buffers.__getitem__, node.inputs))
            for value in node.inputs:
                left[value] -= 1
                if not left[value] and not turns:
                    self.free[value.wanted].append(self.places[value])
        self.plan.set_result(self.buffers[result])
        return self.plan

    def _find_place(self, value: Value) -> None:
        """The narrowest free place that is wide enough, else the widest, else a new one."""
        if value in self.buffers:
            return
        free = self.free[value.wanted]
        if free:
            place = min(free, key=lambda p: (self.widths[p] < value.width, abs(self.widths[p] - value.width)))
            free.remove(place)
        else:
            place = len(self.widths)
            self.widths.append(0)
        self.widths[place] = max(self.widths[place], value.width)
        self.places[value] = place
        self.buffers[value] = self.plan.buffer(value.width, value.wanted, place)

    def _out(self, node: Node) -> int:
        return self.buffers[node.outputs[0]]

    def _embed(self, node: Node) -> None:
        self.plan.embed(cpu.packed(node.args["table"]), self._out(node), node.args["scale"])

    def _norm(self, node: Node, x: int) -> None:
        self.plan.norm(x, node.args["weight"], node.args["eps"], self._out(node))

    def _linear(self, node: Node, x: int, *_: int) -> None:
        fine = self.result in node.outputs  # nothing after the logits makes good what they lose
        self.plan.linear(x, *_norm_of(node), fine, list(self._terms(node)))

    def _terms(self, node: Node) -> Iterator[tuple[Any, int, Floats | None, int | None]]:
        for term, value in zip(node.args["terms"], node.outputs, strict=True):
            added = None if term.added is None else self.buffers[term.added]
            yield cpu.packed(term.w), self.buffers[value], term.bias, added

    def _gated(self, node: Node, x: int) -> None:
        gate, up = map(cpu.packed, node.args["weights"])
        self.plan.gated(x, *_norm_of(node), gate, up, node.args["function"], self._out(node))

    def _gate(self, node: Node, gate: int, up: int) -> None:
        self.plan.gate(gate, up, node.args["function"], self._out(node))

    def _rope(self, node: Node, x: int) -> None:
        rope: Rope = node.args["rope"]
        if id(rope) not in self.ropes:
            self.ropes[id(rope)] = self.plan.rope(
                np.ascontiguousarray(rope.inverse, np.float32), rope.scale, rope.halves
            )
        heads = node.args["heads"]
        self.plan.apply_rope(x, self._out(node), heads, node.inputs[0].width // heads, self.ropes[id(rope)])

    def _attend(self, node: Node, q: int, k: int, v: int) -> None:
        args = node.args
        k_format, k_store, v_format, v_store = self.cache.stores(args["layer"])
        self.plan.attend(
            cpu.number(k_format), k_store, cpu.number(v_format), v_store, self.cache.dim, self.cache.rotate,
            q, k, v, self._out(node), args["scale"], args["window"], args["softcap"], args["sinks"],
        )  # fmt: skip

    def _sum(self, node: Node, a: int, b: int) -> None:
        self.plan.add(a, b, self._out(node))

    def _pick(self, node: Node, x: int) -> None:
        self.plan.gather(x, self._out(node))


def _norm_of(node: Node) -> tuple[Floats | None, float]:
    norm = node.args["norm"]
    return (None, 0.0) if norm is None else (norm["weight"], norm["eps"])

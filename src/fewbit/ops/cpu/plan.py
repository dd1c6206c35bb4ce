"""Graphs to native plans: a step is then one native call. All calls that make a plan stand here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ... import _native
from ...arrays import Bytes, Floats
from ...errors import ArgumentError
from ...formats import Format
from ...tensor import QuantTensor
from ..graph import Graph, Node, Rope, Value
from ..passes import fuse as fuse_graph
from ..specs import AttentionSpec
from .machine import number, packed


class Store(Protocol):
    """Where K and V of the layers lie."""

    @property
    def rotate(self) -> bool: ...

    def kv(self, layer: int) -> tuple[Format, Bytes, Format, Bytes]: ...

    def group_of(self, layer: int) -> int: ...


def build(graph: Graph, store: Store, *, fuse: bool = True) -> _native.Plan:
    """The plan of a graph whose logits are selected. `fuse=False`: its operations as they are."""
    if not graph.result.logits_only:
        raise ArgumentError("a plan gives rows of the tokens whose logits are wanted: select_logits comes first")
    return Builder(fuse_graph(graph) if fuse else graph, store).build()


class Slots:
    """Memory for rows. A slot whose rows nobody reads any more is used for others."""

    def __init__(self) -> None:
        self.widths: list[int] = []  # of the widest rows in each slot
        self.free: dict[bool, list[int]] = {False: [], True: []}  # of all rows, and of those for logits

    def take(self, value: Value) -> int:
        """The narrowest free slot that is wide enough, else the widest, else a new one."""
        free, width = self.free[value.logits_only], value.width
        if free:
            slot = min(free, key=lambda s: (self.widths[s] < width, abs(self.widths[s] - width)))
            free.remove(slot)
        else:
            slot = len(self.widths)
            self.widths.append(0)
        self.widths[slot] = max(self.widths[slot], width)
        return slot

    def release(self, value: Value, slot: int) -> None:
        self.free[value.logits_only].append(slot)


class Builder:
    """Has a method for each operation, by its name: it takes buffers of results and inputs, and the attributes."""

    def __init__(self, graph: Graph, store: Store) -> None:
        self.graph, self.store = graph, store
        self.plan = _native.Plan()
        self.slots = Slots()
        self.slot: dict[Value, int] = {}
        self.buffers: dict[Value, int] = {}
        self.widths: dict[int, int] = {}  # of buffers
        self.ropes: dict[Rope, int] = {}

    def build(self) -> _native.Plan:
        remaining = self.graph.uses()
        self._allocate(self.graph.result)  # the caller's memory: nobody else's
        for node in self.graph.nodes:
            in_place = node.operation == "rope" and remaining[node.inputs[0]] == 1
            if in_place:
                self._share(node.inputs[0], node.outputs[0])
            for value in node.outputs:
                self._allocate(value)
            self._add(node)
            remaining.subtract(node.inputs)
            for value in dict.fromkeys(node.inputs):
                if not remaining[value] and not in_place:
                    self.slots.release(value, self.slot[value])
        self.plan.set_result(self.buffers[self.graph.result])
        return self.plan

    def _allocate(self, value: Value) -> None:
        if value not in self.buffers:
            self.slot[value] = self.slots.take(value)
            buffer = self.plan.buffer(value.width, value.logits_only, self.slot[value])
            self.buffers[value], self.widths[buffer] = buffer, value.width

    def _share(self, value: Value, other: Value) -> None:
        self.slot[other], self.buffers[other] = self.slot[value], self.buffers[value]

    def _add(self, node: Node) -> None:
        outs, inputs = ([self.buffers[value] for value in values] for values in (node.outputs, node.inputs))
        getattr(self, node.operation)(outs, *inputs, **node.attributes)

    def embed(self, outs: list[int], *, table: QuantTensor, scale: float) -> None:
        self.plan.embed(packed(table), outs[0], scale)

    def norm(self, outs: list[int], x: int, *, weight: Floats, eps: float) -> None:
        self.plan.norm(x, weight, eps, outs[0])

    def linear(self, outs: list[int], x: int, *, w: QuantTensor, bias: Floats | None) -> None:
        self.linears(outs, x, terms=[(w, bias)], norm=None)

    def linears(
        self,
        outs: list[int],
        x: int,
        residual: int | None = None,
        *,
        terms: Sequence[tuple[QuantTensor, Floats | None]],
        norm: tuple[Floats, float] | None,
    ) -> None:
        int16 = self.buffers[self.graph.result] in outs  # nothing after the logits makes good what they lose
        parts = [(packed(w), out, bias, residual) for (w, bias), out in zip(terms, outs, strict=True)]
        self.plan.linear(x, *_norm_or_none(norm), int16, parts)

    def gated(
        self,
        outs: list[int],
        x: int,
        *,
        gate: QuantTensor,
        up: QuantTensor,
        kind: str,
        norm: tuple[Floats, float] | None,
    ) -> None:
        self.plan.gated(x, *_norm_or_none(norm), packed(gate), packed(up), kind, outs[0])

    def gate(self, outs: list[int], gate: int, up: int, *, kind: str) -> None:
        self.plan.gate(gate, up, kind, outs[0])

    def add(self, outs: list[int], a: int, b: int) -> None:
        self.plan.add(a, b, outs[0])

    def gather(self, outs: list[int], x: int) -> None:
        self.plan.gather(x, outs[0])

    def rope(self, outs: list[int], x: int, *, heads: int, rope: Rope) -> None:
        if rope not in self.ropes:
            inv_freq = np.ascontiguousarray(rope.inv_freq, np.float32)
            self.ropes[rope] = self.plan.rope(inv_freq, rope.scale, rope.neox)
        self.plan.apply_rope(x, outs[0], heads, self.widths[x] // heads, self.ropes[rope])

    def attend(
        self,
        outs: list[int],
        q: int,
        k: int,
        v: int,
        *,
        layer: int,
        spec: AttentionSpec,
        scale: float,
        softcap: float,
        sinks: Floats | None,
    ) -> None:
        k_format, k_store, v_format, v_store = self.store.kv(layer)
        self.plan.attend(
            number(k_format), k_store, spec.k_dim, number(v_format), v_store, spec.v_dim, self.store.group_of(layer),
            self.store.rotate, q, k, v, outs[0], scale, spec.window, softcap, sinks,
        )  # fmt: skip


def _norm_or_none(norm: tuple[Floats, float] | None) -> tuple[Floats | None, float]:
    return norm or (None, 0.0)

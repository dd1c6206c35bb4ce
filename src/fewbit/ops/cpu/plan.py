"""Builds native plans from graphs. A step is then one native call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from ... import _native
from ...arrays import Bytes, Floats
from ...errors import ArgumentError
from ...tensor import QuantTensor
from ..graph import Graph, Node, Rope, Value
from ..low_rank import ProductKey, add_terms
from ..passes import fuse as fuse_graph
from ..passes import logits_nodes, score_products
from ..slots import Slots
from ..specs import AttentionSpec, KVArrays, RecurrentSpec, Routing
from .machine import checked_threads, number, packed


class PlanStore(Protocol):
    """The memory of K, V and states."""

    def kv(self, layer: int) -> KVArrays: ...

    def states(self, layer: int) -> Bytes: ...

    def group_of(self, layer: int) -> int: ...


def build(
    graph: Graph,
    store: PlanStore,
    *,
    fuse: bool = True,
    batch_invariant: bool = False,
    threads: int | None = None,
    products: Mapping[ProductKey, int] | None = None,
) -> _native.Plan:
    """Build the plan of a graph whose logits are selected.

    Args:
        graph: The operations of one step.
        store: Memory of K, V and states.
        fuse: Merge operations where native code has one for several. Default: True.
        batch_invariant: Compute each token's rows with the same bits beside any others. Default: False.
        threads: Threads that prepare the weights of the logits. Default: all usable cores.
        products: The products that adapters change, and their numbers in the adapters. Default: none.
    """
    if not graph.result.logits_only:
        raise ArgumentError("a plan needs a graph after select_logits")
    numbers = products or {}
    graph = add_terms(fuse_graph(graph) if fuse else graph, numbers)
    return PlanBuilder(graph, store, batch_invariant, threads, numbers).build()


class PlanBuilder:
    """Has a method for each operation, which takes the buffers of outputs and inputs, and the attributes."""

    def __init__(
        self,
        graph: Graph,
        store: PlanStore,
        batch_invariant: bool,
        threads: int | None = None,
        products: Mapping[ProductKey, int] | None = None,
    ) -> None:
        self.graph, self.store, self.threads, self.products = graph, store, threads, products or {}
        self.plan = _native.Plan(batch_invariant)
        self.slots = Slots()
        self.slot: dict[Value, int] = {}
        self.buffers: dict[Value, int] = {}
        self.widths: dict[int, int] = {}  # of buffers
        self.tokens = 0  # of the table
        self.ropes: dict[Rope, int] = {}
        head, *after = logits_nodes(graph)
        self.logits, self.scores = head.outputs[0], score_products(graph)
        self.is_adapted = any(self.logits in node.inputs for node in graph.nodes if node.operation == "low_rank")
        self.keeps_order = all(node.attributes.get("by", 1) > 0 for node in after)

    def build(self) -> _native.Plan:
        remaining = self.graph.uses()
        self._allocate(self.graph.result)  # in the caller's memory, which is not shared
        for node in self.graph.nodes:
            in_place = node.operation in ("rope", "insert") and remaining[node.inputs[0]] == 1
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
        self.tokens = table.shape[0]
        self.plan.embed(packed(table), outs[0], scale)

    def norm(self, outs: list[int], x: int, *, weight: Floats, eps: float, heads: int) -> None:
        self.plan.norm(x, weight, eps, heads, outs[0])

    def layer_norm(self, outs: list[int], x: int, *, weight: Floats, bias: Floats | None, eps: float) -> None:
        self.plan.layer_norm(x, weight, bias, eps, outs[0])

    def positions(self, outs: list[int], *, table: QuantTensor) -> None:
        self.plan.positions(packed(table), outs[0])

    def activate(self, outs: list[int], x: int, *, kind: str) -> None:
        self.plan.map(x, kind, 1.0, None, outs[0])

    def scale(self, outs: list[int], x: int, *, by: float) -> None:
        self.plan.map(x, "scale", by, None, outs[0])

    def softcap(self, outs: list[int], x: int, *, cap: float) -> None:
        self.plan.map(x, "softcap", cap, None, outs[0])

    def clamp(self, outs: list[int], x: int, *, low: float, high: float) -> None:
        self.plan.map(x, "at_least", low, None, outs[0])
        self.plan.map(outs[0], "at_most", high, None, outs[0])

    def shift(self, outs: list[int], x: int, *, by: Floats) -> None:
        self.plan.map(x, "shift", 1.0, by, outs[0])

    def columns(self, outs: list[int], x: int, *, start: int, width: int, heads: int) -> None:
        self.plan.columns(x, start, width, heads, outs[0])

    def join(self, outs: list[int], a: int, b: int, *, heads: int, b_heads: int | None) -> None:
        self.plan.join(a, b, heads, b_heads or heads, outs[0])

    def linear_heads(self, outs: list[int], x: int, *, w: QuantTensor) -> None:
        self.plan.linear_heads(x, [packed(w[head]) for head in range(w.shape[0])], outs[0])

    def experts(
        self,
        outs: list[int],
        x: int,
        scores: int,
        *,
        up: QuantTensor,
        down: QuantTensor,
        routing: Routing,
        gate: QuantTensor | None,
        kind: str,
        up_bias: Floats | None,
        gate_bias: Floats | None,
        down_bias: Floats | None,
    ) -> None:
        r = routing
        self.plan.experts(
            x, scores, (None if gate is None else packed(gate), packed(up), packed(down)),
            (gate_bias, up_bias, down_bias), kind,
            (r.top_k, r.score, r.normalize, r.scale, r.bias, r.groups, r.top_groups, r.group_top, r.expert_scale),
            outs[0],
        )  # fmt: skip

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
        is_logits = self.buffers.get(self.logits) in outs  # errors of logits are not corrected by later layers
        chooses = any(self.buffers.get(value) in outs for value in self.scores)
        parts = [(packed(w), out, bias, residual) for (w, bias), out in zip(terms, outs, strict=True)]
        is_plain = len(terms) == 1 and terms[0][1] is None and residual is None and not self.is_adapted
        norms = row_norms(terms[0][0], self.threads) if is_logits and is_plain and self.keeps_order else None
        at_least = "exact" if chooses else "int16" if is_logits else None
        self.plan.linear(x, *_norm_or_none(norm), at_least, parts, norms)

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

    def conv(
        self, outs: list[int], x: int, *, layer: int, weight: Floats, bias: Floats | None, kind: str,
        spec: RecurrentSpec, offset: int,
    ) -> None:  # fmt: skip
        taps = np.ascontiguousarray(weight.T)  # columns are contiguous
        self.plan.conv(x, self.store.states(layer), offset, taps, bias, kind == "silu", outs[0])

    def delta_rule(
        self, outs: list[int], q: int, k: int, v: int, a: int, b: int, *, layer: int, heads: int, v_heads: int,
        decay: Floats, dt_bias: Floats, scale: float, tiled: bool, spec: RecurrentSpec, offset: int,
    ) -> None:  # fmt: skip
        states = self.store.states(layer)
        self.plan.delta_rule(
            q, k, v, a, b, states, offset, heads, v_heads, decay, dt_bias, scale, tiled, outs[0]
        )  # fmt: skip

    def scan(
        self, outs: list[int], x: int, dt: int, b: int, c: int, *, layer: int, heads: int, groups: int, decay: Floats,
        skip: Floats, dt_bias: Floats, spec: RecurrentSpec, offset: int,
    ) -> None:  # fmt: skip
        states = self.store.states(layer)
        self.plan.scan(x, dt, b, c, states, offset, heads, groups, decay, skip, dt_bias, outs[0])

    def given(self, outs: list[int]) -> None:
        self.plan.given(outs[0])

    def insert(self, outs: list[int], x: int, *, part: int, adds: bool) -> None:
        self.plan.insert(x, part, adds, outs[0])

    def gather(self, outs: list[int], x: int) -> None:
        self.plan.gather(x, outs[0])

    def all_reduce(self, outs: list[int], x: int, *, group: _native.ThreadCollective, rank: int) -> None:
        self.plan.all_reduce(x, group, rank, outs[0])

    def all_gather(
        self, outs: list[int], x: int, *, group: _native.ThreadCollective, rank: int, bounds: Sequence[int]
    ) -> None:
        self.plan.all_gather(x, group, rank, bounds[rank], outs[0])

    def low_rank(
        self, outs: list[int], x: int, *results: int, products: Sequence[ProductKey], logits_only: bool
    ) -> None:
        numbers = (self.products[key] for key in products)
        self.plan.low_rank(x, [*zip(numbers, results, strict=True)])

    def low_rank_rows(self, outs: list[int], rows: int, *, product: ProductKey) -> None:
        self.plan.low_rank_rows(self.products[product], self.tokens, rows)

    def rope(self, outs: list[int], x: int, *, heads: int, rope: Rope) -> None:
        if rope not in self.ropes:
            inv_freq = np.ascontiguousarray(rope.inv_freq, np.float32)
            axes = None if rope.axes is None else np.array(rope.axes, np.uint8)
            self.ropes[rope] = self.plan.rope(inv_freq, rope.scale, rope.neox, axes)
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
        causal: bool,
        radius: int,
        keep: bool,
        spans: bool,
    ) -> None:
        kv = self.store.kv(layer)
        self.plan.attend(
            number(kv.k_format), kv.k, spec.k_dim, number(kv.v_format), kv.v, spec.v_dim, self.store.group_of(layer),
            kv.rotate, q, k, v, outs[0], scale, spec.window, softcap, sinks, causal, radius, keep,
            spec.chunked, spans,
        )  # fmt: skip


def _norm_or_none(norm: tuple[Floats, float] | None) -> tuple[Floats | None, float]:
    return norm or (None, 0.0)


def row_norms(w: QuantTensor, threads: int | None = None) -> Floats:
    """The L2 norm of each row of a matrix.

    >>> from fewbit.ops.cpu import quantize
    >>> row_norms(quantize(np.ones((2, 64), np.float32), "q8_0")).round(2).tolist()
    [8.0, 8.0]
    """
    out = np.empty(w.rows, np.float32)
    _native.row_norms(packed(w), w.shape[-1], out, checked_threads(threads))
    return out

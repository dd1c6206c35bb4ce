"""Steps of one sequence, by NumPy and by native plans, and models to try them on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.formats import get
from fewbit.ops import attention, numpy
from fewbit.ops.cpu.plan import build
from fewbit.ops.graph import Graph, Rope, Value
from fewbit.ops.inserts import Inserted
from fewbit.ops.low_rank import AdapterRows
from fewbit.ops.passes import select_logits
from fewbit.ops.recorder import Ops, record
from fewbit.ops.shape_rules import ACTIVATIONS, FUSED_GATES, GATES
from fewbit.ops.specs import AttentionParams, AttentionSpec, KVArrays, PageTables

PAGE, VOCAB = 8, 19
F32 = get("f32")
SPEC = AttentionSpec(kv_heads=2, k_dim=8, v_dim=8)
ROPES = [Rope(np.array([1.0, 0.3, 0.01], np.float32), 1.2), Rope(np.array([0.7, 0.2], np.float32), neox=True)]
ROPE_WITH_AXES = Rope(np.array([0.9, 0.1, 0.3], np.float32), neox=True, axes=(0, 2, 1))


def step_extras(graph: Graph, count: int) -> dict[str, Any]:
    """Rows to insert, positions on three axes and spans for a step of so many tokens."""
    draw = np.random.default_rng(count)
    parts = {node.attributes["part"]: node.inputs[0].width for node in graph.nodes if node.operation == "insert"}
    tokens = np.flatnonzero(draw.random(count) < 0.4).astype(np.int32)
    inserted = [
        Inserted(part, tokens, draw.standard_normal((len(tokens), width), np.float32)) for part, width in parts.items()
    ]
    begins = np.sort(draw.choice(count, min(count, 3), replace=False))
    begins[0] = 0
    owner = np.searchsorted(begins, np.arange(count), side="right") - 1
    spans = np.stack([begins[owner], np.append(begins[1:], count)[owner]], axis=1).astype(np.int64)
    return {"inserted": inserted, "axes": draw.integers(0, 30, (3, count)).astype(np.int32), "spans": spans}


class Store:
    """K and V of one sequence, whose pages lie in reverse order: for plans, and a cache for NumPy."""

    def __init__(self, graph: Graph, tokens: int) -> None:
        specs = [spec for spec in graph.specs if isinstance(spec, AttentionSpec)]
        pages = -(-tokens // PAGE)
        self.tables = np.arange(pages, dtype=np.int32)[::-1].copy()
        self.lengths = np.array([tokens], np.int64)
        self.k = [np.zeros((pages, spec.kv_heads, PAGE, 4 * spec.k_dim), np.uint8) for spec in specs]
        self.v = [np.zeros((pages, spec.kv_heads, PAGE, 4 * spec.v_dim), np.uint8) for spec in specs]

    def kv(self, layer: int) -> KVArrays:
        return KVArrays(F32, self.k[layer], F32, self.v[layer])

    def group_of(self, layer: int) -> int:
        return 0

    def append(self, layer: int, sequences: Sequence[int], k: Floats, v: Floats) -> None:
        positions = np.arange(len(k))
        slots = self.tables[positions // PAGE].astype(np.int64) * PAGE + positions % PAGE
        for store, x in ((self.k, k), (self.v, v)):
            attention.kv_write(F32, store[layer], x, slots)

    def attend(self, layer: int, sequences: Sequence[int], q: Floats, params: AttentionParams) -> Floats:
        step = PageTables(self.tables, _starts(len(self.tables)), self.lengths, _starts(len(q)))
        out = np.empty((*q.shape[:2], self.v[layer].shape[3] // 4), np.float32)
        return attention.attend(q, self.kv(layer), step, params, out=out)


def run_numpy(
    graph: Graph, tokens: list[int], logits_indices: list[int], adapters: Sequence[AdapterRows] = ()
) -> Floats:
    positions = np.arange(len(tokens), dtype=np.int32)
    indices = np.array(logits_indices, np.int32)
    store = Store(graph, len(tokens))
    extras = step_extras(graph, len(tokens))
    step = numpy.NumpyStep(np.array(tokens, np.int32), positions, indices, store, [0], adapters=adapters, **extras)
    return numpy.run(graph, step)


def run_native(graph: Graph, tokens: list[int], logits_indices: list[int], *, fuse: bool, threads: int = 1) -> Floats:
    store = Store(graph, len(tokens))
    out = np.empty((len(logits_indices), graph.result.width), np.float32)
    extras = step_extras(graph, len(tokens))
    extras["inserted"] = [(one.part, one.tokens, one.rows) for one in extras["inserted"]]
    build(graph, store, fuse=fuse).run(
        np.array(tokens, np.int32), [(store.tables, _starts(len(store.tables)))], store.lengths, _starts(len(tokens)),
        np.array(logits_indices, np.int32), out, "exact", threads, **extras,
    )  # fmt: skip
    return out


def _starts(count: int) -> Any:
    return np.array([0, count], np.int64)


def near(a: Floats, b: Floats, bar: float = 1e-5) -> bool:
    return a.shape == b.shape and bool(np.abs(a - b).max(initial=0) <= bar * max(1.0, np.abs(b).max(initial=0)))


def vector(n: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(n, np.float32)


def matrix(n: int, k: int, seed: int = 0) -> fb.QuantTensor:
    x = np.random.default_rng((n, k, seed)).standard_normal((n, k), np.float32)
    return fb.quantize(x / np.float32(np.sqrt(k)), "f32")


def stack(heads: int, n: int, k: int) -> fb.QuantTensor:
    x = np.random.default_rng((heads, n, k)).standard_normal((heads, n, k), np.float32)
    return fb.quantize(x / np.float32(np.sqrt(k)), "f32")


def random_graph(seed: int, images: bool = False) -> Graph:
    """Operations that follow each other at random, with values that are used never, once or often. With `images` those
    that take what steps bring beside tokens."""
    return record(lambda ops: _random_forward(ops, Random(seed), images))


def _random_forward(ops: Ops, random: Random, images: bool) -> Value:
    values = [ops.embed(matrix(VOCAB, 16, i), 0.5 + i) for i in range(2)]
    values.append(ops.linear(values[0], matrix(32, 16)))
    layers = 0

    def any_of(width: int | None = None) -> Value:
        return random.choice([value for value in values[-8:] + values[:3] if width in (None, value.width)])

    def linear(x: Value, n: int) -> Value:
        bias = vector(n) if random.random() < 0.3 else None
        return ops.linear(x, matrix(n, x.width, random.randrange(9)), bias)

    def norm(x: Value) -> Value:
        return ops.norm(x, vector(x.width, 1), 1e-5)

    def gated() -> Value:
        x, n = norm(any_of()), random.choice([16, 32])
        return ops.gate(linear(x, n), linear(x, n), random.choice(FUSED_GATES))

    def attended() -> Value:
        nonlocal layers
        layers += 1
        attributes = _random_attention(random, images)
        return ops.attend(layers - 1, any_of(32), any_of(16), any_of(16), scale=0.3, **attributes)

    choices: list[Callable[[], Value]] = [
        lambda: linear(any_of(), random.choice([16, 32])),
        lambda: norm(any_of()),
        lambda: ops.rope(any_of(), 2, random.choice(ROPES)),
        lambda: (x := any_of()) + any_of(x.width),
        lambda: (x := any_of()) + linear(any_of(), x.width),
        gated,
        attended,
        lambda: ops.norm(x := any_of(), vector(8, 1), 1e-5, heads=x.width // 8),
        lambda: ops.layer_norm(x := any_of(), vector(x.width, 2), random.choice([None, vector(x.width, 3)]), 1e-5),
        lambda: ops.gate(x := any_of(), any_of(x.width), random.choice(GATES)),
        lambda: ops.activate(any_of(), random.choice(ACTIVATIONS)),
        lambda: ops.scale(any_of(), 0.7),
        lambda: ops.softcap(any_of(), 2.5),
        lambda: ops.clamp(any_of(), -0.75, 0.5),
        lambda: ops.shift(x := any_of(), vector(x.width, 4)),
        lambda: ops.positions(matrix(64, random.choice([16, 32]), 5)),
        lambda: ops.columns(any_of(32), random.choice([0, 1, 8]), 8, random.choice([1, 2])),
        lambda: ops.join(any_of(16), any_of(16), 2),
        lambda: ops.join(ops.columns(any_of(32), 3, 8, 2), ops.columns(any_of(16), 0, 8), 2, 1),
        lambda: ops.linear_heads(any_of(32), stack(4, random.choice([4, 8]), 8)),
    ]
    if images:
        choices += [
            lambda: ops.insert(any_of(16), 0),
            lambda: ops.insert(any_of(32), 1, adds=True),
            lambda: ops.rope(any_of(32), 2, ROPE_WITH_AXES),
        ] * 2
    values.append(attended())
    for _ in range(random.randrange(1, 16)):
        values.append(random.choice(choices)())
    return any_of()


def _random_attention(random: Random, images: bool) -> dict[str, Any]:
    window, sinks = random.choice([0, 3]), vector(4, 7) if random.random() < 0.5 else None
    spec = AttentionSpec(2, 8, 8, window, chunked=window > 0 and random.random() < 0.5)
    causal, radius = (True, 0) if window else random.choice([(True, 0), (False, 0), (False, 2)])
    spans = images and not radius and random.random() < 0.6
    softcap = random.choice([0.0, 2.0])
    return {"spec": spec, "softcap": softcap, "sinks": sinks, "causal": causal, "radius": radius, "spans": spans}


def selected(forward: Callable[[Ops], Value]) -> Graph:
    return select_logits(record(forward))


class SharedPlan:
    """A plan for prompts of up to `most` tokens, each computed from its beginning."""

    def __init__(self, graph: Graph, most: int) -> None:
        self.width, self.store = graph.result.width, Store(graph, most)
        self.plan = build(graph, self.store, fuse=True)

    def run(self, tokens: Sequence[int], threads: int = 1, activations: str | None = None) -> Floats:
        count, tables = len(tokens), self.store.tables
        out = np.empty((count, self.width), np.float32)
        self.plan.run(
            np.array(tokens, np.int32), [(tables, _starts(len(tables)))], np.array([count], np.int64), _starts(count),
            np.arange(count, dtype=np.int32), out, activations, threads,
        )  # fmt: skip
        return out

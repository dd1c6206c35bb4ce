"""The pass that makes the inputs of products the result of a graph."""

from __future__ import annotations

import numpy as np

import fewbit as fb
from fewbit.ops.graph import Value
from fewbit.ops.recorder import Ops, record
from fewbit.ops.specs import AttentionSpec
from fewbit.ops.taps import tap


def weight(rows: int, columns: int, seed: int) -> fb.QuantTensor:
    return fb.quantize(np.random.default_rng(seed).standard_normal((rows, columns), np.float32), "f32")


TABLE, FIRST, SECOND, SELECTOR, HEAD = (
    weight(10, 8, 0), weight(8, 8, 1), weight(8, 8, 2), weight(8, 8, 3), weight(10, 8, 4),
)  # fmt: skip


def forward(ops: Ops) -> Value:
    x = ops.embed(TABLE)
    q, k = ops.linear(x, FIRST), ops.linear(x, SECOND)
    y = ops.attend(0, q, k, k, spec=AttentionSpec(1, 8, 8), scale=1.0)
    return ops.linear(ops.linear(y, SELECTOR), HEAD)


def test_inputs_stand_side_by_side_once() -> None:
    graph = record(forward)
    names = {id(FIRST): "first", id(SECOND): "second", id(HEAD): "head"}
    tapped, taps = tap(graph, names)
    assert [dict(one.names) for one in taps] == [{"w": "first"}, {"w": "second"}, {"w": "head"}]
    assert [one.columns for one in taps] == [(slice(0, 8),), (slice(0, 8),), (slice(8, 16),)]
    assert (tapped.result.width, tapped.has_head) == (16, False)
    rows = np.arange(32, dtype=np.float32).reshape(2, 16)
    np.testing.assert_array_equal(taps[2].inputs(rows)[0], rows[:, 8:])


def test_what_no_product_needs_is_left_out() -> None:
    graph = record(forward)
    tapped, _ = tap(graph, {id(FIRST): "first"})
    assert [node.operation for node in tapped.nodes] == ["embed"]
    assert tapped.result.width == 8
    tapped, _ = tap(graph, {id(HEAD): "head"})
    assert [node.operation for node in tapped.nodes] == ["embed", "linear", "linear", "attend", "linear"]


def test_the_graph_itself_stays_as_it_was() -> None:
    graph = record(forward)
    nodes, result = graph.nodes, graph.result
    tap(graph, {id(FIRST): "first", id(HEAD): "head"})
    assert (graph.nodes, graph.result) == (nodes, result)

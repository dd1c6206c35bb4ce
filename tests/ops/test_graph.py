"""Graphs: what is recorded of a model, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.errors import DtypeError, ShapeError
from fewbit.ops.graph import OPERATIONS, Rope, Value
from fewbit.ops.recorder import Ops, Recorder, record
from fewbit.ops.specs import AttentionSpec, RecurrentSpec

from .steps import SPEC, VOCAB, matrix, vector


def attention(ops: Ops, x: Value, layer: int, spec: AttentionSpec = SPEC) -> Value:
    q, k, v = (ops.linear(x, matrix(n, x.width)) for n in (32, 16, 16))
    return ops.attend(layer, q, k, v, spec=spec, scale=0.5)


def test_nodes_and_result() -> None:
    table, w, bias = matrix(VOCAB, 8), matrix(8, 8), vector(8)

    def forward(ops: Ops) -> Value:
        x = ops.embed(table)
        return x + ops.linear(x, w, bias=bias)

    graph = record(forward)
    assert [node.operation for node in graph.nodes] == ["embed", "linear", "add"]
    embed, linear, add = graph.nodes
    assert embed.attributes == {"table": table, "scale": 1.0}  # defaults are filled in
    assert linear.attributes["w"] is w
    assert linear.attributes["bias"] is bias
    assert linear.inputs == embed.outputs
    assert add.inputs == (*embed.outputs, *linear.outputs)
    assert graph.result is add.outputs[0]
    assert graph.specs == ()
    assert graph.uses()[embed.outputs[0]] == 2
    assert graph.makers()[graph.result] is add


def test_table_of_operations() -> None:
    methods = {name for name, method in vars(Recorder).items() if hasattr(method, "__wrapped__")}
    assert {"embed", "norm", "linear", "gate", "add", "rope", "attend", "experts", "scan"} <= methods
    by_passes = {"given", "gather", "linears", "gated", "all_reduce", "all_gather"}  # some when they are imported
    assert methods <= set(OPERATIONS) <= methods | by_passes
    assert OPERATIONS["attend"].inputs == ("q", "k", "v")
    assert OPERATIONS["attend"].attributes == (
        "layer", "spec", "scale", "softcap", "sinks", "causal", "radius", "keep", "spans",
    )  # fmt: skip
    all_rows = {"given", "embed", "positions", "rope", "insert", "attend", "conv", "delta_rule", "scan"}
    assert {name for name, operation in OPERATIONS.items() if operation.all_rows} == all_rows


def test_specs_of_the_layers_that_keep_something() -> None:
    narrow = AttentionSpec(2, 8, 8, window=3)

    def forward(ops: Ops) -> Value:
        x = attention(ops, ops.embed(matrix(VOCAB, 16)), 2, narrow)
        ops.keep(1, RecurrentSpec(64))
        return attention(ops, x, 4)

    assert record(forward).specs == (None, RecurrentSpec(64), narrow, None, SPEC)


def test_values_of_another_length_than_keys() -> None:
    def forward(ops: Ops) -> Value:
        x = ops.embed(matrix(VOCAB, 48))
        q, k, v = (ops.linear(x, matrix(n, 48)) for n in (48, 24, 10))
        return ops.attend(0, q, k, v, spec=AttentionSpec(kv_heads=2, k_dim=12, v_dim=5), scale=1)

    assert record(forward).result.width == 4 * 5


def attend(q: int, k: int, v: int, spec: AttentionSpec = SPEC, **options: Any) -> Callable[[Ops, Value], Value]:
    def forward(ops: Ops, x: Value) -> Value:
        rows = (ops.linear(x, matrix(n, x.width)) for n in (q, k, v))
        return ops.attend(0, *rows, spec=spec, **{"scale": 1.0, **options})

    return forward


WRONG: dict[str, tuple[Callable[[Ops, Value], Any], str]] = {
    "add": (lambda ops, x: x + ops.embed(matrix(VOCAB, 24)), "add: rows of 16 values cannot be added to rows of 24"),
    "linear": (lambda ops, x: ops.linear(x, matrix(8, 24)), "linear: rows of 16 values do not fit a matrix of 8 x 24"),
    "vector": (lambda ops, x: ops.linear(x, fb.quantize(vector(16), "f32")), r"must be a matrix, its shape is \(16,\)"),
    "bias": (lambda ops, x: ops.linear(x, matrix(8, 16), vector(16)), r"a bias of \(16,\) does not fit .* 8 x 16"),
    "norm": (lambda ops, x: ops.norm(x, vector(8), 0), r"norm: a weight of \(8,\) does not fit rows of 16 values"),
    "gate": (lambda ops, x: ops.gate(x, ops.linear(x, matrix(8, 16))), "gate: rows of 16 values cannot gate rows of 8"),
    "embed": (lambda ops, x: ops.embed(fb.quantize(vector(16), "f32")), r"embed: the table must be a matrix"),
    "rope heads": (lambda ops, x: ops.rope(x, 3, Rope(vector(1))), "rope: rows of 16 values are not 3 heads"),
    "no heads": (lambda ops, x: ops.rope(x, 0, Rope(vector(1))), "rope: rows of 16 values are not 0 heads"),
    "rope": (lambda ops, x: ops.rope(x, 4, Rope(vector(3))), "rope: 6 values of a head are to be rotated, it has 4"),
    "k": (attend(32, 24, 16), "attend: k has rows of 24 values, not 2 heads of 8"),
    "kept": (attend(32, 16, 16, keep=False), "attend: layer 0 does not keep AttentionSpec"),
    "v": (attend(32, 16, 24), "attend: v has rows of 24 values, not 2 heads of 8"),
    "q": (attend(36, 16, 16), "attend: q has rows of 36 values, not heads of 8"),
    "shared heads": (attend(24, 16, 16), "attend: 3 heads of q cannot share 2 heads of K and V evenly"),
    "sinks": (attend(32, 16, 16, sinks=vector(3)), "attend: there must be a sink for each of 4 heads"),
    "a layer twice": (lambda ops, x: attention(ops, x, 1) + attention(ops, x, 1), "layer 1 cannot keep"),
}


@pytest.mark.parametrize(("forward", "text"), WRONG.values(), ids=WRONG.keys())
def test_shapes_are_checked_when_they_are_recorded(forward: Callable[[Ops, Value], Any], text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        record(lambda ops: forward(ops, ops.embed(matrix(VOCAB, 16))))


def test_wrong_kinds() -> None:
    with pytest.raises(fb.FewbitError, match="gate: there is no 'tanh'; there are: silu, gelu"):
        record(lambda ops: ops.gate(ops.embed(matrix(VOCAB, 16)), ops.embed(matrix(VOCAB, 16)), "tanh"))
    with pytest.raises(DtypeError, match="the result of forward must be rows of this step, not NoneType"):
        record(lambda ops: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(DtypeError, match="add: b must be rows of this step, not float"):
        record(lambda ops: ops.embed(matrix(VOCAB, 16)) + 1.0)  # type: ignore[operator]
    with pytest.raises(DtypeError, match="linear: x must be rows of this step, not ndarray"):
        record(lambda ops: ops.linear(np.ones(16), matrix(16, 16)))  # type: ignore[arg-type]


def test_values_of_another_graph() -> None:
    other = record(lambda ops: ops.embed(matrix(VOCAB, 16))).result
    with pytest.raises(DtypeError, match="add: b must be rows of this step, not rows of another step"):
        record(lambda ops: ops.embed(matrix(VOCAB, 16)) + other)

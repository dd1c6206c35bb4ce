"""Passes: what they make of small graphs, and that they change no result."""

from __future__ import annotations

import numpy as np
import pytest

from fewbit.errors import ArgumentError
from fewbit.ops.graph import Graph, Value
from fewbit.ops.passes import fuse, fuse_gates, fuse_norms, fuse_residuals, hidden, merge_linears, select_logits
from fewbit.ops.recorder import Ops, record

from .steps import ROPES, SPEC, VOCAB, matrix, near, random_graph, run_numpy, selected, vector


def names(graph: Graph) -> list[str]:
    """Operations in order; those on rows whose logits are wanted have a star."""
    return [node.operation + "*" * node.outputs[0].logits_only for node in graph.nodes]


def attend(ops: Ops, x: Value, layer: int) -> Value:
    q, k, v = (ops.linear(x, matrix(n, x.width)) for n in (32, 16, 16))
    return ops.attend(layer, q, k, v, spec=SPEC, scale=0.5)


def embed(ops: Ops) -> Value:
    return ops.embed(matrix(VOCAB, 32))


def test_rows_are_selected_after_the_last_attention() -> None:
    def forward(ops: Ops) -> Value:
        x = embed(ops)
        x = x + attend(ops, x, 0)
        x = x + attend(ops, ops.norm(x, vector(32), 0), 1)
        return ops.linear(x, matrix(VOCAB, 32))

    graph = selected(forward)
    attention = ["linear", "linear", "linear", "attend"]
    after = ["gather*", "gather*", "add*", "linear*"]
    assert names(graph) == ["embed", *attention, "add", "norm", *attention, *after]
    assert graph.result.logits_only
    assert graph.specs == (SPEC, SPEC)


def test_hidden_rows_stand_before_the_product_and_the_cap_of_logits() -> None:
    def forward(ops: Ops) -> Value:
        return ops.softcap(ops.scale(ops.linear(ops.norm(embed(ops), vector(32), 0), matrix(VOCAB, 32)), 0.5), 5.0)

    assert names(hidden(record(forward))) == ["embed", "norm"]
    with pytest.raises(ArgumentError, match="logits come from embed"):
        hidden(record(lambda ops: ops.softcap(embed(ops), 5.0)))


def test_without_attention_rows_are_selected_at_once() -> None:
    graph = selected(lambda ops: ops.norm(embed(ops), vector(32), 0))
    assert names(graph) == ["embed", "gather*", "norm*"]


def test_a_value_that_both_sides_read_is_gathered_once() -> None:
    def forward(ops: Ops) -> Value:
        x = ops.norm(embed(ops), vector(32), 0)
        return attend(ops, x, 0) + x + x

    graph = selected(forward)
    attention = ["linear", "linear", "linear", "attend"]
    assert names(graph) == ["embed", "norm", *attention, "gather*", "gather*", "add*", "add*"]


def test_a_result_that_attention_makes_or_reads_is_gathered() -> None:
    graph = selected(lambda ops: attend(ops, embed(ops), 0))
    assert names(graph)[-2:] == ["attend", "gather*"]

    def read(ops: Ops) -> Value:
        x = ops.norm(embed(ops), vector(32), 0)
        attend(ops, x, 0)
        return x

    assert names(selected(read))[-2:] == ["attend", "gather*"]


def test_positions_are_those_of_all_tokens() -> None:
    graph = selected(lambda ops: ops.rope(ops.norm(embed(ops), vector(32), 0), 2, ROPES[0]))
    assert names(graph) == ["embed", "norm", "rope", "gather*"]


def test_selecting_twice_is_selecting_once() -> None:
    graph = selected(lambda ops: attend(ops, embed(ops), 0))
    assert select_logits(graph) is graph


def test_gates() -> None:
    def forward(ops: Ops) -> Value:
        x = embed(ops)
        return ops.gate(ops.linear(x, matrix(8, 32, 1)), ops.linear(x, matrix(8, 32, 2)), "gelu")

    graph = fuse_gates(record(forward))
    assert names(graph) == ["embed", "gated"]
    assert graph.nodes[1].attributes == {"gate": matrix(8, 32, 1), "up": matrix(8, 32, 2), "kind": "gelu", "norm": None}


def test_gates_that_stay() -> None:
    def biased(ops: Ops) -> Value:
        x = embed(ops)
        return ops.gate(ops.linear(x, matrix(8, 32)), ops.linear(x, matrix(8, 32), vector(8)))

    def of_others(ops: Ops) -> Value:
        return ops.gate(ops.linear(embed(ops), matrix(8, 32)), ops.linear(embed(ops), matrix(8, 32)))

    def read_again(ops: Ops) -> Value:
        x = embed(ops)
        up = ops.linear(x, matrix(8, 32))
        return ops.gate(ops.linear(x, matrix(8, 32)), up) + up

    for forward in (biased, of_others, read_again):
        assert "gated" not in names(fuse_gates(record(forward)))


def test_residuals() -> None:
    def forward(ops: Ops) -> Value:
        x = embed(ops)
        return x + ops.linear(x, matrix(32, 32), vector(32))

    graph = fuse_residuals(record(forward))
    assert names(graph) == ["embed", "linears"]
    x = graph.nodes[0].outputs[0]
    assert graph.nodes[1].inputs == (x, x)
    assert len(graph.nodes[1].attributes["terms"]) == 1

    def doubled(ops: Ops) -> Value:
        y = ops.linear(embed(ops), matrix(32, 32))
        return y + y

    assert names(fuse_residuals(record(doubled))) == ["embed", "linear", "add"]


def test_products_of_the_same_rows() -> None:
    graph = merge_linears(record(lambda ops: attend(ops, embed(ops), 0)))
    assert names(graph) == ["embed", "linears", "attend"]
    assert [value.width for value in graph.nodes[1].outputs] == [32, 16, 16]
    assert graph.nodes[2].inputs == graph.nodes[1].outputs


def test_norms() -> None:
    weight = vector(32)

    def once(ops: Ops) -> Value:
        return ops.linear(ops.norm(embed(ops), weight, 0.5), matrix(8, 32))

    def twice(ops: Ops) -> Value:
        x = ops.norm(embed(ops), weight, 0)
        return x + ops.linear(x, matrix(32, 32))

    graph = fuse_norms(merge_linears(record(once)))
    assert names(graph) == ["embed", "linears"]
    assert graph.nodes[1].attributes["norm"][0] is weight
    assert graph.nodes[1].attributes["norm"][1] == 0.5
    assert names(fuse(record(twice))) == ["embed", "norm", "linears"]


@pytest.mark.parametrize("seed", range(60))
def test_passes_change_no_result(seed: int) -> None:
    graph = random_graph(seed, images=seed % 2 == 1)
    before = names(graph)
    tokens = [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, 11)]
    expected = run_numpy(graph, tokens, [])  # of all rows
    for wanted in ([], [10], [0, 3, 10], list(range(11))):
        chosen = select_logits(graph)
        assert np.isfinite(expected).all()
        assert near(run_numpy(chosen, tokens, wanted), expected[wanted])
        assert near(run_numpy(fuse(chosen), tokens, wanted), expected[wanted])
    assert names(graph) == before  # a pass leaves what it is given alone

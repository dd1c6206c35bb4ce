"""Routed experts: native plans beside NumPy, in every format, routing and number of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.ops import cpu
from fewbit.ops.cpu.plan import build
from fewbit.ops.experts import route
from fewbit.ops.graph import Graph, Value
from fewbit.ops.passes import select_logits
from fewbit.ops.recorder import Ops
from fewbit.ops.shape_rules import ACTIVATIONS, GATES
from fewbit.ops.specs import Routing

from . import near_ties
from .steps import SPEC, Store, matrix, near, run_native, run_numpy, selected

BIAS = np.linspace(0.3, -0.3, 8, dtype=np.float32)
ROUTINGS = {
    "softmax": Routing(2),
    "softmax as it is": Routing(3, normalize=False),
    "softmax of the chosen": Routing(4, "softmax_top"),
    "sigmoid": Routing(2, "sigmoid", scale=2.5),
    "bias": Routing(3, "sigmoid", bias=BIAS),
    "groups": Routing(2, "sigmoid", bias=BIAS, groups=4, top_groups=2, group_top=2),
    "best of groups": Routing(2, groups=2, top_groups=1),
    "all": Routing(8),
    "scales": Routing(3, expert_scale=np.abs(BIAS) + np.float32(0.5)),
    "one": Routing(1, normalize=False),
}
VOCAB = 64


def stack(count: int, n: int, k: int, format: str, seed: int) -> fb.QuantTensor:
    x = np.random.default_rng((n, k, seed)).standard_normal((count, n, k), np.float32)
    return fb.quantize(x / np.float32(np.sqrt(k)), format)


def biases(count: int, n: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((count, n), np.float32)


def graph_of(format: str, routing: Routing, n: int = 64, k: int = 256, *, repack: bool = False, **given: Any) -> Graph:
    """Experts, 8 of them, behind a table of embeddings."""
    count = 8
    shape = cpu.repack if repack else lambda w: w
    parts: dict[str, Any] = {"up": shape(stack(count, n, k, format, 1)), "down": shape(stack(count, k, n, format, 2))}
    if given.pop("gated", True):
        parts["gate"] = shape(stack(count, n, k, format, 3))
    if given.pop("biased", False):
        parts |= {"up_bias": biases(count, n, 4), "down_bias": biases(count, k, 6)}
        parts |= {"gate_bias": biases(count, n, 5)} if "gate" in parts else {}

    def forward(ops: Ops) -> Value:
        x = ops.embed(matrix(VOCAB, k), 8.0)
        ops.attend(0, *[ops.embed(matrix(VOCAB, 16))] * 3, spec=SPEC, scale=1)
        return ops.experts(x, ops.linear(x, matrix(count, k, 9)), routing=routing, **parts, **given)

    return selected(forward)


def run(
    graph: Graph, tokens: list[int], threads: int = 1, activations: str | None = "exact", invariant: bool = False
) -> tuple[Floats, int]:
    """All rows of a step, and the bytes of the experts that it read."""
    store, out = Store(graph, len(tokens)), np.empty((len(tokens), graph.result.width), np.float32)
    plan = build(graph, store, batch_invariant=invariant)
    tables = [(store.tables, np.array([0, len(store.tables)], np.int64))]
    starts = np.array([0, len(tokens)], np.int64)
    ids, rows = np.array(tokens, np.int32), np.arange(len(tokens), dtype=np.int32)
    plan.run(ids, tables, store.lengths, starts, rows, out, activations, threads)
    return out, plan.expert_bytes()


def some_tokens(count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(count).integers(0, VOCAB, count)]


def expected_of(graph: Graph, tokens: list[int]) -> Floats:
    return run_numpy(graph, tokens, list(range(len(tokens))))


@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_routings(routing: Routing, rows: int) -> None:
    graph, tokens = graph_of("f32", routing), some_tokens(rows)
    assert near(run(graph, tokens, threads=2)[0], expected_of(graph, tokens))


def test_no_rows() -> None:
    assert run_native(graph_of("f32", Routing(2)), [3, 1], [], fuse=True).shape == (0, 256)


@pytest.mark.parametrize("repack", [False, True], ids=["rows", "repacked"])
@pytest.mark.parametrize("format", ["f16", "q8_0", "q4_k", "mxfp4"])
def test_formats(isa: str, format: str, repack: bool) -> None:
    graph = graph_of(format, Routing(2), n=256, repack=repack)
    for rows in (1, 3, 70):
        tokens = some_tokens(rows)
        expected = expected_of(graph, tokens)
        assert near(run(graph, tokens)[0], expected)
        assert near(run(graph, tokens, 2, None)[0], expected, 0.03)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("biased", [False, True], ids=["", "biased"])
def test_gates(kind: str, biased: bool) -> None:
    graph, tokens = graph_of("f32", Routing(2), kind=kind, biased=biased), some_tokens(9)
    assert near(run(graph, tokens)[0], expected_of(graph, tokens))


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("biased", [False, True], ids=["", "biased"])
def test_without_a_gate(kind: str, biased: bool) -> None:
    graph, tokens = graph_of("f32", Routing(2), gated=False, kind=kind, biased=biased), some_tokens(9)
    assert near(run(graph, tokens)[0], expected_of(graph, tokens))


def test_rows_that_are_no_whole_sets_stay_as_they_are() -> None:
    assert cpu.repack(stack(4, 24, 256, "q4_k", 0)).layout == "rows"
    graph, tokens = graph_of("q8_0", Routing(2), n=32, k=96), some_tokens(6)
    assert near(run(graph, tokens, 2)[0], expected_of(graph, tokens))


def test_matrices_of_a_stack_that_is_interleaved() -> None:
    w = stack(5, 32, 256, "q4_k", 0)
    packed = cpu.repack(w)
    assert packed == w
    for index in (0, 4, slice(1, 3), slice(None, None, 2), [3, 1]):
        assert packed[index] == w[index]
        assert packed[index].layout == packed.layout


@pytest.mark.parametrize("activations", ["exact", None])
@pytest.mark.parametrize("rows", [1, 7, 90])
def test_threads_do_not_change_results(isa: str, rows: int, activations: str | None) -> None:
    graph, tokens = graph_of("q4_k", Routing(3), n=256, repack=True), some_tokens(rows)
    alone = run(graph, tokens, 1, activations)[0]
    for threads in (2, 5):
        np.testing.assert_array_equal(run(graph, tokens, threads, activations)[0], alone)


def test_same_bits_beside_other_rows(isa: str) -> None:
    graph, tokens = graph_of("q4_k", Routing(3), n=256, repack=True), some_tokens(75)
    together = run(graph, tokens, 2, None, invariant=True)[0]
    alone = [run(graph, [token], 1, None, invariant=True)[0] for token in tokens]
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_only_the_chosen_experts_are_read() -> None:
    graph = graph_of("q4_k", Routing(2), n=256)
    node = next(node for node in graph.nodes if node.operation == "experts")
    each = sum(node.attributes[name].nbytes for name in ("gate", "up", "down")) // 8
    assert run(graph, [3])[1] == 2 * each
    assert run(graph, [3] * 50)[1] == 2 * each  # each matrix once, for all rows
    assert run(graph, some_tokens(60))[1] == 8 * each


@given(
    st.integers(0, 2**32 - 1), st.sampled_from(list(ROUTINGS.values())), st.integers(1, 50), st.sampled_from([1, 9, 30])
)
def test_choices_are_those_of_numpy(seed: int, routing: Routing, rows: int, spread: int) -> None:
    """The scores themselves go in; experts add their own number to a row, so that the sum tells which were chosen."""
    count, k = 8, 8
    scores = np.random.default_rng(seed).standard_normal((rows, count)).astype(np.float32) * np.float32(spread)
    numbers = np.broadcast_to(np.eye(count, k, dtype=np.float32)[:, :, None], (count, k, 1))  # expert e gives unit e
    ones = fb.quantize(np.ones((count, 1, k), np.float32), "f32")
    shifts = biases(count, 1, 0) * 0 + 1  # up(x) = 0 * x + 1

    def forward(ops: Ops) -> Value:
        x = ops.embed(fb.quantize(scores, "f32"))
        ops.attend(0, *[ops.embed(matrix(rows, 16))] * 3, spec=SPEC, scale=1)
        zero = ops.scale(x, 0.0)
        down = fb.quantize(np.ascontiguousarray(numbers), "f32")
        return ops.experts(zero, x, up=ones, down=down, routing=routing, kind="relu", up_bias=shifts)

    got = run(selected(forward), list(range(rows)))[0]
    chosen, weights = route(scores, routing)
    expected = np.zeros((rows, count))
    np.put_along_axis(expected, chosen, weights, axis=1)
    assert near(got, expected.astype(np.float32), 1e-6)


def test_scores_that_are_no_numbers_choose_something() -> None:
    graph = graph_of("f32", replace(ROUTINGS["groups"], bias=np.full(8, np.nan, np.float32)))
    assert run(graph, some_tokens(3))[0].shape == (3, 256)


@pytest.mark.parametrize("activations", [None, "int8", "int16"])
@pytest.mark.parametrize("format", near_ties.FORMATS)
def test_near_ties_are_decided_in_f32(isa: str, format: str, activations: str | None) -> None:
    """Whatever the precision of other products: rounded scores would choose other experts."""
    graph, expected = select_logits(near_ties.tied_graph(format)), near_ties.tied_rows(format)[2]
    for rows in (1, 7, 14, near_ties.TOKENS):
        got = run(graph, list(range(rows)), 2, activations)[0]
        np.testing.assert_array_equal(near_ties.chosen_in(got), expected[:rows])


def test_near_ties_are_lost_in_8_bits() -> None:
    """The case is hard enough."""
    rows, router, expected = near_ties.tied_rows("q8_0")
    assert (fb.linear(rows, router, activations="int8").argmax(axis=1) != expected).sum() > 10

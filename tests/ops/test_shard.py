"""Graphs of ranks: together they give what the whole graph gives."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.errors import RequestError
from fewbit.ops import cpu
from fewbit.ops.collective import ThreadGroup
from fewbit.ops.cut import factors_of
from fewbit.ops.graph import Graph, Node, Value
from fewbit.ops.low_rank import LowRank, add_terms
from fewbit.ops.passes import select_logits
from fewbit.ops.recorder import Ops, record
from fewbit.ops.regions import cut_evenly, find_cuts
from fewbit.ops.shard import make_shard
from fewbit.ops.specs import AttentionSpec, Routing

from .steps import ROPES, VOCAB, AdapterRows, matrix, near, random_graph, run_native, run_numpy, stack, vector

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
ROWS = [0, 4, 10]


def run_ranks(run: Callable[[Graph], Floats], graph: Graph, ranks: int, group: Any) -> list[Floats]:
    """What each rank gives, all in threads of their own."""
    graphs = [select_logits(make_shard(graph, ranks, rank, group).graph) for rank in range(ranks)]
    with ThreadPoolExecutor(ranks) as pool:
        return [*pool.map(run, graphs)]


def check(graph: Graph, ranks: int) -> None:
    expected = run_numpy(select_logits(graph), TOKENS, ROWS)
    by_numpy = run_ranks(lambda one: run_numpy(one, TOKENS, ROWS), graph, ranks, ThreadGroup(ranks))
    for fuse in (True, False):
        run = partial(run_native, tokens=TOKENS, logits_indices=ROWS, fuse=fuse)
        native = run_ranks(run, graph, ranks, cpu.ThreadCollective(ranks))
        assert all(near(found, expected, 1e-4) for found in native)
        assert all((found == native[0]).all() for found in native)  # the same bits everywhere
    assert all(near(found, expected, 1e-4) for found in by_numpy)


def attention(ops: Ops, x: Value, layer: int, heads: int, kv_heads: int, **rest: Any) -> Value:
    q = ops.linear(x, matrix(8 * heads, x.width, 1), vector(8 * heads, 2))
    k, v = (ops.linear(x, matrix(8 * kv_heads, x.width, seed)) for seed in (3, 4))
    q, k = ops.rope(ops.norm(q, vector(8), 1e-5, heads), heads, ROPES[0]), ops.rope(k, kv_heads, ROPES[0])
    y = ops.attend(layer, q, k, v, spec=AttentionSpec(kv_heads, 8, 8), scale=0.3, sinks=vector(heads, 5), **rest)
    return ops.linear(y, matrix(x.width, 8 * heads, 6), vector(x.width, 7))


def feed_forward(ops: Ops, x: Value, n: int) -> Value:
    gate, up = (ops.linear(x, matrix(n, x.width, seed), vector(n, seed)) for seed in (8, 9))
    return ops.linear(ops.gate(gate, up, "silu"), matrix(x.width, n, 10), vector(x.width, 11))


def blocks(heads: int, kv_heads: int, n: int, vocab: int = VOCAB) -> Graph:
    def forward(ops: Ops) -> Value:
        x = ops.embed(matrix(VOCAB, 16), 4.0)
        for layer in range(2):
            x = x + attention(ops, ops.norm(x, vector(16), 1e-5), layer, heads, kv_heads)
            x = x + feed_forward(ops, ops.norm(x, vector(16, 1), 1e-5), n)
        return ops.softcap(ops.linear(x, matrix(vocab, 16, 12)), 5.0)

    return record(forward)


@settings(max_examples=12, deadline=None)
@given(
    ranks=st.integers(2, 4), per_group=st.integers(1, 3), kv_heads=st.integers(4, 7), n=st.integers(16, 40),
    vocab=st.integers(4, 70),
)  # fmt: skip
def test_ragged_blocks(ranks: int, per_group: int, kv_heads: int, n: int, vocab: int) -> None:
    graph = blocks(per_group * kv_heads, kv_heads, n, vocab)
    check(graph, ranks)
    shards = [make_shard(graph, ranks, rank) for rank in range(ranks)]
    spans = [shard.kept[1] for shard in shards]
    assert [first[1] == then[0] for first, then in pairwise(spans) if first and then] == [True] * (ranks - 1)
    counts = [sum(node.operation == "all_reduce" for node in shard.graph.nodes) for shard in shards]
    assert counts == [4] * ranks
    total = sum(w.nbytes for w in factors_of(graph).values())
    assert sum(w.nbytes for shard in shards for w in factors_of(shard.graph).values()) == total


def test_a_few_columns_are_computed_everywhere() -> None:
    graph = blocks(4, 4, 3)
    check(graph, 4)
    for rank in range(4):
        nodes = make_shard(graph, 4, rank).graph.nodes
        assert sum(node.operation == "all_reduce" for node in nodes) == 2  # after attention alone


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs(seed: int) -> None:
    graph = random_graph(seed)
    try:
        find_cuts(graph, 2)
    except RequestError:
        return  # heads that something needs all of
    check(graph, 2)


def test_one_head_of_k_and_v_is_everywhere() -> None:
    graph = blocks(6, 1, 12)
    check(graph, 3)
    shard = make_shard(graph, 3, 1)
    assert shard.kept == {}
    assert shard.graph.specs == graph.specs


@pytest.mark.parametrize("is_gated", [True, False])
def test_experts(is_gated: bool) -> None:
    def forward(ops: Ops) -> Value:
        x = ops.embed(matrix(VOCAB, 16), 4.0)
        x = x + attention(ops, x, 0, 4, 2)
        given: dict[str, Any] = {"up": stack(4, 24, 16), "down": stack(4, 16, 24), "routing": Routing(2)}
        given |= {"up_bias": matrix(4, 24).dequantize(), "down_bias": matrix(4, 16).dequantize()}
        if is_gated:
            given |= {"gate": stack(4, 24, 16), "gate_bias": matrix(4, 24, 1).dequantize()}
        return x + ops.experts(x, ops.linear(x, matrix(4, 16)), **given, kind="silu")

    check(record(forward), 2)


def test_heads_of_their_own_matrices() -> None:
    """As with latents: one head of K and V, and matrices for each head of q."""

    def forward(ops: Ops) -> Value:
        x = ops.embed(matrix(VOCAB, 16), 4.0)
        q = ops.linear(x, matrix(4 * 12, 16))
        latents = ops.linear_heads(ops.columns(q, 0, 8, 4), stack(4, 8, 8))
        q = ops.join(latents, ops.rope(ops.columns(q, 8, 4, 4), 4, ROPES[1]), 4)
        k = ops.linear(x, matrix(12, 16, 1))
        spec = AttentionSpec(1, 12, 8)
        y = ops.attend(0, q, k, ops.linear(x, matrix(8, 16, 2)), spec=spec, scale=0.3)
        return x + ops.linear(ops.linear_heads(y, stack(4, 6, 8)), matrix(16, 24))

    check(record(forward), 2)
    check(record(forward), 4)


def test_a_norm_of_all_heads_is_made_whole_and_read_in_parts() -> None:
    def forward(ops: Ops) -> Value:
        x = ops.embed(matrix(VOCAB, 16), 4.0)
        q, k = (ops.norm(ops.linear(x, matrix(32, 16, seed)), vector(32), 1e-5) for seed in (0, 1))
        v = ops.linear(x, matrix(32, 16, 2))
        return x + ops.linear(ops.attend(0, q, k, v, spec=AttentionSpec(4, 8, 8), scale=0.3), matrix(16, 32))

    check(record(forward), 2)


def test_adapters_add_to_parts_of_products() -> None:
    graph = blocks(4, 2, 24)
    selected = select_logits(graph)
    random = np.random.default_rng(0)

    def term(key: Any, n: int, k: int) -> LowRank:
        a, b = (random.standard_normal(shape, np.float32) for shape in ((3, k), (n, 3)))
        return LowRank(a, b, 0.5, n, k)

    matrices = [node.attributes["w"] for node in graph.nodes if node.operation == "linear"]
    terms = {("linear", id(w)): term(w, *w.shape) for w in matrices}
    square = next(w for w in matrices if w.shape == (16, 32))
    terms["linear", id(square)] = LowRank(None, random.standard_normal((16, 32), np.float32), 0.3, 16, 32)
    wide = next(w for w in matrices if w.shape == (24, 16))
    terms["linear", id(wide)] = LowRank(random.standard_normal((24, 16), np.float32), None, 0.3, 24, 16)
    rows = np.array([0, 2, 3, 10], np.int32)
    weights = np.array([1, 0.5, 2, 1], np.float32)

    def used(terms: Any) -> list[AdapterRows]:
        return [AdapterRows(terms, rows, weights, np.array([0, 2], np.int32), np.ones(2, np.float32))]

    expected = run_numpy(add_terms(selected, terms), TOKENS, ROWS, used(terms))
    assert not near(run_numpy(selected, TOKENS, ROWS), expected, 1e-2)
    group = ThreadGroup(2)

    def run(rank: int) -> Floats:
        shard = make_shard(graph, 2, rank, group)
        own = shard.terms_of(terms)
        assert len(own) == len(terms)
        return run_numpy(add_terms(select_logits(shard.graph), own), TOKENS, ROWS, used(own))

    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(run, range(2)):
            assert near(found, expected, 1e-4)


@pytest.mark.parametrize(
    ("graph", "ranks", "message"),
    [
        (blocks(4, 2, 24), 4, r"tensor_parallel=4: the attention of layer 0 can be divided into 2 parts at most "
         r"\(2 heads of K and V\)$"),
        (blocks(2, 1, 24), 3, r"the attention of layer 0 can be divided into 2 parts at most \(2 heads\)"),
        (blocks(1, 1, 24), 2, "the attention of layer 0 cannot be divided, since it has one head"),
    ],
)  # fmt: skip
def test_what_cannot_be_divided(graph: Graph, ranks: int, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make_shard(graph, ranks, 0)


def test_blocks_of_a_format_bound_the_parts() -> None:
    def forward(ops: Ops) -> Value:
        x = ops.embed(matrix(VOCAB, 16))
        down = fb.quantize(np.ones((16, 512), np.float32), "q4_k")
        return ops.linear(ops.activate(ops.linear(x, matrix(512, 16)), "relu"), down) + x

    graph = record(forward, has_head=False)
    cuts = find_cuts(graph, 2)
    assert {one.bounds for one in cuts.values()} == {(0, 256, 512)}
    with pytest.raises(RequestError, match=r"into 2 parts at most \(q4_k is cut between blocks of 256 columns\)"):
        make_shard(graph, 3, 0)


@given(count=st.integers(1, 400), step=st.integers(1, 40), ranks=st.integers(1, 9))
def test_parts_are_as_even_as_steps_allow(count: int, step: int, ranks: int) -> None:
    if -(-count // step) < ranks:
        return
    bounds = cut_evenly(count, step, ranks, "it").bounds
    sizes = [end - first for first, end in pairwise(bounds)]
    assert (bounds[0], bounds[-1], len(sizes)) == (0, count, ranks)
    assert all(bound % step == 0 for bound in bounds[:-1])
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) < 2 * step


def test_nothing_is_divided_twice() -> None:
    """A product of divided rows gives a sum, which is whole."""

    def forward(ops: Ops) -> Value:
        x = ops.embed(matrix(VOCAB, 16))
        hidden = ops.activate(ops.linear(x, matrix(32, 16)), "relu")
        return ops.linear(ops.activate(ops.linear(hidden, matrix(24, 32)), "relu"), matrix(16, 24))

    graph = record(forward, has_head=False)
    check(graph, 2)
    nodes: tuple[Node, ...] = make_shard(graph, 2, 0).graph.nodes
    assert [node.operation for node in nodes].count("all_reduce") == 1

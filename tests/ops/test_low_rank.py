"""Low-rank terms of adapters: the pass, and native plans beside NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fewbit as fb
from fewbit import _native
from fewbit.arrays import Floats
from fewbit.ops import cpu
from fewbit.ops.cpu.adapters import native_adapter
from fewbit.ops.cpu.plan import build
from fewbit.ops.graph import Graph, Value
from fewbit.ops.low_rank import AdapterRows, LowRank, ProductKey, Terms, add_terms, to_floats
from fewbit.ops.passes import fuse, select_logits
from fewbit.ops.recorder import Ops, record

from .steps import SPEC, VOCAB, Store, matrix, near, random_graph, run_native, run_numpy, vector

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 11]


def keys_of(graph: Graph) -> dict[ProductKey, tuple[int, int]]:
    """All products of a graph that an adapter may change, and their shapes."""
    found: dict[ProductKey, tuple[int, int]] = {}
    for node in graph.nodes:
        if node.operation == "linear":
            found["linear", id(node.attributes["w"])] = node.attributes["w"].shape
        elif node.operation == "embed":
            tokens, width = node.attributes["table"].shape
            found["embed", id(node.attributes["table"])] = width, tokens
    return found


def bits(values: Floats, kind: str) -> Any:
    if kind == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16 if kind == "f16" else np.float32)


def random_terms(graph: Graph, seed: int, share: float = 1.0) -> Terms:
    """Terms of some of the products, of any rank and kind, and now and then without A or B."""
    random = np.random.default_rng(seed)
    terms: dict[ProductKey, LowRank] = {}
    for key, (n, k) in keys_of(graph).items():
        if random.random() > share:
            continue
        is_table, r = key[0] == "embed", int(random.integers(1, 9))
        kind, form = random.choice(["f32", "f16", "bf16"]), random.integers(0, 6)
        r = k if form == 0 and not is_table else n if form == 1 else r
        a = random.standard_normal((k, r) if is_table else (r, k), np.float32) / np.float32(np.sqrt(k))
        b = random.standard_normal((n, r), np.float32) / np.float32(np.sqrt(r))
        without_a, without_b = form == 0 and not is_table, form == 1
        terms[key] = LowRank(
            None if without_a else bits(a, kind), None if without_b else bits(b, kind), float(random.random()), n, k
        )
    return terms


def rows_of(adapter: Any, rows: Sequence[int], weights: Sequence[float], logits: Sequence[int]) -> AdapterRows:
    by_row = dict(zip(rows, weights, strict=True))
    wanted = [i for i, row in enumerate(logits) if row in by_row]
    return AdapterRows(
        adapter, np.array(rows, np.int32), np.array(weights, np.float32), np.array(wanted, np.int32),
        np.array([by_row[logits[i]] for i in wanted], np.float32),
    )  # fmt: skip


def run_both(
    graph: Graph, adapters: Sequence[tuple[Terms, list[int], list[float]]], logits: list[int], *, fuse: bool,
    threads: int = 1,
) -> tuple[Floats, Floats]:  # fmt: skip
    """What a native plan gives, and what NumPy does. Tokens of the step use some adapters with weights."""
    keys = {key: number for number, key in enumerate(sorted({key for terms, *_ in adapters for key in terms}))}
    given = [rows_of(terms, rows, weights, logits) for terms, rows, weights in adapters]
    expected = run_numpy(add_terms(graph, keys), TOKENS, logits, given)
    store = Store(graph, len(TOKENS))
    out = np.empty((len(logits), graph.result.width), np.float32)
    taken = [
        (native_adapter(one.adapter, keys), one.rows, one.weights, one.logits_rows, one.logits_weights) for one in given
    ]
    build(graph, store, fuse=fuse, products=keys).run(
        np.array(TOKENS, np.int32), [(store.tables, np.array([0, len(store.tables)], np.int64))], store.lengths,
        np.array([0, len(TOKENS)], np.int64), np.array(logits, np.int32), out, "exact", threads, adapters=taken,
    )  # fmt: skip
    return out, expected


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "as recorded"])
@pytest.mark.parametrize("seed", range(40))
def test_plans_give_what_numpy_gives(seed: int, fused: bool) -> None:
    graph = select_logits(random_graph(seed))
    adapters = [
        (random_terms(graph, seed, 0.7), [0, 1, 2, 5], [1.0, 0.5, 1.0, 0.25]),
        (random_terms(graph, seed + 100, 0.7), [*range(2, 11)], [1.0] * 9),
    ]
    for wanted in ([], [10], [0, 3, 10], [*range(11)]):
        out, expected = run_both(graph, adapters, wanted, fuse=fused, threads=1 + seed % 3)
        assert near(out, expected, 1e-4)


def blocks(ops: Ops) -> Value:
    """A block with everything that is fused: norms, q, k and v, residuals, a gate, and a head."""
    x = ops.embed(matrix(VOCAB, 16))
    h = ops.norm(x, vector(16), 1e-5)
    q, k, v = (ops.linear(h, matrix(16, 16, i)) for i in range(3))
    x = x + ops.linear(ops.attend(0, q, k, v, spec=SPEC, scale=1), matrix(16, 16, 3))
    h = ops.norm(x, vector(16), 1e-5)
    x = x + ops.linear(ops.gate(ops.linear(h, matrix(100, 16, 4)), ops.linear(h, matrix(100, 16, 5))), matrix(16, 100))
    return ops.linear(ops.norm(x, vector(16), 1e-5), matrix(VOCAB, 16, 6))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.floats(0.1, 1), st.lists(st.integers(0, 3), min_size=11, max_size=11))
def test_terms_beside_fused_operations(seed: int, share: float, users: list[int]) -> None:
    """Rows of several adapters and of none, in one step."""
    graph = select_logits(record(blocks))
    adapters = []
    for bit in range(2):
        rows = [row for row, used in enumerate(users) if used >> bit & 1]
        adapters.append((random_terms(graph, seed + bit, share), rows, [0.5 + row % 2 for row in rows]))
    out, expected = run_both(graph, adapters, [0, 4, 9, 10], fuse=True)
    assert near(out, expected, 1e-4)


def test_a_graph_keeps_its_fused_operations_where_no_adapter_changes_a_product() -> None:
    graph = fuse(select_logits(record(blocks)))
    assert add_terms(graph, ()).nodes == graph.nodes
    down = next(node for node in graph.nodes if node.operation == "gated")
    reader = next(node for node in graph.nodes if down.outputs[0] in node.inputs)
    key = "linear", id(reader.attributes["terms"][0][0])
    operations = [node.operation for node in add_terms(graph, {key}).nodes]
    assert operations.count("low_rank") == 1
    assert "gated" in operations


def test_terms_are_what_merged_weights_give() -> None:
    x = np.random.default_rng(0).standard_normal((VOCAB, 16), np.float32)
    a, b = (np.random.default_rng(i).standard_normal(shape, np.float32) for i, shape in enumerate([(3, 16), (24, 3)]))
    w = matrix(24, 16)
    table = fb.quantize(x, "f32")

    def forward(ops: Ops, product: fb.QuantTensor) -> Value:
        h = ops.embed(table)
        ops.attend(0, h, h, h, spec=SPEC, scale=1)
        return ops.linear(h, product)

    graph = select_logits(record(lambda ops: forward(ops, w)))
    terms = {("linear", id(w)): LowRank(a, b, 0.5, 24, 16)}
    out, _ = run_both(graph, [(terms, [*range(11)], [2.0] * 11)], [*range(11)], fuse=True)
    merged = fb.quantize(w.dequantize() + b @ a, "f32")
    expected = run_native(select_logits(record(lambda ops: forward(ops, merged))), TOKENS, [*range(11)], fuse=True)
    assert near(out, expected)


@pytest.mark.parametrize("isa", cpu.isas())
def test_every_instruction_set(isa: str) -> None:
    graph = select_logits(record(blocks))
    adapters = [(random_terms(graph, seed), [*range(seed, 11)], [1.0] * (11 - seed)) for seed in range(3)]
    with cpu.forced_isa(isa):
        out, expected = run_both(graph, adapters, [*range(11)], fuse=True)
    assert near(out, expected, 1e-4)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_has_the_same_bits_beside_any_others(threads: int) -> None:
    graph = select_logits(record(blocks))
    terms, other = random_terms(graph, 1), random_terms(graph, 2)
    alone, _ = run_both(graph, [(terms, [10], [0.7])], [10], fuse=True)
    beside, _ = run_both(
        graph, [(terms, [0, 1, 2, 3, 10], [1.0, 1.0, 1.0, 1.0, 0.7]), (other, [5], [1.0])], [10], fuse=True,
        threads=threads,
    )  # fmt: skip
    again, _ = run_both(
        graph, [(terms, [0, 1, 2, 3, 10], [1.0, 1.0, 1.0, 1.0, 0.7]), (other, [5], [1.0])], [10], fuse=True
    )
    np.testing.assert_array_equal(beside, again)
    assert alone.shape == beside.shape


def test_bf16() -> None:
    assert to_floats(bits(np.array([1.5, -2.0], np.float32), "bf16")).tolist() == [1.5, -2.0]


def test_what_is_refused() -> None:
    def adapter(**changed: Any) -> None:
        given = {"product": 0, "a": data, "b": data, "kind": "f32", "r": 2, "k": 4, "n": 4, "scale": 1.0}
        _native.Adapter().add(**(given | {"is_table": False} | changed))

    data = np.zeros(32, np.uint8)
    adapter()
    for changed, why in (
        ({"kind": "q4_0"}, "f32, f16 or bf16"),
        ({"r": 3}, "bytes of A: got 32, expected 48"),
        ({"a": None}, "ranks of a term without A"),
        ({"b": None}, "ranks of a term without B"),
        ({"r": 0}, "at least one rank"),
        ({"k": 1 << 40}, "at least one rank|bytes"),
        ({"product": 1 << 30}, "number of a product"),
    ):
        with pytest.raises(ValueError, match=why):
            adapter(**changed)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"rows": np.array([1, 1], np.int32)}, "must ascend"),
        ({"rows": np.array([0, 11], np.int32)}, "rows of the step"),
        ({"rows": np.array([-1, 0], np.int32)}, "must ascend"),
        ({"weights": np.ones(3, np.float32)}, "weights of an adapter's rows"),
        ({"logits_rows": np.array([0, 5], np.int32), "logits_weights": np.ones(2, np.float32)}, "rows of the step"),
    ],
)
def test_rows_of_adapters_are_checked(changed: dict[str, Any], why: str) -> None:
    graph = select_logits(record(blocks))
    terms = random_terms(graph, 0)
    keys = {key: number for number, key in enumerate(terms)}
    store, out = Store(graph, len(TOKENS)), np.empty((1, graph.result.width), np.float32)
    one = replace(rows_of(native_adapter(terms, keys), [0, 1], [1, 1], [10]), **changed)
    with pytest.raises(ValueError, match=why):
        build(graph, store, products=keys).run(
            np.array(TOKENS, np.int32), [(store.tables, np.array([0, len(store.tables)], np.int64))], store.lengths,
            np.array([0, len(TOKENS)], np.int64), np.array([10], np.int32), out, "exact", 1,
            adapters=[(one.adapter, one.rows, one.weights, one.logits_rows, one.logits_weights)],
        )  # fmt: skip


def test_shapes_of_terms_are_those_of_the_plan() -> None:
    graph = select_logits(record(blocks))
    key = next(key for key in keys_of(graph) if key[0] == "linear")
    wrong = {key: LowRank(np.zeros((2, 8), np.float32), np.zeros((16, 2), np.float32), 1.0, 16, 8)}
    store, out = Store(graph, len(TOKENS)), np.empty((0, graph.result.width), np.float32)
    rows = np.zeros(0, np.int32)
    with pytest.raises(ValueError, match="columns of A: got 8, expected 16"):
        build(graph, store, products={key: 0}).run(
            np.array(TOKENS, np.int32), [(store.tables, np.array([0, len(store.tables)], np.int64))], store.lengths,
            np.array([0, len(TOKENS)], np.int64), rows, out, "exact", 1,
            adapters=[(native_adapter(wrong, {key: 0}), rows, rows.astype(np.float32), rows, rows.astype(np.float32))],
        )  # fmt: skip

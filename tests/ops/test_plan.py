"""Native plans of graphs, beside NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import fewbit as fb
from fewbit.ops import cpu
from fewbit.ops.cpu.plan import PlanBuilder, build
from fewbit.ops.cuda.plan import FUNCTIONS as CUDA_FUNCTIONS
from fewbit.ops.cuda.plan import Builder as CudaBuilder
from fewbit.ops.graph import OPERATIONS, Rope, Value
from fewbit.ops.low_rank import ADDED
from fewbit.ops.numpy import ACTIVATION_FUNCTIONS, FUNCTIONS
from fewbit.ops.passes import select_logits
from fewbit.ops.recorder import Ops, record
from fewbit.ops.shape_rules import ACTIVATIONS, FUSED_GATES, GATES
from fewbit.ops.specs import AttentionSpec

from .steps import (
    ROPE_WITH_AXES,
    ROPES,
    SPEC,
    VOCAB,
    Store,
    matrix,
    near,
    random_graph,
    run_native,
    run_numpy,
    selected,
    vector,
)  # fmt: skip


def attending(forward: Callable[[Ops], Value]) -> Callable[[Ops], Value]:
    """The same beside an attention that nobody reads: a plan needs one to know the pages."""

    def with_attention(ops: Ops) -> Value:
        x = ops.embed(matrix(VOCAB, 16))
        ops.attend(0, x, x, x, spec=SPEC, scale=1)
        return forward(ops)

    return with_attention


def test_every_operation_is_everywhere() -> None:
    known = set(OPERATIONS) | ADDED
    assert set(FUNCTIONS) == known
    builders = {name for name, method in vars(PlanBuilder).items() if callable(method) and not name.startswith("_")}
    assert builders - {"build"} == known
    on_gpu = {name for name in dir(CudaBuilder) if callable(getattr(CudaBuilder, name)) and not name.startswith("_")}
    assert on_gpu.isdisjoint(CUDA_FUNCTIONS)
    assert (on_gpu - {"build"}) | set(CUDA_FUNCTIONS) == set(OPERATIONS) | ADDED
    assert set(ACTIVATION_FUNCTIONS) == {*ACTIVATIONS, *GATES} - {"swiglu_oai"}


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "as recorded"])
@pytest.mark.parametrize("seed", range(60))
def test_plans_give_what_numpy_gives(seed: int, fuse: bool) -> None:
    graph = select_logits(random_graph(seed, images=seed % 2 == 1))
    tokens = [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, 11)]
    for wanted in ([], [10], [0, 3, 10], list(range(11))):
        expected = run_numpy(graph, tokens, wanted)
        assert near(run_native(graph, tokens, wanted, fuse=fuse, threads=1 + seed % 3), expected, 1e-4)


@pytest.mark.parametrize("kind", FUSED_GATES)
def test_gates(kind: str) -> None:
    def forward(ops: Ops) -> Value:
        x = ops.embed(matrix(VOCAB, 16), 8.0)
        return ops.gate(ops.linear(x, matrix(24, 16, 1)), ops.linear(x, matrix(24, 16, 2)), kind)

    graph = selected(attending(forward))
    expected = run_numpy(graph, [3, 1, 4], [0, 2])
    for fuse in (True, False):
        assert near(run_native(graph, [3, 1, 4], [0, 2], fuse=fuse), expected)


@pytest.mark.parametrize("rope", [*ROPES, ROPE_WITH_AXES], ids=["side by side", "neox", "axes"])
def test_rope_in_place_and_beside(rope: Rope) -> None:
    def alone(ops: Ops) -> Value:
        return ops.rope(ops.embed(matrix(VOCAB, 16)), 2, rope)

    def beside(ops: Ops) -> Value:
        x = ops.embed(matrix(VOCAB, 16))
        return ops.rope(x, 2, rope) + x

    for forward in (alone, beside):
        graph = selected(attending(forward))
        tokens = list(range(VOCAB))
        assert near(run_native(graph, tokens, tokens, fuse=True), run_numpy(graph, tokens, tokens))


def test_buffers_are_used_again() -> None:
    def forward(ops: Ops) -> Value:
        x = ops.embed(matrix(VOCAB, 16))
        for _ in range(20):
            x = ops.norm(ops.linear(x, matrix(16, 16)), vector(16), 1e-5)
        return ops.rope(x, 2, ROPES[0])

    builder = PlanBuilder(selected(forward), Store(record(forward), 1), batch_invariant=False)
    builder.build()
    assert len(builder.slots.widths) == 3  # the result, and two in turns


def test_k_and_v_of_different_widths() -> None:
    def forward(ops: Ops) -> Value:
        x = ops.embed(matrix(VOCAB, 16))
        v = ops.linear(x, matrix(8, 16))
        return ops.attend(0, x, x, v, spec=AttentionSpec(2, 8, 4), scale=1)

    ids, rows = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [0, 7, 9]
    graph = selected(forward)
    assert graph.result.width == 8
    assert near(run_native(graph, ids, rows, fuse=True), run_numpy(graph, ids, rows))


@pytest.mark.parametrize("ids", [[3], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]], ids=len)
def test_k_and_v_of_an_earlier_layer(ids: list[int]) -> None:
    """Attention that keeps nothing reads what the other one kept, and no K and V of its own."""

    def forward(ops: Ops, keep: bool) -> Value:
        x = ops.embed(matrix(VOCAB, 16))
        y = ops.attend(0, x, x, x, spec=SPEC, scale=1)
        k = v = x if keep else ops.embed(matrix(VOCAB, 16, 1))
        return ops.attend(1 if keep else 0, y, k, v, spec=SPEC, scale=0.5, keep=keep)

    own, shared = (selected(partial(forward, keep=keep)) for keep in (True, False))
    assert (own.specs, shared.specs) == ((SPEC, SPEC), (SPEC,))
    expected, rows = run_numpy(own, ids, [len(ids) - 1]), [len(ids) - 1]
    np.testing.assert_array_equal(run_numpy(shared, ids, rows), expected)
    assert near(run_native(shared, ids, rows, fuse=True), expected)


def test_what_plans_refuse() -> None:
    graph = record(lambda ops: ops.embed(matrix(VOCAB, 16)))
    with pytest.raises(fb.FewbitError, match="a graph after select_logits"):
        build(graph, Store(graph, 1))


def test_result_of_a_plan_has_a_slot_of_its_own() -> None:
    plan = cpu.Plan()
    result = plan.buffer(8, True, 0)
    other = cpu.Plan()
    shared = other.buffer(8, True, 0)
    other.buffer(4, True, 0)
    plan.set_result(result)
    with pytest.raises(ValueError, match="takes no more buffers"):
        plan.buffer(8, True, 0)
    with pytest.raises(ValueError, match="slot of another buffer"):
        other.set_result(shared)
    with pytest.raises(ValueError, match="slot of a buffer"):
        cpu.Plan().buffer(8, False, 1)

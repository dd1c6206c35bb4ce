"""Steps in slices: the same bits as whole ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit import _native
from fewbit.arrays import Floats
from fewbit.ops import cpu
from fewbit.ops.cpu.plan import build
from fewbit.ops.graph import Graph, Value
from fewbit.ops.passes import select_logits
from fewbit.ops.recorder import Ops, record
from fewbit.ops.specs import AttentionSpec

from .steps import ROPES, VOCAB, Store, matrix, vector

WIDTH, TOKENS = 64, 1100
SPEC = AttentionSpec(kv_heads=2, k_dim=32, v_dim=32)


def weight(n: int, k: int, seed: int, format: str) -> fb.QuantTensor:
    x = np.random.default_rng((n, k, seed)).standard_normal((n, k), np.float32) / np.float32(np.sqrt(k))
    w = fb.quantize(x, format)
    return cpu.repack(w) if format != "f32" else w


def graph(format: str, causal: bool, spans: bool = False) -> Graph:
    """Two layers with all operations that are done in parts, and some others."""

    def forward(ops: Ops) -> Value:
        x = ops.embed(matrix(VOCAB, WIDTH))
        for layer in range(2):
            normed = ops.norm(x, vector(WIDTH, 1), 1e-5)
            q, k, v = (ops.linear(normed, weight(WIDTH, WIDTH, part, format), vector(WIDTH)) for part in range(3))
            q, k = ops.rope(q, 2, ROPES[0]), ops.rope(k, 2, ROPES[0])
            y = ops.attend(layer, q, k, v, spec=SPEC, scale=0.2, causal=causal, spans=spans)
            x = x + ops.linear(y, weight(WIDTH, WIDTH, 3, format))
            normed = ops.layer_norm(x, vector(WIDTH, 2), None, 1e-5)
            up, gate = (ops.linear(normed, weight(2 * WIDTH, WIDTH, part, format)) for part in (4, 5))
            x = x + ops.linear(ops.gate(gate, up, "silu"), weight(WIDTH, 2 * WIDTH, 6, format))
        return x

    return select_logits(record(forward, has_head=False))


class Steps:
    """Steps of one plan."""

    def __init__(self, graph: Graph, activations: str | None) -> None:
        self.store, self.activations = Store(graph, TOKENS), activations
        self.plan = build(graph, self.store)

    def arguments(self, out: Floats, threads: int) -> tuple[Any, ...]:
        """A step of two sequences that share the pages of one; the results of all tokens but one are wanted."""
        tokens = np.random.default_rng(0).integers(0, VOCAB, TOKENS).astype(np.int32)
        first = TOKENS // 2 // 8 * 8
        lengths = np.array([first, TOKENS - first], np.int64)
        starts = np.array([0, first, TOKENS], np.int64)
        tables = self.store.tables, np.array([0, first // 8, len(self.store.tables)], np.int64)
        wanted = np.arange(1, TOKENS, dtype=np.int32)
        return tokens, [tables], lengths, starts, wanted, out, self.activations, threads

    def out(self) -> Floats:
        return np.full((TOKENS - 1, WIDTH), np.nan, np.float32)

    def whole(self, threads: int = 1) -> Floats:
        out = self.out()
        assert self.plan.run(*self.arguments(out, threads)) is True
        return out

    def sliced(self, seconds: float, threads: int = 1) -> tuple[Floats, int]:
        """The results, and the number of slices."""
        out, count = self.out(), 0
        while not self.plan.run(*self.arguments(out, threads), seconds=seconds, resumes=count > 0):
            count += 1
        return out, count + 1


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize(("format", "activations"), [("q8_0", None), ("q4_k", "int16"), ("f32", "exact")])
def test_slices_give_the_bits_of_the_whole(format: str, activations: str | None, causal: bool) -> None:
    steps = Steps(graph(format, causal), activations)
    expected = steps.whole()
    assert np.isfinite(expected).all()
    for threads in (1, 2, 3):
        found, count = steps.sliced(0.0, threads)
        assert count > 50  # five parts of each product and attention
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(steps.whole(threads), expected)
    assert steps.sliced(1e9)[1] == 1


def test_a_step_is_given_up_for_another() -> None:
    steps = Steps(graph("q8_0", causal=False), None)
    expected, given_up = steps.whole(), steps.out()
    for _ in range(3):
        assert steps.plan.run(*steps.arguments(given_up, 1), seconds=0.0) is False
    np.testing.assert_array_equal(steps.sliced(0.0)[0], expected)
    assert steps.plan.run(*steps.arguments(given_up, 1), seconds=0.0) is False
    np.testing.assert_array_equal(steps.whole(), expected)
    with pytest.raises(ValueError, match="not the step whose slices were run before"):
        steps.plan.run(*steps.arguments(given_up, 1), seconds=0.0, resumes=True)


def test_only_the_same_step_goes_on() -> None:
    steps = Steps(graph("f32", causal=True), "exact")
    with pytest.raises(ValueError, match="not the step"):
        steps.plan.run(*steps.arguments(steps.out(), 1), seconds=0.0, resumes=True)
    steps.plan.run(*steps.arguments(steps.out(), 1), seconds=0.0)
    tokens, groups, lengths, starts, wanted, out, *rest = steps.arguments(steps.out(), 1)
    with pytest.raises(ValueError, match="not the step"):
        steps.plan.run(tokens, groups, lengths, starts, wanted[1:], out[1:], *rest, seconds=0.0, resumes=True)


def test_nothing_is_left_after_the_last_slice() -> None:
    steps = Steps(graph("f32", causal=True), "exact")
    steps.sliced(0.0)
    with pytest.raises(ValueError, match="not the step"):
        steps.plan.run(*steps.arguments(steps.out(), 1), seconds=0.0, resumes=True)
    assert isinstance(steps.plan, _native.Plan)

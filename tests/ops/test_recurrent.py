"""Convolutions, the gated delta rule and scans: native plans beside NumPy, in any batch, cut anyhow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fewbit as fb
from fewbit import devices
from fewbit.arrays import Floats
from fewbit.cache.cache import Cache
from fewbit.cache.groups import pages_by_group
from fewbit.cache.layout import make_layout
from fewbit.devices.batch import Row
from fewbit.devices.forward import forward
from fewbit.load_options import LoadOptions
from fewbit.ops import cpu
from fewbit.ops.graph import Value
from fewbit.ops.recorder import Ops, record
from fewbit.ops.specs import RecurrentSpec

from .steps import VOCAB, matrix, near, vector

HIDDEN = 24
Forward = Callable[[Ops], Value]


@dataclass(frozen=True)
class Conv:
    columns: int
    taps: int
    silu: bool
    has_bias: bool
    before: int = 0  # floats of the state that are not its own

    def __call__(self, ops: Ops) -> Value:
        weight = np.stack([vector(self.columns, 100 + tap) for tap in range(self.taps)], axis=1)
        bias = vector(self.columns, 99) if self.has_bias else None
        spec = RecurrentSpec(4 * (self.before + self.columns * (self.taps - 1) + 1))
        x = ops.embed(matrix(VOCAB, self.columns), 3.0)
        kind = "silu" if self.silu else "none"
        return ops.conv(x, 0, weight, bias, kind, spec=spec, offset=4 * self.before)


@dataclass(frozen=True)
class Delta:
    heads: int
    shared: int  # heads of v for each head of q and k
    dim: int
    v_dim: int
    tiled: bool

    def __call__(self, ops: Ops) -> Value:
        v_heads = self.heads * self.shared
        x = ops.embed(matrix(VOCAB, HIDDEN), 4.0)
        widths = {"q": self.heads * self.dim, "k": self.heads * self.dim, "v": v_heads * self.v_dim}
        parts = [ops.linear(x, matrix(n, HIDDEN, i)) for i, n in enumerate([*widths.values(), v_heads, v_heads])]
        unit = np.full(self.dim, self.dim**-0.5, np.float32)
        q, k = (ops.norm(part, unit, 1e-6, self.heads) for part in parts[:2])
        conv = RecurrentSpec(4 * (3 + v_heads * self.dim * self.v_dim))
        return ops.delta_rule(
            q, k, *parts[2:], 0, heads=self.heads, v_heads=v_heads, decay=-np.abs(vector(v_heads, 5)),
            dt_bias=vector(v_heads, 6), scale=self.dim**-0.5, tiled=self.tiled, spec=conv, offset=12,
        )  # fmt: skip


@dataclass(frozen=True)
class Scan:
    groups: int
    shared: int  # heads for each group
    dim: int
    state: int

    def __call__(self, ops: Ops) -> Value:
        heads = self.groups * self.shared
        x = ops.embed(matrix(VOCAB, HIDDEN), 4.0)
        widths = [heads * self.dim, heads, self.groups * self.state, self.groups * self.state]
        parts = [ops.linear(x, matrix(n, HIDDEN, i)) for i, n in enumerate(widths)]
        return ops.scan(
            *parts, 0, heads=heads, groups=self.groups, decay=-np.abs(vector(heads, 5)), skip=vector(heads, 6),
            dt_bias=vector(heads, 7), spec=RecurrentSpec(4 * heads * self.dim * self.state),
        )  # fmt: skip


def with_head(ops: Ops, x: Value) -> Value:
    """The rows as they are, and zeros after them, by the product that models end with."""
    return ops.linear(x, fb.quantize(np.eye(max(VOCAB, x.width), x.width, dtype=np.float32), "f32"))


class Runner:
    """A graph on a device, with a cache of its own."""

    def __init__(self, model: Forward, device: str, **options: Any) -> None:
        graph, chosen = record(lambda ops: with_head(ops, model(ops))), devices.get(device, LoadOptions(**options))
        layout = make_layout(graph.specs, "f32", "f32")
        pages = pages_by_group(layout.groups, layout.page_tokens, tokens=1024)
        self.cache = Cache(chosen.make_store(layout, pages))
        self.executor = chosen.make_executor(graph, self.cache.store, max(VOCAB, graph.result.width))
        self.sequences: dict[int, int] = {}

    def step(self, parts: Sequence[tuple[int, Sequence[int]]]) -> Floats:
        """The rows of all new tokens of some sequences, which are made when they are first named."""
        for number, _ in parts:
            if number not in self.sequences:
                self.sequences[number] = self.cache.new()
        chunks = [Row(self.sequences[number], tokens, len(tokens)) for number, tokens in parts]
        return forward(self.executor, self.cache, chunks).copy()


def native(model: Forward, threads: int = 2) -> Runner:
    return Runner(model, "cpu", activations="exact", threads=threads, batch_invariant=True)


SMALL = [
    Conv(columns=5, taps=4, silu=True, has_bias=False),
    Conv(columns=600, taps=3, silu=False, has_bias=True, before=7),
    Conv(columns=16, taps=1, silu=True, has_bias=True),
    Delta(heads=2, shared=2, dim=16, v_dim=16, tiled=True),
    Delta(heads=2, shared=3, dim=7, v_dim=85, tiled=False),
    Scan(groups=1, shared=3, dim=8, state=16),
    Scan(groups=2, shared=2, dim=70, state=101),
]
BATCHES = [
    [(0, 9), (1, 1), (2, 4)],
    [(1, 1), (0, 1), (2, 1)],
    [(3, 2), (2, 30)],
    [(0, 1), (1, 12), (2, 1), (3, 3)],
]


def drawn(batches: Sequence[Sequence[tuple[int, int]]]) -> list[list[tuple[int, list[int]]]]:
    random = np.random.default_rng(1)
    return [[(n, random.integers(0, VOCAB, count).tolist()) for n, count in batch] for batch in batches]


@pytest.mark.parametrize("model", SMALL, ids=str)
def test_ragged_batches_beside_numpy(model: Forward, isa: str) -> None:
    ours, reference = native(model), Runner(model, "numpy")
    for batch in drawn(BATCHES):
        assert near(ours.step(batch), reference.step(batch), 2e-5)


models = st.one_of(
    st.builds(Conv, st.integers(1, 70), st.integers(1, 6), st.booleans(), st.booleans(), st.integers(0, 3)),
    st.builds(Delta, st.integers(1, 3), st.integers(1, 3), st.integers(1, 40), st.integers(1, 80), st.booleans()),
    st.builds(Scan, st.integers(1, 2), st.integers(1, 3), st.integers(1, 80), st.integers(1, 140)),
)
sizes = st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), max_size=3, unique_by=lambda x: x[0]))


@settings(max_examples=60, deadline=None)
@given(model=models, batches=sizes)
def test_any_sizes_beside_numpy(model: Forward, batches: list[list[tuple[int, int]]]) -> None:
    ours, reference = native(model), Runner(model, "numpy")
    for batch in drawn([batch for batch in batches if batch]):
        assert near(ours.step(batch), reference.step(batch), 2e-5)


@pytest.mark.parametrize("model", SMALL, ids=str)
def test_same_bits_alone_and_cut_anyhow(model: Forward, isa: str) -> None:
    tokens = np.random.default_rng(2).integers(0, VOCAB, 40).tolist()
    whole = native(model).step([(0, tokens)])
    for threads, cuts in ((1, [0, 1, 2, 3, 40]), (3, [0, 17, 30, 40]), (2, list(range(41)))):
        runner, rows = native(model, threads), []
        for start, end in pairwise(cuts):
            others = [(number, tokens[number : number + 5]) for number in (1, 2)]
            rows.append(runner.step([others[0], (0, tokens[start:end]), others[1]])[5 : 5 + end - start])
        np.testing.assert_array_equal(np.concatenate(rows), whole)


@pytest.mark.parametrize("model", SMALL[:1] + SMALL[3:4] + SMALL[5:6], ids=str)
def test_forks_go_their_own_ways(model: Forward) -> None:
    tokens = np.random.default_rng(3).integers(0, VOCAB, 20).tolist()
    whole = native(model).step([(0, tokens)])
    runner = native(model)
    runner.step([(0, tokens[:9])])
    runner.sequences[1] = runner.cache.fork(runner.sequences[0])
    rows = runner.step([(0, tokens[9:12]), (1, tokens[9:15])])
    np.testing.assert_array_equal(rows, np.concatenate([whole[9:12], whole[9:15]]))
    np.testing.assert_array_equal(runner.step([(0, tokens[12:])]), whole[12:])


# What a plan refuses


def plan_with_states(states: Any, offset: int = 0, taps: int = 2) -> cpu.Plan:
    plan = cpu.Plan()
    x, y, result = plan.buffer(4, False, 0), plan.buffer(4, False, 1), plan.buffer(4, True, 2)
    plan.embed(cpu.machine.packed(matrix(VOCAB, 4)), x, 1.0)
    plan.conv(x, states, offset, np.ones((taps, 4), np.float32), None, False, y)
    plan.gather(y, result)
    plan.set_result(result)
    return plan


def run_plan(plan: cpu.Plan, reads: Any, writes: Any) -> None:
    starts = np.array([0, 1, 2], np.int64)
    tokens, lengths, out = np.zeros(2, np.int32), np.ones(2, np.int64), np.zeros((1, 4), np.float32)
    plan.run(tokens, [], lengths, starts, np.zeros(1, np.int32), out, None, 1, reads, writes)


@pytest.mark.parametrize(
    ("shape", "offset"), [((3, 12), 0), ((3, 16), 4), ((3, 18), 0), ((3, 20), 2), ((0, 16), 0), ((3, 16), 1 << 62)]
)
def test_states_that_do_not_fit(shape: tuple[int, int], offset: int) -> None:
    with pytest.raises(ValueError, match=r"state|slots|part"):
        plan_with_states(np.zeros(shape, np.uint8), offset)


def test_layers_have_as_many_slots() -> None:
    plan = plan_with_states(np.zeros((3, 16), np.uint8))
    more = plan_with_states(np.zeros((3, 16), np.uint8))
    run_plan(plan, np.array([0, 0], np.int32), np.array([1, 2], np.int32))
    with pytest.raises(ValueError, match=r"slots: got 4, expected 3"):
        more.conv(0, np.zeros((4, 16), np.uint8), 0, np.ones((2, 4), np.float32), None, False, 1)


@pytest.mark.parametrize(
    ("reads", "writes", "message"),
    [
        (None, None, "needs slots"),
        ([0], [1], "one for each sequence"),
        ([0, 1], [2], "one for each sequence"),
        ([0, 3], [1, 2], "slot 3 of 3"),
        ([0, -1], [1, 2], "slot -1 of 3"),
        ([0, 0], [1, 3], "slot 3 of 3"),
        ([0, 0], [1, 1], "slot 1 is written"),
        ([0, 1], [1, 2], "slot 1 is written"),
        ([0, 1], [2, 1], "slot 1 is written"),
    ],
)
def test_slots_that_a_step_cannot_use(reads: Any, writes: Any, message: str) -> None:
    plan = plan_with_states(np.zeros((3, 16), np.uint8))
    given = [None if slots is None else np.array(slots, np.int32) for slots in (reads, writes)]
    with pytest.raises(ValueError, match=message):
        run_plan(plan, *given)
    run_plan(plan, np.array([0, 0], np.int32), np.array([1, 2], np.int32))  # nothing is left of what was refused


def test_operations_that_do_not_fit() -> None:
    states, four = np.zeros((3, 4096), np.uint8), np.ones(4, np.float32)
    plan = cpu.Plan()
    wide, narrow, other, rows = (plan.buffer(n, False, i) for i, n in enumerate((16, 4, 16, 16)))
    with pytest.raises(ValueError, match="multiple of the heads"):
        plan.delta_rule(wide, wide, wide, narrow, narrow, states, 0, 3, 4, four, four, 1.0, False, other)
    with pytest.raises(ValueError, match="heads of v"):
        plan.delta_rule(wide, wide, wide, narrow, narrow, states, 0, 8, 4, four, four, 1.0, False, other)
    with pytest.raises(ValueError, match="not an input"):
        plan.delta_rule(wide, wide, other, narrow, narrow, states, 0, 4, 4, four, four, 1.0, False, other)
    with pytest.raises(ValueError, match="decay"):
        plan.delta_rule(wide, wide, rows, narrow, narrow, states, 0, 4, 4, four[:3], four, 1.0, False, other)
    with pytest.raises(ValueError, match="columns of dt"):
        plan.scan(wide, rows, narrow, narrow, states, 0, 4, 1, four, four, four, other)
    with pytest.raises(ValueError, match="multiple of the groups"):
        plan.scan(wide, narrow, rows, rows, states, 0, 4, 8, four, four, four, other)

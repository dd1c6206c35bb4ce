"""Several threads at once: on one plan, and while the instruction set changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.ops import cpu
from fewbit.ops.graph import Value
from fewbit.ops.passes import select_logits
from fewbit.ops.recorder import Ops, record
from fewbit.ops.specs import AttentionSpec

from .products import inputs
from .steps import SharedPlan, matrix, vector

VOCAB = 50
ROUNDS = 40


def forward(ops: Ops) -> Value:
    """Three layers, so that a run has many operations to be disturbed between."""
    x = ops.embed(matrix(VOCAB, 256))
    for layer in range(3):
        h = ops.norm(x, vector(256, layer), 1e-5)
        q, k, v = (ops.linear(h, fb.repack(fb.quantize(inputs(256, 256, 3 * layer + i), "q4_0"))) for i in range(3))
        x = x + ops.attend(layer, q, k, v, spec=AttentionSpec(4, 64, 64), scale=0.1)
    return ops.linear(x, fb.quantize(inputs(96, 256, 9), "q6_k"))


def tokens_of(seed: int) -> list[int]:
    random = np.random.default_rng(seed)
    return [int(t) for t in random.integers(0, VOCAB, 1 + 37 * seed)]


@pytest.fixture
def plan() -> SharedPlan:
    return SharedPlan(select_logits(record(forward)), 256)


def test_runs_of_one_plan_wait_for_each_other(plan: SharedPlan) -> None:
    prompts = [tokens_of(seed) for seed in range(7)]
    expected = [plan.run(tokens, threads=2) for tokens in prompts]
    plan.plan.profile(True)
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda i: plan.run(prompts[i % 7], threads=1 + i % 3), range(7 * ROUNDS)))
        profiles = list(pool.map(lambda _: plan.plan.seconds(), range(20)))
    assert all(np.array_equal(result, expected[i % 7]) for i, result in enumerate(results))
    assert all(len(one) == len(profiles[0]) > 0 for one in profiles)


def test_a_plan_with_its_result_does_not_change(plan: SharedPlan) -> None:
    with pytest.raises(ValueError, match="takes no more buffers and operations"):
        plan.plan.buffer(8, False, 0)
    with pytest.raises(ValueError, match="takes no more buffers and operations"):
        plan.plan.add(0, 0, 0)
    with pytest.raises(ValueError, match="takes no more buffers and operations"):
        plan.plan.rope(vector(4), 1.0, False)


@contextmanager
def changing_isas() -> Iterator[None]:
    """Another thread takes one instruction set after the other."""
    before, stop = cpu.isa(), threading.Event()

    def change() -> None:
        while not stop.is_set():
            for name in cpu.isas():
                cpu.use_isa(name)
                stop.wait(0.0003)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        cpu.use_isa(before)


def is_one_of(result: Floats, expected: dict[str, Floats]) -> bool:
    return any(np.array_equal(result, one) for one in expected.values())


def test_a_run_keeps_its_instruction_set(plan: SharedPlan) -> None:
    tokens, expected = tokens_of(5), {}
    for name in cpu.isas():
        with cpu.forced_isa(name):
            expected[name] = plan.run(tokens, threads=2)
    with changing_isas():
        results = [plan.run(tokens, threads=2) for _ in range(ROUNDS)]
    assert all(is_one_of(result, expected) for result in results)


@pytest.mark.parametrize("rows", [1, 7, 70])
@pytest.mark.parametrize("layout", ["rows", "repacked"])
def test_a_product_keeps_its_instruction_set(rows: int, layout: str) -> None:
    plain = fb.quantize(inputs(300, 512), "q4_k")
    w, x = fb.repack(plain) if layout == "repacked" else plain, inputs(rows, 512, 2)
    expected = {}
    for name in cpu.isas():
        with cpu.forced_isa(name):
            expected[name] = fb.linear(x, w, threads=2)
    with changing_isas():
        results = [fb.linear(x, w, threads=2) for _ in range(ROUNDS)]
    assert all(is_one_of(result, expected) for result in results)


@pytest.mark.parametrize("made", cpu.isas())
@pytest.mark.parametrize("rows", [1, 7, 70])
def test_what_one_instruction_set_packed_every_other_reads(made: str, rows: int) -> None:
    plain, x = fb.quantize(inputs(300, 512), "q4_k"), inputs(rows, 512, 2)
    with cpu.forced_isa(made):
        w, packed = fb.repack(plain), fb.quantize_activations(x, "q4_k")
    expected = fb.linear(packed.dequantize(), plain, exact=True)
    for name in cpu.isas():
        with cpu.forced_isa(name):
            assert w == plain
            assert np.abs(fb.linear(packed, w) - expected).max() < 2e-2 * np.abs(expected).max()

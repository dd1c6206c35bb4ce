"""Memory and threads that native code keeps: bounded, and given back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fewbit as fb
from fewbit import _native
from fewbit.ops import cpu
from fewbit.ops.graph import Value
from fewbit.ops.recorder import Ops
from fewbit.ops.specs import AttentionSpec

from .products import inputs
from .steps import VOCAB, SharedPlan, matrix, near, selected, vector

MB = 1 << 20
LONG = 2 * 4096 + 5  # rows: computed in three parts
linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads what Linux says of a process")


def python(script: str) -> str:
    """What a fresh process prints."""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.parametrize("activations", ["int8", "int16", "exact"])
def test_long_inputs_are_multiplied_in_parts(isa: str, activations: str) -> None:
    w, x = fb.quantize(inputs(40, 256), "q4_0"), inputs(LONG, 256, 2)
    bias, residual = inputs(1, 40)[0], inputs(LONG, 40, 3)
    some = [slice(0, 200), slice(3000, 3200), slice(-200, None)]
    for weights in (w, fb.repack(w)):
        for given in (x, fb.quantize_activations(x, "q4_0", activations=activations)):
            y = fb.linear(given, weights, bias=bias, residual=residual, activations=activations, threads=2)
            for rows in some:
                one = fb.linear(x[rows], weights, bias=bias, residual=residual[rows], activations=activations)
                assert near(y[rows], one)
        y = cpu.linear_gated(x, weights, weights, activations=activations, threads=2)
        for rows in some:
            assert near(y[rows], cpu.linear_gated(x[rows], weights, weights, activations=activations))


def per_token(ops: Ops) -> Value:
    """Rows that depend on their token alone; attention is there for its pages."""
    x = ops.embed(matrix(VOCAB, 16))
    ops.attend(0, x, x, x, spec=AttentionSpec(2, 8, 8, window=2), scale=1)
    h = ops.norm(x, vector(16), 1e-5)
    h = ops.gate(ops.linear(h, matrix(2048, 16, 1)), ops.linear(h, matrix(2048, 16, 2)), "silu")
    return x + ops.linear(h, matrix(16, 2048), vector(16, 3))


def test_plans_give_back_what_a_long_step_needed() -> None:
    before = _native.scratch_bytes()
    plan = SharedPlan(selected(per_token), 40_000)
    expected = plan.run(range(VOCAB), activations="exact")
    tokens = np.random.default_rng(0).integers(0, VOCAB, 40_000)
    assert near(plan.run(tokens.tolist(), threads=2, activations="exact"), expected[tokens])
    assert _native.scratch_bytes() < before + 64 * MB
    assert near(plan.run(range(VOCAB), activations="exact"), expected)


SCRATCH = """
import resource, numpy as np, fewbit as fb
from fewbit import _native
w = fb.quantize(np.ones((8, 1024), np.float32), "q4_0")
x = np.ones((65536, 1024), np.float32)
fb.linear(x[:64], w, threads=2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fb.linear(x, w, threads=2, activations="int16")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before >> 10, _native.scratch_bytes() >> 20)
"""


@linux
def test_scratch_of_65536_rows_is_small() -> None:
    peak, kept = map(int, python(SCRATCH).split())
    assert peak < 80
    assert kept < 64


THREADS = """
import os, time, numpy as np, fewbit as fb
from fewbit import _native
w = fb.quantize(np.random.default_rng(0).standard_normal((8192, 256), np.float32), "q4_0", threads=1)
x = np.random.default_rng(1).standard_normal((4, 256), np.float32)
others = len(os.listdir("/proc/self/task"))

def workers():
    return len(os.listdir("/proc/self/task")) - others

def multiply(threads):
    return fb.linear(x, w, threads=threads, exact=True)

expected, alone = multiply(1), _native.scratch_bytes()
while _native.scratch_bytes() == alone:  # until a worker did a piece
    assert np.array_equal(multiply(64), expected)
counts = [workers()]
while workers() > 3:  # those that are wanted stay
    assert np.array_equal(multiply(4), expected)
    time.sleep(0.05)
counts.append(workers())
while workers():
    time.sleep(0.05)
print(*counts, _native.scratch_bytes() == alone, np.array_equal(multiply(4), expected))
"""


@linux
def test_threads_that_nobody_wants_end() -> None:
    assert python(THREADS) == "63 3 True True"


FEW_THREADS = """
import os, resource, numpy as np, fewbit as fb
w = fb.quantize(np.random.default_rng(0).standard_normal((8192, 256), np.float32), "q4_0")
x = np.random.default_rng(1).standard_normal((4, 256), np.float32)
expected = fb.linear(x, w, threads=1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20),) * 2)
print(np.array_equal(fb.linear(x, w, threads=64), expected), len(os.listdir("/proc/self/task")) < 64)
"""


@linux
def test_where_the_system_gives_fewer_threads_those_do_the_work() -> None:
    assert python(FEW_THREADS) == "True True"

"""The end of a process, forks and signals while native code computes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PRODUCTS = """
import os, sys, threading, time
import numpy as np
import fewbit as fb
w = fb.quantize(np.random.default_rng(0).standard_normal((512, 1024), np.float32), "q4_0")
x = np.random.default_rng(1).standard_normal((64, 1024), np.float32)
expected = fb.linear(x, w, threads=1)

def compute(threads):
    while True:
        fb.linear(x, w, threads=threads)

def background(call, *arguments):
    threading.Thread(target=call, args=arguments, daemon=True).start()
"""

EXIT = """
for threads in (1, 2, 3, 1):
    background(compute, threads)
time.sleep(0.1)
"""

EXIT_LLM = """
from tests.llm_toy import make
llm = make()

def generate():
    while True:
        llm.generate("ab", max_tokens=30)

background(generate)
background(generate)
time.sleep(0.3)
"""

EXIT_PLAN = """
from fewbit.ops.passes import select_logits
from tests.ops.steps import SharedPlan, random_graph
plan = SharedPlan(select_logits(random_graph(3)), 16)
first = plan.run(range(9), threads=2)

def run():
    while True:
        plan.run(range(9), threads=2)

background(run)
background(run)
time.sleep(0.1)
"""

FORK = """
background(compute, 2)
for _ in range(20):
    time.sleep(0.003)
    child = os.fork()
    if child == 0:
        same = np.array_equal(fb.linear(x, w, threads=2), expected)
        os._exit(0 if same and np.array_equal(plan.run(range(9), threads=2), first) else 1)
    assert os.waitpid(child, 0)[1] == 0
"""

INTERRUPT = """
import signal
long = np.ones((20000, 1024), np.float32)
interrupt = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
interrupt.start()
try:
    while True:
        fb.linear(long, w)
except KeyboardInterrupt:
    assert np.array_equal(fb.linear(x, w), expected)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("busy", [EXIT, EXIT_LLM, EXIT_PLAN], ids=["linear", "generate", "plan"])
@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit(7)", 7), ("raise ValueError('x')", 1)])
def test_the_process_ends_while_daemon_threads_compute(busy: str, end: str, code: int) -> None:
    done = run(PRODUCTS + busy + end)
    assert done.returncode == code, done.stderr
    assert ("ValueError: x" in done.stderr) == (code == 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_was_forked_while_others_compute() -> None:
    done = run(PRODUCTS + EXIT_PLAN + FORK)
    assert done.returncode == 0, done.stderr


def test_an_interrupt_is_raised_when_the_call_returns() -> None:
    done = run(PRODUCTS + INTERRUPT)
    assert done.returncode == 0, done.stderr

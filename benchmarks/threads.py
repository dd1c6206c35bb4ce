"""How fb.linear gains from threads, beside how the machine's limits do: batch 1 beside the read loop, batch 512 beside
the multiply rate. One thread is measured on each core in turn (see cores.py).

    python benchmarks/threads.py
    python benchmarks/threads.py --format q8_0 --rounds 9
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import median

import numpy as np
from cores import rate_of_one

from fewbit.bench import kernels
from fewbit.formats import get
from fewbit.ops import cpu
from fewbit.tensor import QuantTensor


def rate(batch: int, k: int, n: int, weights: Iterator[QuantTensor], threads: int) -> float:
    """Products a second."""
    x, out = np.ones((batch, k), np.float32), np.empty((batch, n), np.float32)
    calls = 24 if batch == 1 else 4
    started = time.perf_counter()
    for _ in range(calls):
        cpu.linear(x, next(weights), out=out, threads=threads)
    return calls / (time.perf_counter() - started)


def gains(name: str, batch: int, threads: int, rounds: int, repack: bool) -> tuple[float, float, float]:
    """How many times as fast with `threads` as with one: the product, the limit, one beside the other."""
    case = kernels.KernelCase(get(name), 4096, 4096, batch, threads, repack)
    matrices, memory = kernels.rotating(case, kernels.MEMORY_BYTES)
    weights = kernels.endless(matrices)
    peak = kernels.PEAKS[cpu.inputs_of(case.format, case.k, batch, matrices[0].layout)]

    def limit(count: int) -> float:
        return 1 / cpu.read_seconds(memory, count) if batch == 1 else cpu.multiply_rate(peak, count, 0.04)

    def ours(count: int) -> float:
        return rate(batch, case.k, case.n, weights, count)

    pairs = []
    for done in range(rounds + 1):
        many = ours(threads), limit(threads)
        one = rate_of_one(lambda: ours(1), threads), rate_of_one(lambda: limit(1), threads)
        if done:  # threads are started in the first
            pairs.append((many[0] / one[0], many[1] / one[1]))
    return median(p[0] for p in pairs), median(p[1] for p in pairs), median(p[0] / p[1] for p in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", "-f", action="append", help="a format; may be given again")
    parser.add_argument("--threads", type=int, default=cpu.default_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repack", action="store_true", help="weights as fb.repack gives them")
    chosen = parser.parse_args()
    print(f"{'format':8} {'batch':>5} {chosen.threads} threads against 1: {'ours':>6} {'limit':>6} {'share':>6}")
    for name in chosen.format or ["q4_0", "q4_k", "q6_k", "q8_0"]:
        for batch in (1, 512):
            ours, theirs, share = gains(name, batch, chosen.threads, chosen.rounds, chosen.repack)
            print(f"{name:8} {batch:5} {'':22} {ours:6.2f} {theirs:6.2f} {share:6.2f}")


if __name__ == "__main__":
    main()

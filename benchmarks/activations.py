"""Times fb.linear with 16-bit activations beside 8-bit ones: what do the bits cost?

    python benchmarks/activations.py --repack
    python benchmarks/activations.py --format q6_k --batch 1,2 --isa avx2 --rounds 31 --json

Weights rotate over 1 GiB. Both alternate, call by call; figures are medians of the ratio of two calls that follow each
other.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np

from fewbit.bench import kernels
from fewbit.formats import get
from fewbit.ops import cpu

SECONDS = 4.0  # for a case, at most


@dataclass(frozen=True)
class Result:
    format: str
    batch: int
    isa: str
    kernels: tuple[str, str]
    ms: tuple[float, float]
    cost: float  # of 16 bits, in times of 8
    pairs: int  # of calls


def measure(name: str, n: int, k: int, batch: int, rounds: int, repack: bool, threads: int) -> Result:
    case = kernels.KernelCase(get(name), n, k, batch, threads, repack)
    matrices, _ = kernels.rotating(case, kernels.MEMORY_BYTES)
    weights = kernels.endless(matrices)
    x, out = np.random.default_rng(1).standard_normal((batch, k), np.float32), np.empty((batch, n), np.float32)

    def seconds(activations: str) -> float:
        w = next(weights)
        started = time.perf_counter()
        cpu.linear(x, w, out=out, threads=threads, activations=activations)
        return time.perf_counter() - started

    seconds("int8"), seconds("int16")
    times: list[tuple[float, float]] = []
    started = time.perf_counter()
    while len(times) < rounds and (len(times) < 3 or time.perf_counter() - started < SECONDS):
        if len(times) % 2:
            int16, int8 = seconds("int16"), seconds("int8")
        else:
            int8, int16 = seconds("int8"), seconds("int16")
        times.append((int8, int16))
    used = [cpu.kernel(name, k, batch, matrices[0].layout, a) for a in ("int8", "int16")]
    ms = [1e3 * median(pair[i] for pair in times) for i in (0, 1)]
    cost = median(int16 / int8 for int8, int16 in times)
    return Result(name, batch, cpu.isa(), (used[0], used[1]), (ms[0], ms[1]), cost, len(times))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", "-f", action="append", help="a format; may be given again")
    parser.add_argument("--shape", default="4096x4096", help="rows and columns of the weights")
    parser.add_argument("--batch", default="1,4,8,512", help="batch sizes")
    parser.add_argument("--rounds", type=int, default=301, help="pairs of calls, in 4 s at most")
    parser.add_argument("--threads", type=int, default=cpu.default_threads())
    parser.add_argument("--isa", default=cpu.isa(), help="instruction set")
    parser.add_argument("--repack", action="store_true", help="weights as fb.repack gives them")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    cpu.use_isa(chosen.isa)
    n, k = map(int, chosen.shape.split("x"))
    if not chosen.json:
        print(f"{'format':8} {'batch':>5} {'kernels':>12} {'int8 ms':>8} {'int16 ms':>8} {'cost':>5}")
    results = []
    for name in chosen.format or ["q4_0", "q8_0", "q4_k", "q6_k"]:
        for batch in map(int, chosen.batch.split(",")):
            r = measure(name, n, k, batch, chosen.rounds, chosen.repack, chosen.threads)
            results.append(r)
            if not chosen.json:
                both = "/".join(r.kernels)
                print(f"{name:8} {batch:5} {both:>12} {r.ms[0]:8.3f} {r.ms[1]:8.3f} {r.cost:5.2f}", flush=True)
    if chosen.json:
        print(json.dumps([asdict(r) for r in results], indent=2))


if __name__ == "__main__":
    main()

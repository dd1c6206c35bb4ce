"""Times fb.linear for many batch sizes beside batch 1, and tells where a larger batch costs more for each row.

    python benchmarks/batches.py
    python benchmarks/batches.py --format q6_k --batch 1,8 --rounds 31 --json

Weights rotate over 1 GiB. The sizes alternate in every round; figures are medians over the rounds of the ratio to
batch 1 in the same round. `cheaper before` names a smaller batch that costs less for each row.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np

from fewbit.arrays import Floats
from fewbit.bench import kernels
from fewbit.formats import get
from fewbit.ops import cpu
from fewbit.tensor import QuantTensor

CALLS = 8  # of one size in a round


@dataclass(frozen=True)
class Result:
    format: str
    batch: int
    kernel: str
    ms: float
    times_batch_1: float
    per_row: float  # of batch 1
    cheaper_before: int | None


def seconds(x: Floats, weights: Iterator[QuantTensor], out: Floats) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        cpu.linear(x, next(weights), out=out)
    return (time.perf_counter() - started) / CALLS


def measure(name: str, n: int, k: int, batches: list[int], rounds: int, repack: bool) -> list[Result]:
    case = kernels.KernelCase(get(name), n, k, 1, cpu.default_threads(), repack)
    matrices, _ = kernels.rotating(case, kernels.MEMORY_BYTES)
    weights, rng = kernels.endless(matrices), np.random.default_rng(1)
    xs = {m: rng.standard_normal((m, k), np.float32) for m in {1, *batches}}
    outs = {m: np.empty((m, n), np.float32) for m in xs}
    times: dict[int, list[float]] = {m: [] for m in xs}
    for _ in range(rounds):
        for m, taken in times.items():
            taken.append(seconds(xs[m], weights, outs[m]))
    ratio = {m: median(a / b for a, b in zip(times[m], times[1], strict=True)) for m in times}
    results = []
    for m in batches:
        cheaper = [s for s in batches if s < m and ratio[s] / s < ratio[m] / m]
        before = min(cheaper, key=lambda s: ratio[s] / s, default=None)
        kernel = cpu.kernel(get(name), k, m, matrices[0].layout)
        results.append(Result(name, m, kernel, 1e3 * median(times[m]), ratio[m], ratio[m] / m, before))
    return results


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", "-f", action="append", help="a format; may be given again (default: q4_k)")
    parser.add_argument("--shape", default="4096x4096", help="rows and columns of the weights")
    parser.add_argument("--batch", default=",".join(map(str, range(1, 65))), help="batch sizes")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repack", action="store_true", help="weights as fb.repack gives them")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    n, k = map(int, chosen.shape.split("x"))
    batches = sorted(map(int, chosen.batch.split(",")))
    results = [r for f in chosen.format or ["q4_k"] for r in measure(f, n, k, batches, chosen.rounds, chosen.repack)]
    if chosen.json:
        print(json.dumps([asdict(r) for r in results], indent=2))
        return
    print(f"{'format':8} {'batch':>5} {'kernel':7} {'ms':>8} {'x batch 1':>9} {'per row':>8}  cheaper before")
    for r in results:
        threshold = "" if r.cheaper_before is None else str(r.cheaper_before)
        print(f"{r.format:8} {r.batch:5} {r.kernel:7} {r.ms:8.3f} {r.times_batch_1:9.2f} {r.per_row:8.3f}  {threshold}")


if __name__ == "__main__":
    main()

"""Times fb.linear beside NumPy's f32 product, with weights read from memory.

    python benchmarks/linear.py
    python benchmarks/linear.py --format q4_k --batch 1 --rounds 51 --json

Each product takes the next of many copies of the weights, 512 MiB of packed ones and 512 MiB of f32, so that none is
still in the cache. Both alternate, and the ratio is the median over the rounds. Threads of NumPy's BLAS go on spinning
for about 100 ms when their work is done, on a core that we want: they are told to sleep after a third of a millisecond
(OpenBLAS), and there is a pause before each round. A round is eight products (one from batch 64 on), and 50 ms of it
are not counted: a core that has been idle is slow at first, which would count more for the shorter one.
GB/s counts the weights as they lie in memory; NumPy's at batch 1 is a fair picture of what the memory gives. Below 1,
fewbit takes less time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass

os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")  # as a power of two, in cycles; read when NumPy is imported

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.bench import kernels
from fewbit.bench.formats import gaussian
from fewbit.bench.timing import paired
from fewbit.formats import get
from fewbit.ops import cpu

FORMATS = ["f16", "q8_0", "q6_k", "q5_k", "q4_k", "q4_0", "q3_k", "q2_k", "mxfp4", "iq4_xs", "int8", "int4_group"]
BATCHES = [1, 8, 512]
ROTATED_BYTES = 512 << 20
PAUSE, WARM = 0.25, 0.05  # seconds
PRODUCTS = 8  # in a round


@dataclass(frozen=True)
class Result:
    format: str
    batch: int
    seconds: float
    gb_per_s: float  # packed weights
    numpy_gb_per_s: float  # f32 weights
    time_to_numpy: float


def dense_copies(rows: int, columns: int) -> Iterator[Floats]:
    data = gaussian(rows, columns)
    return itertools.cycle([data.copy() for _ in range(-(-ROTATED_BYTES // data.nbytes))])


def run(name: str, batch: int, packed: list[fb.QuantTensor], dense: Iterator[Floats], rounds: int) -> Result:
    rows, columns = packed[0].shape
    x = gaussian(batch, columns)
    weights, products = itertools.cycle(packed), range(PRODUCTS if batch < 64 else 1)
    seconds, ratio = paired(
        lambda: [fb.linear(x, next(weights)) for _ in products],
        lambda: [x @ next(dense).T for _ in products],
        rounds,
        PAUSE,
        WARM,
    )
    seconds /= len(products)
    return Result(
        format=name,
        batch=batch,
        seconds=seconds,
        gb_per_s=packed[0].nbytes / seconds / 1e9,
        numpy_gb_per_s=4 * rows * columns / (seconds / ratio) / 1e9,
        time_to_numpy=ratio,
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", action="append", metavar="F", help=f"default: {', '.join(FORMATS)}")
    parser.add_argument("--batch", action="append", type=int, metavar="M", help="default: 1, 8 and 512")
    parser.add_argument("--rows", type=int, default=4096, help="default: 4096")
    parser.add_argument("--columns", type=int, default=4096, help="default: 4096")
    parser.add_argument("--rounds", type=int, default=0, help="default: 31, but 7 from batch 64 on")
    parser.add_argument("--repack", action="store_true", help="weights as fb.repack gives them")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def results(args: argparse.Namespace) -> Iterator[Result]:
    dense = dense_copies(args.rows, args.columns)
    for name in args.format or FORMATS:
        case = kernels.KernelCase(get(name), args.rows, args.columns, 1, cpu.default_threads(), args.repack)
        packed, _ = kernels.rotating(case, ROTATED_BYTES)
        for batch in args.batch or BATCHES:
            yield run(name, batch, packed, dense, args.rounds or (31 if batch < 64 else 7))


def main() -> None:
    args = options()
    if args.json:
        found = [asdict(r) for r in results(args)]
        setup = {"rows": args.rows, "columns": args.columns, "isa": cpu.isa(), "threads": cpu.default_threads()}
        print(json.dumps({**setup, "results": found}, indent=2))
        return
    print(f"{args.rows} x {args.columns}, {cpu.isa()}, {cpu.default_threads()} threads")
    print(f"{'format':<12}{'batch':>6}{'ms':>10}{'GB/s':>8}{'NumPy GB/s':>12}{'time / NumPy f32':>18}")
    for r in results(args):
        print(
            f"{r.format:<12}{r.batch:>6}{1e3 * r.seconds:>10.2f}{r.gb_per_s:>8.1f}{r.numpy_gb_per_s:>12.1f}"
            f"{r.time_to_numpy:>18.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

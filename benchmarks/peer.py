"""Times llama.cpp's matrix product on the CPU (ggml) beside fb.linear: the same weights, in the same run.

    pip install llama-cpp-python
    python benchmarks/peer.py
    python benchmarks/peer.py -f q4_k -f q8_0 --shape 14336x4096 --batch 1,512 --rounds 9 --json
    python benchmarks/peer.py --ggml DIR

Both take turns, and the ratio is the median over the rounds of ggml's time over fewbit's: above 1, fewbit takes less
time. Each product takes the next of many copies of the weights, 1 GiB of them (256 MiB from batch 64 on), so that none
is still in the cache. ggml may lay its weights out anew before the clock starts, in the buffer type that llama.cpp
would choose, and computes all products of a round as one graph; fewbit pays for a call from Python each time. A ratio
is printed only where both results agree.

The machine must be idle: ggml's threads wait for each other at every product, and other work slows it down many times.
A library built for any x86-64 is slower than one built for the machine: the first line tells what it was built for.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
from ggml import Ggml, find_folder
from option_types import batch_option, count_option, shape_option

from fewbit.bench.formats import relative_rmse
from fewbit.bench.kernels import KernelCase, rotating
from fewbit.bench.timing import PAUSE
from fewbit.errors import FewbitError
from fewbit.formats import Format, get
from fewbit.ops import cpu

FORMATS = ["q4_0", "q8_0", "q4_k", "q5_k", "q6_k"]
WITHOUT_PRODUCT = {"f64", "i8", "i16", "i32", "i64", "q8_1", "q8_k"}  # ggml cannot multiply by these: it would crash
LARGE_BATCH = 64
ROUND_SECONDS = 0.3
LEAST_SHARE = 0.9
LARGEST_ERROR = 2e-2  # both quantize the inputs to 8 bits, each in its own way


@dataclass(frozen=True)
class Result:
    format: str
    n: int
    k: int
    batch: int
    ggml_buffer: str
    ggml_share_of_cores: float  # its threads spin when they wait, so that on an idle machine this is about 1
    relative_error: float
    ggml_ms: float
    fewbit_ms: float
    ratio: float | None  # None: the results do not agree


def compare(ggml: Ggml, case: KernelCase, rounds: int) -> Result:
    matrices, _ = rotating(case, 1 << 28 if case.batch >= LARGE_BATCH else 1 << 30)
    x = np.random.default_rng(1).standard_normal((case.batch, case.k), np.float32)
    out = np.empty((case.batch, case.n), np.float32)
    weights = itertools.cycle(matrices)

    def ours(calls: int) -> float:
        started = time.perf_counter()
        for w in itertools.islice(weights, calls):
            cpu.linear(x, w, out=out, threads=case.threads)
        return (time.perf_counter() - started) / calls

    with ggml.product(case, matrices[0].data, len(matrices), x) as product:
        theirs = product.seconds
        theirs(1)
        ours(1)
        error = relative_rmse(product.read(np.empty_like(out)), out)
        calls = int(ROUND_SECONDS / max(theirs(1), ours(1)))
        times = [both(theirs, ours, max(1, min(len(matrices), calls))) for _ in range(rounds)]
    return Result(
        format=case.format.name,
        n=case.n,
        k=case.k,
        batch=case.batch,
        ggml_buffer=product.buffer_name,
        ggml_share_of_cores=median(product.shares[-rounds:]),
        relative_error=error,
        ggml_ms=1e3 * median(a for a, _ in times),
        fewbit_ms=1e3 * median(b for _, b in times),
        ratio=median(a / b for a, b in times) if error < LARGEST_ERROR else None,
    )


def both(theirs: Callable[[int], float], ours: Callable[[int], float], calls: int) -> tuple[float, float]:
    """Times of both, each after a pause: threads of the other may spin for a while when their work is done."""
    time.sleep(PAUSE)
    first = theirs(calls)
    time.sleep(PAUSE)
    return first, ours(calls)


def format_option(text: str) -> Format:
    try:
        fmt = get(text)
    except FewbitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if fmt.gguf is None or fmt.name in WITHOUT_PRODUCT:
        raise argparse.ArgumentTypeError(f"ggml has no product for weights of {fmt}")
    return fmt


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    repeated = "may be given more than once"
    parser.add_argument(
        "-f",
        "--format",
        action="append",
        type=format_option,
        metavar="F",
        help=f"{repeated} (default: {' '.join(FORMATS)})",
    )
    parser.add_argument(
        "--shape",
        action="append",
        type=shape_option,
        metavar="NxK",
        help=f"of the weights; {repeated} (default: 4096x4096)",
    )
    parser.add_argument("--batch", type=batch_option, default=[1, 512], metavar="M,M", help="default: 1,512")
    parser.add_argument(
        "--threads",
        type=count_option,
        default=cpu.default_threads(),
        metavar="T",
        help="for both (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=count_option, default=5, metavar="R", help="default: 5")
    parser.add_argument("--repack", action="store_true", help="our weights as fb.repack gives them, as in models")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--ggml", metavar="DIR", help="folder with libggml.so (default: GGML_DIR, else llama_cpp's)")
    args = parser.parse_args()
    args.format = args.format or [get(name) for name in FORMATS]
    args.shape = args.shape or [(4096, 4096)]
    for fmt, (_, k) in itertools.product(args.format, args.shape):
        if k % fmt.block:
            parser.error(f"ggml takes rows of {fmt} whose length is a multiple of {fmt.block}, not {k}")
    return args


def results(ggml: Ggml, args: argparse.Namespace) -> Iterator[Result]:
    for fmt, (n, k), batch in itertools.product(args.format, args.shape, args.batch):
        yield compare(ggml, KernelCase(fmt, n, k, batch, args.threads, args.repack), args.rounds)


def line(r: Result) -> str:
    ratio = f"{r.ratio:.2f}" if r.ratio is not None else f"none: results differ by {r.relative_error:.1g}"
    return (
        f"{r.format:<10}{f'{r.n}x{r.k}':<14}{r.batch:>6}  {r.ggml_buffer:<14}{r.ggml_ms:>10.3f}{r.fewbit_ms:>12.3f}  "
        f"{ratio:>14}"
    )


def main() -> None:
    args = options()
    ggml = Ggml(find_folder(args.ggml), args.threads)
    found = []
    if not args.json:
        print(f"fewbit uses {cpu.isa()}; ggml was built for {ggml.features()}; {args.threads} threads")
        head = f"{'format':<10}{'shape':<14}{'batch':>6}  {'ggml buffer':<14}{'ggml ms':>10}{'fewbit ms':>12}"
        print(f"{head}{'ggml / fewbit':>16}")
    for r in results(ggml, args):
        found.append(r)
        if not args.json:
            print(line(r), flush=True)
        if r.ggml_share_of_cores < LEAST_SHARE:
            share = f"{100 * r.ggml_share_of_cores:.0f} %"
            print(f"the machine was busy: ggml got {share} of its cores; measure again", file=sys.stderr)
    if args.json:
        setup = {"isa": cpu.isa(), "ggml_features": ggml.features(), "threads": args.threads}
        print(json.dumps({**setup, "results": [asdict(r) for r in found]}, indent=2))
    if any(r.ratio is None for r in found):
        raise SystemExit("results of ggml and fewbit differ")


if __name__ == "__main__":
    main()

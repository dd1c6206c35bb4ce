"""Times attention over the pages of a KV cache beside the read bandwidth, and prefill beside llama.cpp's.

    python benchmarks/attention.py
    python benchmarks/attention.py --kv f16 --kv q4_0 --rounds 15 --json

Decode: 16 sequences of 8,192 tokens, 32 query heads, 8 KV heads, 128 values each: more than the caches hold. Cases and
a plain read loop over the same bytes take turns; figures are medians over the rounds of ratios in the same round. Then
one sequence of 32,768 tokens with 1 and 2 threads, beside how the read loop gains; and 64 tokens, where what counts is
the time beside the arithmetic: `us_beside` is what is left after the time that 64 tokens take more than 1.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fewbit.formats import get
from fewbit.ops import cpu

HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 32


class Case:
    """Sequences of `length` tokens in scattered pages, and one query (or more) for each."""

    def __init__(self, kv: str, sequences: int, length: int, queries: int = 1) -> None:
        self.format = get(kv)
        rng = np.random.default_rng(0)
        pages = sequences * -(-length // PAGE)
        row = DIM // self.format.block * self.format.block_bytes
        x = rng.standard_normal((PAGE, KV_HEADS, DIM)).astype(np.float32)
        one = np.zeros((1, KV_HEADS, PAGE, row), np.uint8)
        cpu.kv_write(self.format, one, x, np.arange(PAGE))
        self.k = np.repeat(one, pages, axis=0)
        self.v = self.k.copy()
        self.tables = rng.permutation(pages).astype(np.int32)
        self.starts = np.arange(sequences + 1, dtype=np.int64) * (pages // sequences)
        self.lengths = np.full(sequences, length, np.int64)
        self.q_starts = np.arange(sequences + 1, dtype=np.int64) * queries
        self.q = rng.standard_normal((sequences * queries, HEADS, DIM)).astype(np.float32)
        self.out = np.empty_like(self.q)

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def run(self, threads: int) -> None:
        cpu.attend(
            self.q, self.k, self.format, self.v, self.format, self.tables, self.starts, self.lengths, self.q_starts,
            scale=DIM**-0.5, out=self.out, threads=threads,
        )  # fmt: skip

    def read(self, threads: int) -> float:
        return sum(cpu.read_seconds(part.reshape(-1), threads) for part in (self.k, self.v))


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def decode(names: list[str], rounds: int, threads: int) -> list[dict[str, Any]]:
    cases = {name: Case(name, 16, 8192) for name in names}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, case in cases.items():
            times[name].append((seconds(partial(case.run, threads)), case.read(threads)))
    first = np.array(times[names[0]])
    out = []
    for name in names:
        pairs = np.array(times[name])
        out.append(
            {
                "kv": name,
                "ms": 1e3 * float(np.median(pairs[:, 0])),
                "share_of_read": float(np.median(pairs[:, 1] / pairs[:, 0])),
                f"tokens_beside_{names[0]}": float(np.median(first[:, 0] / pairs[:, 0])),
            }
        )
    return out


def long(names: list[str], rounds: int) -> list[dict[str, Any]]:
    out = []
    for name in names:
        case, rows = Case(name, 1, 32768), []
        for _ in range(rounds):
            rows.append([seconds(partial(case.run, t)) for t in (1, 2)] + [case.read(t) for t in (1, 2)])
        one, two, read_one, read_two = np.array(rows).T
        gain, limit = float(np.median(one / two)), float(np.median(read_one / read_two))
        out.append({"kv": name, "gain_of_2_threads": gain, "gain_of_reading": limit, "share": gain / limit})
    return out


def short(names: list[str], rounds: int, threads: int) -> list[dict[str, Any]]:
    out = []
    for name in names:
        cases = [Case(name, 1, length) for length in (64, 1)]
        all_of, one = (min(seconds(partial(case.run, threads)) for _ in range(500 * rounds)) for case in cases)
        alone = [min(seconds(partial(case.run, 1)) for _ in range(500 * rounds)) for case in cases]
        arithmetic = (alone[0] - alone[1]) / threads
        out.append({"kv": name, "us_64": 1e6 * all_of, "us_1": 1e6 * one, "us_beside": 1e6 * (all_of - arithmetic)})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv", action="append", help="a format; may be given again (default: f16, q8_0, q4_0)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    names = args.kv or ["f16", "q8_0", "q4_0"]
    results = {
        "decode, 16 x 8192 tokens": decode(names, args.rounds, args.threads),
        "one sequence of 32768 tokens": long(names, args.rounds),
        "64 tokens": short(names, args.rounds, args.threads),
    }
    if args.json:
        print(json.dumps(results, indent=2))
        return
    for title, rows in results.items():
        print(title)
        for row in rows:
            print("  " + "  ".join(f"{key} {value:.3g}" if key != "kv" else f"{value:6}" for key, value in row.items()))


if __name__ == "__main__":
    main()

"""Times attention over the pages of a KV cache beside the read bandwidth, and prefill beside llama.cpp's.

    python benchmarks/attention.py
    python benchmarks/attention.py --kv f16 --kv q4_0 --rounds 15 --json

K and V are attended as models do it, unless they are to be exact. Decode: 16 sequences of 8,192 tokens, 32 query
heads, 8 KV heads, 128 values each: more than the caches hold. Cases and a plain read loop over the same bytes take
turns; figures are medians over the rounds of ratios in the same round. Then one sequence of 32,768 tokens with 1 and 2
threads, beside how the read loop gains (one thread is measured on each core in turn, see cores.py); and 64 tokens,
where what counts is the time beside the arithmetic: `us_beside` is what is left after the time that 64 tokens take more
than 1. That is measured for the layers of a model, which native code runs one after the other (writing K and V of the
new token is part of it), and for calls from Python.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from cores import rate_of_one

from fewbit import KVCache, quantize
from fewbit.formats import get
from fewbit.ops import cpu
from fewbit.ops.cpu.plan import build
from fewbit.ops.passes import select_logits
from fewbit.ops.recorder import record
from fewbit.ops.specs import AttentionParams, AttentionSpec, PageTables

HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 32


class Case:
    """Sequences of `length` tokens in scattered pages, and one query (or more) for each."""

    def __init__(self, kv: str, sequences: int, length: int, queries: int = 1) -> None:
        self.format = get(kv)
        rng = np.random.default_rng(0)
        pages = sequences * -(-length // PAGE)
        x = rng.standard_normal((PAGE, KV_HEADS, DIM)).astype(np.float32)
        cache = KVCache(1, KV_HEADS, DIM, pages=pages, k=kv, rotate=False)
        self.kv = cache.store.kv(0)
        for store, is_value in ((self.kv.k, False), (self.kv.v, True)):
            cpu.kv_write(self.format, store, x, np.arange(PAGE), is_value=is_value)
            store[1:] = store[0]
        numbers = np.arange(sequences + 1, dtype=np.int64)
        tables, lengths = rng.permutation(pages).astype(np.int32), np.full(sequences, length, np.int64)
        self.step = PageTables(tables, numbers * (pages // sequences), lengths, numbers * queries)
        self.q = rng.standard_normal((sequences * queries, HEADS, DIM)).astype(np.float32)
        self.out = np.empty_like(self.q)

    @property
    def nbytes(self) -> int:
        return self.kv.k.nbytes + self.kv.v.nbytes

    def run(self, threads: int) -> None:
        params = AttentionParams(DIM**-0.5)
        cpu.attend(self.q, self.kv, self.step, params, out=self.out, exact=False, threads=threads)

    def read(self, threads: int) -> float:
        return sum(cpu.read_seconds(part.reshape(-1), threads) for part in (self.kv.k, self.kv.v))


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
        for done in range(4 * rounds + 1):
            two, read_two = seconds(partial(case.run, 2)), case.read(2)
            one = rate_of_one(lambda case=case: 1 / seconds(partial(case.run, 1)), 2)
            read_one = rate_of_one(lambda case=case: 1 / case.read(1), 2)
            if done:  # threads are started in the first
                rows.append((1 / (one * two), 1 / (read_one * read_two)))
        gain, limit = (float(np.median(column)) for column in np.array(rows).T)
        out.append({"kv": name, "gain_of_2_threads": gain, "gain_of_reading": limit, "share": gain / limit})
    return out


class Layers:
    """The attention of `LAYERS` layers of a model, for the last one of `length` tokens."""

    LAYERS = 32

    def __init__(self, kv: str, length: int) -> None:
        cache = KVCache(self.LAYERS, KV_HEADS, DIM, tokens=PAGE * -(-length // PAGE), k=kv)
        rng = np.random.default_rng(0)
        q, k, v = (
            quantize(rng.standard_normal((1, heads * DIM)).astype(np.float32), "f32")
            for heads in (HEADS, KV_HEADS, KV_HEADS)
        )

        def forward(ops: Any) -> Any:
            x, keys, values = ops.embed(q), ops.embed(k), ops.embed(v)
            for layer in range(self.LAYERS):
                x = ops.attend(layer, x, keys, values, spec=AttentionSpec(KV_HEADS, DIM, DIM), scale=DIM**-0.5)
            return x

        self.plan = build(select_logits(record(forward)), cache.store)
        view = cache.reserve([(cache.new(), length)])
        one = np.zeros(1, np.int32)
        self.args = one, view.groups, view.lengths, np.array([0, 1], np.int64), one
        self.out = np.empty((1, HEADS * DIM), np.float32)

    def run(self, threads: int) -> None:
        self.plan.run(*self.args, self.out, "int8", threads)


def short(names: list[str], rounds: int, threads: int) -> list[dict[str, Any]]:
    out = []
    for name in names:
        row: dict[str, Any] = {"kv": name}
        kinds = {"in_a_model": (Layers, Layers.LAYERS), "from_python": (partial(Case, sequences=1), 1)}
        for kind, (make, layers) in kinds.items():
            cases = {length: make(name, length=length) for length in (64, 1)}
            times = dict.fromkeys(((length, t) for length in cases for t in {1, threads}), np.inf)
            for _ in range(60 * rounds):  # in turns, and often: what disturbs them lasts, and the least is wanted
                for length, t in times:
                    runs = [seconds(partial(cases[length].run, t)) / layers for _ in range(160 // layers + 5)]
                    times[length, t] = min(times[length, t], *runs)
            arithmetic = (times[64, 1] - times[1, 1]) / threads
            row |= {
                f"us_{kind}": 1e6 * times[64, threads],
                f"us_beside_{kind}": 1e6 * (times[64, threads] - arithmetic),
            }
        out.append(row)
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

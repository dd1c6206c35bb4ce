"""Recurrent layers beside the matrix products of their layer: CPU time of a prompt and of one token, one thread.

python benchmarks/recurrent.py [--hidden 1024] [--heads 16] [--tokens 512] [--rounds 9]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import fewbit as fb
from fewbit import devices
from fewbit.cache.cache import Cache
from fewbit.cache.groups import pages_by_group
from fewbit.cache.layout import make_layout
from fewbit.devices.batch import Row
from fewbit.devices.forward import forward
from fewbit.load_options import LoadOptions
from fewbit.ops.graph import Value
from fewbit.ops.recorder import Ops, record
from fewbit.ops.specs import AttentionSpec, RecurrentSpec

VOCAB, DIM, TAPS = 256, 128, 4
random = np.random.default_rng(0)


def table(width: int) -> fb.QuantTensor:
    return fb.quantize(random.standard_normal((VOCAB, width), np.float32) / np.float32(np.sqrt(DIM)), "f32")


def floats(count: int) -> np.ndarray:
    return -np.abs(random.standard_normal(count, np.float32))


def delta_rule(ops: Ops, hidden: int, heads: int) -> Value:
    n, spec = heads * DIM, RecurrentSpec(4 * heads * DIM * DIM)
    parts = [ops.embed(table(width)) for width in (n, n, n, heads, heads)]
    gates = {"decay": floats(heads), "dt_bias": floats(heads)}
    return ops.delta_rule(*parts, 0, heads=heads, v_heads=heads, scale=DIM**-0.5, spec=spec, **gates)


def scan(ops: Ops, hidden: int, heads: int) -> Value:
    n, heads = heads * DIM, 2 * heads  # of 64
    parts = [ops.embed(table(width)) for width in (n, heads, DIM, DIM)]
    vectors = {name: floats(heads) for name in ("decay", "skip", "dt_bias")}
    return ops.scan(*parts, 0, heads=heads, groups=1, spec=RecurrentSpec(4 * n * DIM), **vectors)


def conv(ops: Ops, hidden: int, heads: int) -> Value:
    n = 3 * heads * DIM
    weight = random.standard_normal((n, TAPS), np.float32)
    return ops.conv(ops.embed(table(n)), 0, weight, kind="silu", spec=RecurrentSpec(4 * n * (TAPS - 1)))


def products(ops: Ops, hidden: int, heads: int) -> Value:
    """Those of a layer with the delta rule and of its feed-forward part; the attention is there to keep all rows."""

    def linear(x: Value, rows: int) -> Value:
        w = random.standard_normal((rows, x.width), np.float32) / np.float32(np.sqrt(x.width))
        return ops.linear(x, fb.repack(fb.quantize(w, "q4_k")))

    x, n = ops.embed(table(hidden)), heads * DIM
    y = linear(ops.columns(linear(x, 4 * n), 0, n), hidden)
    y = linear(ops.gate(linear(y, 7 * hidden // 2), linear(y, 7 * hidden // 2)), hidden)
    one = ops.columns(y, 0, 32)
    return ops.attend(0, one, one, one, spec=AttentionSpec(1, 32, 32), scale=1.0)


def seconds(part: Callable[[Ops, int, int], Value], args: argparse.Namespace, tokens: int) -> float:
    def model(ops: Ops) -> Value:
        return ops.linear(ops.columns(part(ops, args.hidden, args.heads), 0, 32), table(32))

    graph, device = record(model), devices.get("cpu", LoadOptions(threads=1))
    layout = make_layout(graph.specs, "f16", "f16")
    cache = Cache(device.make_store(layout, pages_by_group(layout.groups, layout.page_tokens, tokens=4 * tokens + 64)))
    executor, best = device.make_executor(graph, cache.store, VOCAB), np.inf
    for _ in range(args.rounds):
        sequence, start = cache.new(), time.thread_time()
        forward(executor, cache, [Row(sequence, [i % VOCAB for i in range(tokens)], 1)])
        best = min(best, time.thread_time() - start)
        cache.free(sequence)
    return float(best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("hidden", 1024), ("heads", 16), ("tokens", 512), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    args = parser.parse_args()
    for tokens in (args.tokens, 1):
        whole = seconds(products, args, tokens)
        for part in (delta_rule, scan, conv):
            own = seconds(part, args, tokens)
            shown = f"{1e3 * own:.2f} ms, {own / whole:.2f} of the products' {1e3 * whole:.2f} ms"
            print(f"{part.__name__:10} {tokens:4} tokens: {shown}")


if __name__ == "__main__":
    main()

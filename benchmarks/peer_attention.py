"""Times llama.cpp's attention on the CPU (ggml's flash attention) beside fewbit's: the same K and V, in the same run.

    pip install llama-cpp-python
    python benchmarks/peer_attention.py
    python benchmarks/peer_attention.py --kv q8_0 --queries 1 --depth 8192 --rounds 9

32 query heads, 8 KV heads, 128 values each; `queries` tokens after `depth` others, causal. Both take turns; the ratio
is the median over the rounds of ggml's time over fewbit's. It is printed only where both results agree. Ours may round
to bf16, as it does in a model, unless `--exact`.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from statistics import median

import numpy as np
from ggml import F32_TYPE, INT, POINTER, SIGNATURES, Ggml, InitParams, find_folder

from fewbit import KVCache
from fewbit.bench.formats import relative_rmse
from fewbit.formats import get
from fewbit.ops import cpu
from fewbit.ops.specs import AttentionParams, PageTables

HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 32
F16_TYPE = 1
LONG, FLOAT = ctypes.c_int64, ctypes.c_float
MORE = {
    "ggml_new_tensor_4d": (POINTER, POINTER, INT, LONG, LONG, LONG, LONG),
    "ggml_flash_attn_ext": (POINTER, POINTER, POINTER, POINTER, POINTER, POINTER, FLOAT, FLOAT, FLOAT),
    "ggml_set_input": (None, POINTER),
}
SIGNATURES.update(MORE)


def ours(kv: str, q: np.ndarray, k: np.ndarray, v: np.ndarray, threads: int, exact: bool) -> tuple[object, np.ndarray]:
    """A call without arguments, and where its result will be."""
    fmt, tokens = get(kv), len(k)
    pages = -(-tokens // PAGE)
    table = np.random.default_rng(1).permutation(pages).astype(np.int32)
    places = np.arange(tokens)
    slots = table[places // PAGE].astype(np.int64) * PAGE + places % PAGE
    kv_arrays = KVCache(1, KV_HEADS, DIM, pages=pages, k=kv, rotate=False).store.kv(0)
    for store, x, is_value in ((kv_arrays.k, k, False), (kv_arrays.v, v, True)):
        cpu.kv_write(fmt, store, x, slots, is_value=is_value)
    step = PageTables(table, np.array([0, pages], np.int64), np.array([tokens]), np.array([0, len(q)]))
    params, out = AttentionParams(DIM**-0.5), np.empty_like(q)

    def call() -> None:
        cpu.attend(q, kv_arrays, step, params, out=out, exact=exact, threads=threads)

    return call, out


def theirs(ggml: Ggml, kv: str, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[object, np.ndarray]:
    lib, fmt = ggml.lib, get(kv)
    queries, tokens = len(q), len(k)
    size = 8 * lib.ggml_tensor_overhead() + lib.ggml_graph_overhead_custom(8, False)

    context = lib.ggml_init(InitParams(size, None, True))
    tq = lib.ggml_new_tensor_4d(context, F32_TYPE, DIM, queries, HEADS, 1)
    tk, tv = (lib.ggml_new_tensor_4d(context, fmt.gguf, DIM, tokens, KV_HEADS, 1) for _ in range(2))
    mask = lib.ggml_new_tensor_4d(context, F16_TYPE, tokens, queries, 1, 1)
    result = lib.ggml_flash_attn_ext(context, tq, tk, tv, mask, DIM**-0.5, 0.0, 0.0)
    graph = lib.ggml_new_graph_custom(context, 8, False)
    lib.ggml_build_forward_expand(graph, result)
    if not lib.ggml_backend_alloc_ctx_tensors_from_buft(context, ggml.plain):
        raise SystemExit("ggml could not allocate the tensors")

    def put(tensor: int, data: np.ndarray) -> None:
        data = np.ascontiguousarray(data)
        lib.ggml_backend_tensor_set(tensor, data.ctypes.data, 0, data.nbytes)

    put(tq, q.transpose(1, 0, 2))
    for tensor, x in ((tk, k), (tv, v)):
        put(tensor, cpu.encode(fmt, np.ascontiguousarray(x.transpose(1, 0, 2)).reshape(-1, DIM)))
    back = np.arange(tokens - queries, tokens)[:, None] - np.arange(tokens)
    put(mask, np.where(back >= 0, 0, -np.inf).astype(np.float16))
    out = np.empty((queries, HEADS, DIM), np.float32)

    def call() -> None:
        if lib.ggml_backend_graph_compute(ggml.backend, graph):
            raise SystemExit("ggml could not compute the attention")
        lib.ggml_backend_tensor_get(result, out.ctypes.data, 0, out.nbytes)

    return call, out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv", action="append", help="a format; may be given again (default: f16, q8_0, q4_0)")
    parser.add_argument("--queries", type=int, default=512)
    parser.add_argument("--depth", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--exact", action="store_true", help="ours in f32, not in bf16 on matrix tiles as in a model")
    parser.add_argument("--ggml", metavar="DIR", help="folder with libggml.so (default: GGML_DIR, else llama_cpp's)")
    args = parser.parse_args()
    ggml = Ggml(find_folder(args.ggml), args.threads)
    rng = np.random.default_rng(0)
    q = rng.standard_normal((args.queries, HEADS, DIM)).astype(np.float32)
    k, v = (rng.standard_normal((args.depth + args.queries, KV_HEADS, DIM)).astype(np.float32) for _ in range(2))
    for kv in args.kv or ["f16", "q8_0", "q4_0"]:
        mine, mine_out = ours(kv, q, k, v, args.threads, args.exact)
        peer, peer_out = theirs(ggml, kv, q, k, v)
        times: list[tuple[float, float]] = []
        for _ in range(args.rounds):
            start = time.perf_counter()
            mine()
            between = time.perf_counter()
            time.sleep(0.05)
            again = time.perf_counter()
            peer()
            times.append((between - start, time.perf_counter() - again))
            time.sleep(0.05)
        error = relative_rmse(mine_out, peer_out)
        ratio = median(b / a for a, b in times) if error < 2e-2 else float("nan")
        a, b = (1e3 * median(column) for column in zip(*times, strict=True))
        print(f"{kv:6} fewbit {a:8.1f} ms  ggml {b:8.1f} ms  ratio {ratio:.2f}  difference {error:.1e}", flush=True)


if __name__ == "__main__":
    main()

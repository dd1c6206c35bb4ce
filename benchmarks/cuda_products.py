"""Products on an NVIDIA GPU beside what its memory gives: `python benchmarks/cuda_products.py [--tune] [--json FILE]`.

`--only` takes some of one, some, many, products (a model's: fused, gated, with norms), forms and model (a whole one of
8B's shape, by cuda_model.py); `--tokens` and `--format` narrow them down.

Every product is checked against the NumPy decoder first. Times are medians of 7 replays of a graph, over copies of the
weights that take more than 600 MB together, back to back with dependent launches; the share is of the read ceiling of
the same run, in the bytes of the tiles. `--tune` times every shape of each kernel, and prints the best ones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from cuda_timing import graph_seconds, read_ceiling

from fewbit.formats import Format, get
from fewbit.formats.decode import decode
from fewbit.ops import cuda
from fewbit.ops.cuda import kernels_products as kernels
from fewbit.ops.cuda import products
from fewbit.ops.cuda.compile import compile_all
from fewbit.ops.cuda.kernels import Entry
from fewbit.ops.cuda.shapes import (
    MAX_CLUSTER,
    MAX_SKINNY,
    GemvShape,
    PanelShape,
    SharedShape,
    SkinnyShape,
    gemv_shape,
    panel_shape,
    shared_shape,
    skinny_shape,
)
from fewbit.ops.cuda.values import Launcher, Rows
from fewbit.tensor import QuantTensor

MAIN = ("q4_0", "q8_0", "q4_k", "q6_k", "int4_group")
OTHERS = (
    "q5_k", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "q2_0", "tq2_0", "q1_0",
    "int8", "int8_affine", "int4", "int4_group:zero=true", "int4_group:group=128,scale=f16",
)  # fmt: skip
SHAPES = ((4096, 4096), (4096, 14336), (28672, 4096))
ROTATED_BYTES = 700 << 20
GEMV = [(wr, wk, u, tr) for wr, wk, u, tr in (
    (1, 8, 4, 1), (1, 16, 2, 1), (1, 4, 8, 1), (1, 4, 4, 1), (1, 8, 2, 2), (1, 8, 4, 2), (1, 4, 4, 2), (1, 16, 2, 2),
    (1, 4, 8, 2), (1, 8, 1, 4), (1, 8, 2, 4), (1, 7, 4, 1), (1, 7, 4, 2), (1, 14, 4, 1), (1, 14, 4, 2), (1, 14, 2, 2),
    (1, 28, 4, 1), (1, 28, 2, 2), (1, 16, 4, 1), (1, 16, 1, 4), (1, 2, 8, 2),
)]  # fmt: skip
SKINNY = [(wk, u, rp) for wk in (2, 4, 7, 8, 14, 16) for u in (1, 2, 3, 4) for rp in (1, 2) if u * rp <= 4]
SHARED = [
    (w, rp, sk, cluster) for w in (2, 4, 8) for rp in (1, 2, 4) for sk in (1, 2, 3, 4, 7, 8, 14)
    for cluster in ((False, True) if 1 < sk <= MAX_CLUSTER else (False,))
]  # fmt: skip
PANELS = [
    (w, stages, sk, cluster) for w in (4, 8, 16) for stages in (2, 3) for sk in (1, 2, 3, 4, 6, 8)
    for cluster in ((False, True) if sk > 1 else (False,))
]  # fmt: skip
KINDS = ("one", "some", "many", "products", "forms", "model")


def random_rows(fmt: Format, n: int, k: int) -> np.ndarray:
    """Random codes, with scales of about one size."""
    rng = np.random.default_rng()
    data = rng.integers(0, 256, (n, fmt.row_bytes(k)), dtype=np.uint8)
    row = fmt.placement == "row"
    blocks = data.reshape(n, 1 if row else -1, data.shape[1] if row else fmt.block_bytes)
    for name, kind, count in fmt.fields:
        if kind not in ("f16", "f32", "e8m0", "ue4m3"):
            continue
        at, size = fmt.row_fields(k)[name] if row else (fmt.field_offset(name), 0)
        item = {"f16": 2, "f32": 4}.get(kind, 1)
        wanted = (n, blocks.shape[1], size // item if row else count)
        if item == 1:
            values = rng.integers(115, 122, wanted).astype(np.uint8) if kind == "e8m0" else rng.integers(20, 60, wanted)
        else:
            values = rng.uniform(0.001, 0.01, wanted)
        raw = values.astype({"f16": "<f2", "f32": "<f4"}.get(kind, "u1")).view(np.uint8)
        blocks[..., at : at + raw.shape[-1]] = raw
    return data


class Bench:
    def __init__(self) -> None:
        self.gpu = cuda.shared_session()
        self.seconds = partial(graph_seconds, self.gpu)
        self.results: list[dict[str, Any]] = []
        self.bad: list[str] = []
        self.ceiling = read_ceiling(self.gpu)

    def weights(self, fmt: Format, n: int, k: int) -> tuple[list[cuda.CudaTensor], np.ndarray]:
        """Copies of one tensor, more than a cache holds; and the values of its first rows."""
        data = random_rows(fmt, n, k)
        first = cuda.to_device(QuantTensor(data.reshape(-1), (n, k), fmt))
        copies = [first]
        for _ in range(max(1, ROTATED_BYTES // first.nbytes)):
            copy = cuda.CudaTensor(self.gpu, fmt, (n, k))
            copy.gain = first.gain
            args = (copy.planes[0], first.planes[0], first.buffer.size, self.gpu.stream.handle)
            self.gpu._checked(self.gpu._driver.cuMemcpyDtoDAsync(*args))
            copies.append(copy)
        self.gpu.stream.sync()
        return copies, decode(fmt, data[:256], k).astype(np.float64)

    def report(
        self, kernel: str, w: cuda.CudaTensor, tokens: int, time: float, error: float, limit: float, shape: Any
    ) -> None:
        n, k = w.shape
        share = w.nbytes / time / self.ceiling
        row = {
            "kernel": kernel, "format": w.format.name, "n": n, "k": k, "tokens": tokens, "us": round(time * 1e6, 2),
            "share": round(share, 3), "error": float(f"{error:.2e}"), "shape": str(shape),
            "bits": round(8 * w.nbytes / (n * k), 3), "tflops": round(2e-12 * n * k * tokens / time, 1),
        }  # fmt: skip
        self.results.append(row)
        if not error < limit:
            self.bad.append(f"{kernel} {w.format} {n}x{k} {tokens}: error {error:.1e}")
        print(f"{kernel:6} {w.format.name:16} {n}x{k:<6} {tokens:4} {row['us']:8} us {100 * share:5.1f}% "
              f"{row['tflops']:6} TFLOP/s error {error:.0e} {shape}", flush=True)  # fmt: skip

    def error(self, y: cuda.DeviceArray, values: np.ndarray, x: np.ndarray) -> float:
        found, expected = y.numpy().reshape(len(x), -1)[:, : len(values)], x.astype(np.float64) @ values.T
        return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))

    def inputs(self, tokens: int, n: int, k: int) -> tuple[np.ndarray, cuda.DeviceArray, cuda.DeviceArray]:
        x = np.random.default_rng().standard_normal((tokens, k), np.float32)
        y = self.gpu.empty((tokens, n))
        self.gpu.fill(y.pointer, 0xFF, y.nbytes)
        return x, self.gpu.array(x), y

    def launcher(self, stream: Any = None) -> Launcher:
        return Launcher(self.gpu, self.gpu.stream if stream is None else stream)

    def one_token(self, name: str, n: int, k: int, shapes: list[GemvShape] | None, parts: int = 1) -> None:
        fmt = get(name)
        ws, values = self.weights(fmt, n, k)
        w, (x, given, y) = ws[0], self.inputs(1, n, k)
        assert w.tiles
        form = products.make_form(self.launcher(), Rows(given.pointer, k, k), 1, int16=parts == 2)
        usual = gemv_shape(n, w.columns, w.tiles)
        every = [kernels.gemv((fmt,), w.columns, s, parts) for s in [*(shapes or []), usual]]
        compile_all([e.source for e in every], self.gpu.arch)
        times = []
        for shape, entry in zip([*(shapes or []), usual], every, strict=True):

            def run(stream: Any, w: cuda.CudaTensor, entry: Entry = entry, shape: GemvShape = shape) -> None:
                args = (*matrix(w), form.pointer, form.scales, *result(y.pointer, n))
                dependent = stream is not self.gpu.stream
                self.gpu.launch(entry, -(-n // shape.rows), shape.threads, *args, stream=stream, dependent=dependent)

            run(self.gpu.stream, w)
            error = self.error(y, values, x)
            times.append((self.seconds(lambda b: [run(b, w) for w in ws] and None) / len(ws), shape, error))
        best = min(times, key=lambda t: t[0])
        if shapes:
            top = ", ".join(f"{t * 1e6:.2f} {_text(s)}" for t, s, _ in sorted(times, key=lambda t: t[0])[:5])
            print(f"   {name} {n}x{k}: {top}; usual {times[-1][0] * 1e6:.2f} {_text(usual)}", flush=True)
            self.report("gemv*", w, 1, *best[::2], 2e-2, _text(best[1]))
        kind, limit = ("gemv", 2e-2) if parts == 1 else ("gemv16", 1e-3)
        self.report(kind, w, 1, *times[-1][::2], limit, _text(usual))

    def shapes(self, w: cuda.CudaTensor, form: products.Form, tokens: int) -> tuple[Any, list[Any]]:
        """The usual shape of a product of some tokens, and all that fit."""
        (n, _), tiles, fixed = w.shape, form.tiles, w.columns
        assert w.tiles
        if form.kind == "panels":
            usual = panel_shape(tokens, n, fixed, self.gpu.has_wgmma)
            most = self.gpu.device.properties.max_shared_memory_per_block_optin
            panels = [replace(usual, warps=a, stages=s, blocks_k=sk, is_cluster=c) for a, s, sk, c in PANELS]
            columns = usual.shared // (2048 * usual.token_tiles * usual.stages)  # of a stage
            fits = [s for s in panels if s.shared <= most and s.warps <= 4 * s.stages * columns]
            return usual, [
                s for s in fits if columns * 4 * s.token_tiles % s.warps == 0 and (s.blocks_k < 3 or n <= 8192)
            ]
        if tokens <= MAX_SKINNY:
            skinny = [SkinnyShape(wk, u, rp, tiles, fixed) for wk, u, rp in SKINNY if u * rp * tiles <= 4]
            return skinny_shape(tokens, n, fixed), skinny + self.shared_shapes(n, tiles, fixed)
        return shared_shape(tokens, n, fixed, w.tiles.is_light), self.shared_shapes(n, tiles, fixed)

    def shared_shapes(self, n: int, tiles: int, columns: int) -> list[SharedShape]:
        stages = 3 if tiles == 8 else 4
        fits = [s for s in SHARED if 4 * tiles % s[0] == 0 and s[0] * s[1] <= 4 * stages and s[1] * tiles <= 16]
        fits = [s for s in fits if s[2] < 4 or n <= 8192]
        found = [SharedShape(a, rp, tiles, stages, sk, cluster, columns) for a, rp, sk, cluster in fits]
        return found + [replace(s, stages=3) for s in found if stages > 3 and s.warps * s.row_pairs <= 12]

    def some_tokens(self, name: str, n: int, k: int, tokens: int, tune: bool) -> None:
        fmt = get(name)
        ws, values = self.weights(fmt, n, k)
        w, (x, given, y) = ws[0], self.inputs(tokens, n, k)
        form = products.make_form(self.launcher(), Rows(given.pointer, k, k), tokens)
        usual, every = self.shapes(w, form, tokens)
        shapes = [*(every if tune else []), usual]
        kernel = {SkinnyShape: kernels.skinny, SharedShape: kernels.skinny_shared, PanelShape: kernels.panel}
        entries = [kernel[type(s)]((fmt,), s) for s in shapes]
        compile_all([entry.source for entry in entries], self.gpu.arch)
        times = []
        for shape, entry in zip(shapes, entries, strict=True):

            def run(stream: Any, w: cuda.CudaTensor, shape: Any = shape, entry: Entry = entry) -> None:
                blocks: Any = form.tiles // shape.token_tiles * -(-n // shape.rows)
                given = (np.int32(w.columns), form.pointer, form.scales, np.int32(tokens), np.int32(form.tiles))
                args: tuple[Any, ...] = (*matrix(w), *given, *result(y.pointer, n))
                if not isinstance(shape, SkinnyShape):
                    args += (self.gpu.scratch("parts", 128 << 20), self.gpu.scratch("tickets", 1 << 16, zeros=True))
                    blocks = (blocks, shape.blocks_k)
                self.gpu.launch(
                    entry, blocks, shape.threads, *args, stream=stream, dependent=stream is not self.gpu.stream
                )

            self.gpu.fill(y.pointer, 0xFF, y.nbytes)
            run(self.gpu.stream, w)
            error = self.error(y, values, x)
            times.append((self.seconds(lambda b: [run(b, w) for w in ws] and None) / len(ws), shape, error))
        kind = "panels" if form.kind == "panels" else "mma"
        if tune:
            top = ", ".join(f"{t * 1e6:.2f} {_text(s)}" for t, s, _ in sorted(times, key=lambda t: t[0])[:5])
            print(f"   {name} {n}x{k} {tokens}: {top}; usual {times[-1][0] * 1e6:.2f} {_text(usual)}", flush=True)
            best = min(times, key=lambda t: t[0])
            self.report(kind + "*", w, tokens, *best[::2], 3e-3, _text(best[1]))
        self.report(kind, w, tokens, *times[-1][::2], 3e-3, _text(usual))

    def many_tokens(self, name: str, n: int, k: int, tokens: int) -> None:
        ws, values = self.weights(get(name), n, k)
        x, given, y = self.inputs(tokens, n, k)

        def run(stream: Any, w: cuda.CudaTensor) -> None:
            launcher = self.launcher(stream)
            form = products.make_form(launcher, Rows(given.pointer, k, k), tokens)
            products.multiply(launcher, w, form, tokens, Rows(y.pointer, n, n))

        run(None, ws[0])
        error = self.error(y, values, x)
        time = self.seconds(lambda b: [run(b, w) for w in ws[:4]] and None) / 4
        self.report("many", ws[0], tokens, time, error, 6e-3, "decode + cuBLAS")

    def model_product(self, what: str, names: list[str], n: int, k: int, tokens: int, invariant: bool = False) -> None:
        """A norm, and a product as models have it: several matrices at once, or a gate."""
        data = [QuantTensor(random_rows(get(x), n, k).reshape(-1), (n, k), get(x)) for x in names]
        make = (lambda: products.Fused.gated(self.gpu, data[0], data[1], "silu")) if what == "gated" else (
            lambda: products.Fused.make(self.gpu, data)
        )  # fmt: skip
        first = make()
        ws = [first] + [make() for _ in range(min(40, ROTATED_BYTES // first.nbytes))]
        _, given, y = self.inputs(tokens, first.width, k)
        weight = self.gpu.array(np.ones(k, np.float32))

        def run(stream: Any, w: products.Fused, launcher: Launcher | None = None) -> None:
            launcher = launcher or self.launcher(stream)
            rows, out = Rows(given.pointer, k, k), Rows(y.pointer, first.width, first.width)
            form = products.make_form(launcher, rows, tokens, (weight.pointer, 1e-5), invariant=invariant)
            products.multiply(launcher, w, form, tokens, out, invariant=invariant)

        def record(stream: Any) -> None:
            launcher = self.launcher(stream)
            for w in ws:
                run(None, w, launcher)

        run(None, first)
        self.gpu.stream.sync()
        time = self.seconds(record) / len(ws)
        share = first.nbytes / time / self.ceiling
        row = {"kernel": what, "format": "+".join(names), "n": n * len(names), "k": k, "tokens": tokens,
               "us": round(time * 1e6, 2), "share": round(share, 3), "invariant": invariant}  # fmt: skip
        self.results.append(row)
        text = f"{what} {row['format']} {row['n']}x{k} {tokens:4} {row['us']:8} us with norm {100 * share:5.1f}%"
        print(text + (" invariant" if invariant else ""), flush=True)

    def forms(self, k: int, tokens: int, norm: bool) -> None:
        """What makes rows ready, forty times in a row."""
        given = self.gpu.array(np.random.default_rng().standard_normal((tokens, k), np.float32))
        weight = self.gpu.array(np.ones(k, np.float32))

        def run(launcher: Launcher) -> None:
            for _ in range(40):
                normed = (weight.pointer, 1e-5) if norm else None
                products.make_form(launcher, Rows(given.pointer, k, k), tokens, normed)

        run(self.launcher())
        self.gpu.stream.sync()
        time = self.seconds(lambda stream: run(self.launcher(stream))) / 40
        self.results.append({"kernel": "form", "k": k, "tokens": tokens, "norm": norm, "us": round(time * 1e6, 2)})
        print(f"form   {k:5} {tokens:4} {'norm' if norm else '    '} {time * 1e6:.2f} us", flush=True)


def matrix(w: cuda.CudaTensor) -> tuple[Any, ...]:
    return *w.planes, np.float32(w.gain), np.float32(1 / w.gain), np.int32(w.shape[0])


def result(y: int, n: int) -> tuple[Any, ...]:
    return y, 0, 0, np.int32(n), np.int32(0)


def _text(shape: Any) -> str:
    return "/".join(map(str, vars(shape).values()))


def wanted(given: argparse.Namespace, counts: tuple[int, ...]) -> list[int]:
    return [t for t in counts if given.tokens is None or t in given.tokens]


def measure_one(bench: Bench, given: argparse.Namespace) -> None:
    names = (given.format,) if given.format else MAIN if given.quick else MAIN + OTHERS
    for name, (n, k) in product(names, SHAPES):
        bench.one_token(name, n, k, [GemvShape(*s) for s in GEMV] if given.tune and name in MAIN else None)
    for name, (n, k) in product(() if given.format else ("q4_k", "q8_0"), SHAPES):
        bench.one_token(name, n, k, None, 2)


def measure_products(bench: Bench, given: argparse.Namespace) -> None:
    for tokens, invariant in product(wanted(given, (1, 8, 32, 64, 512)), (False, True)):
        bench.model_product("fused", ["q4_k", "q4_k", "q6_k"], 2048, 4096, tokens, invariant)
        bench.model_product("gated", ["q4_k", "q4_k"], 14336, 4096, tokens, invariant)
        bench.model_product("single", ["q4_k"], 4096, 14336, tokens, invariant)


def measure_model() -> Any:
    """A whole model, in a process of its own."""
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run([sys.executable, Path(__file__).with_name("cuda_model.py"), "--json", file.name], check=True)
        return json.load(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="time every shape of each kernel")
    parser.add_argument("--quick", action="store_true", help="the five main formats alone")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--only", default=",".join(KINDS), help=f"some of {', '.join(KINDS)}")
    parser.add_argument("--tokens", type=lambda text: {int(t) for t in text.split(",")}, help="counts, as 8,32")
    parser.add_argument("--format", help="one format instead of those that are usual")
    given = parser.parse_args()
    bench = Bench()
    print(f"{bench.gpu.device.name}: reads {bench.ceiling / 1e12:.3f} TB/s", flush=True)
    if "one" in (kinds := given.only.split(",")):
        measure_one(bench, given)
    if "some" in kinds:
        usual = ("q4_k", "q6_k") if given.quick else ("q4_k", "q6_k", "q8_0", "int4_group", "iq4_xs")
        names = (given.format,) if given.format else usual
        for name, tokens, (n, k) in product(names, wanted(given, (2, 8, 16, 32, 64, 128, 256)), SHAPES):
            bench.some_tokens(name, n, k, tokens, given.tune and name == (given.format or "q4_k"))
    if "many" in kinds:
        names = (given.format,) if given.format else ("q4_k", "q6_k")
        for name, tokens, (n, k) in product(names, wanted(given, (512, 4096)), SHAPES):
            bench.many_tokens(name, n, k, tokens)
    if "products" in kinds:
        measure_products(bench, given)
    if "forms" in kinds:
        for k, tokens, norm in product((4096, 14336), wanted(given, (1, 8, 32, 64, 512, 4096)), (False, True)):
            bench.forms(k, tokens, norm)
    model = measure_model() if "model" in kinds else {}
    if given.json:
        about = {"device": bench.gpu.device.name, "ceiling_tb_s": round(bench.ceiling / 1e12, 3), "model": model}
        given.json.write_text(json.dumps({**about, "results": bench.results}, indent=1))
    print("\n".join(bench.bad) or "every error is within its limit")


if __name__ == "__main__":
    main()

"""Times llama.cpp's matrix product on the CPU (ggml) beside fb.linear: the same weights, in the same run.

    pip install llama-cpp-python
    python benchmarks/peer.py
    python benchmarks/peer.py -f q4_k -f q8_0 --shape 14336x4096 --batch 1,512 --rounds 9 --json
    python benchmarks/peer.py --ggml DIR

Both take turns, and the ratio is the median over the rounds of ggml's time over fewbit's: above 1, fewbit takes less
time. Each product takes the next of many copies of the weights, 1 GiB of them (256 MiB from batch 64 on), so that none
is still in the cache. ggml may lay its weights out anew before the clock starts, in the buffer type that llama.cpp
would choose, and computes all products of a turn as one graph; fewbit pays for a call from Python each time. A ratio is
printed only where both results agree.

The machine must be idle: ggml's threads wait for each other at every product, and other work slows it down many times.
A library built for any x86-64 is slower than one built for the machine: the first line tells what it was built for.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import itertools
import json
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from fewbit.errors import FewbitError
from fewbit.formats import Format, get
from fewbit.kernels import Case, rotating
from fewbit.measure import PAUSE, relative_rmse
from fewbit.ops import cpu

FORMATS = ["q4_0", "q8_0", "q4_k", "q5_k", "q6_k"]
WITHOUT_PRODUCT = {"f64", "i8", "i16", "i32", "i64", "q8_1", "q8_k"}  # ggml cannot multiply by these: it would crash
LARGE_BATCH = 64
TURN_SECONDS = 0.3
LEAST_SHARE = 0.9
LARGEST_ERROR = 2e-2  # both quantize the inputs to 8 bits, each in its own way

Floats = npt.NDArray[np.float32]

POINTER, SIZE, INT, BOOL, TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_bool, ctypes.c_char_p
F32_TYPE, CPU_DEVICE, WARNING, ERROR = 0, 0, 3, 4  # in ggml's enums


class InitParams(ctypes.Structure):
    _fields_ = (("mem_size", SIZE), ("mem_buffer", POINTER), ("no_alloc", BOOL))


class Feature(ctypes.Structure):
    _fields_ = (("name", TEXT), ("value", TEXT))


SIGNATURES: dict[str, tuple[Any, ...]] = {  # the result, then the arguments
    "ggml_init": (POINTER, InitParams),
    "ggml_free": (None, POINTER),
    "ggml_log_set": (None, POINTER, POINTER),
    "ggml_tensor_overhead": (SIZE,),
    "ggml_graph_overhead_custom": (SIZE, SIZE, BOOL),
    "ggml_new_tensor_2d": (POINTER, POINTER, INT, ctypes.c_int64, ctypes.c_int64),
    "ggml_new_graph_custom": (POINTER, POINTER, SIZE, BOOL),
    "ggml_build_forward_expand": (None, POINTER, POINTER),
    "ggml_mul_mat": (POINTER, POINTER, POINTER, POINTER),
    "ggml_nbytes": (SIZE, POINTER),
    "ggml_get_data": (POINTER, POINTER),
    "ggml_backend_load_all_from_path": (None, TEXT),
    "ggml_backend_dev_by_type": (POINTER, INT),
    "ggml_backend_dev_backend_reg": (POINTER, POINTER),
    "ggml_backend_dev_init": (POINTER, POINTER, TEXT),
    "ggml_backend_dev_buffer_type": (POINTER, POINTER),
    "ggml_backend_dev_supports_op": (BOOL, POINTER, POINTER),
    "ggml_backend_reg_get_proc_address": (POINTER, POINTER, TEXT),
    "ggml_backend_buft_name": (TEXT, POINTER),
    "ggml_backend_alloc_ctx_tensors_from_buft": (POINTER, POINTER, POINTER),
    "ggml_backend_buffer_get_base": (POINTER, POINTER),
    "ggml_backend_buffer_get_size": (SIZE, POINTER),
    "ggml_backend_buffer_free": (None, POINTER),
    "ggml_backend_tensor_alloc": (INT, POINTER, POINTER, POINTER),
    "ggml_backend_tensor_set": (None, POINTER, POINTER, SIZE, SIZE),
    "ggml_backend_tensor_get": (None, POINTER, POINTER, SIZE, SIZE),
    "ggml_backend_graph_compute": (INT, POINTER, POINTER),
}


def log(level: int, text: bytes, _: object) -> None:
    """Without it ggml tells of every tensor that it lays out anew."""
    if level in (WARNING, ERROR):
        sys.stderr.write(text.decode(errors="replace"))


LOG = ctypes.CFUNCTYPE(None, INT, TEXT, POINTER)(log)  # here, so that it lives as long as ggml may call it


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


@dataclass(frozen=True)
class Placed:
    """Tensors of ggml that lie in one buffer."""

    tensors: list[int]
    buffer: int


class Ggml:
    """ggml's CPU backend."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.lib = load(folder)
        self.threads = threads
        self.lib.ggml_log_set(ctypes.cast(LOG, POINTER), None)
        device = self.lib.ggml_backend_dev_by_type(CPU_DEVICE)
        if not device:  # built with backends that are loaded when asked for
            self.lib.ggml_backend_load_all_from_path(os.fsencode(folder))
            device = self.lib.ggml_backend_dev_by_type(CPU_DEVICE)
        if not device:
            raise SystemExit(f"ggml in {folder} has no CPU backend")
        self.device = device
        self.registry = self.lib.ggml_backend_dev_backend_reg(device)
        self.backend = self.lib.ggml_backend_dev_init(device, None)
        self.function("ggml_backend_set_n_threads", None, POINTER, INT)(self.backend, threads)

    def function(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        """A function of the CPU backend that only its registry knows."""
        address = self.lib.ggml_backend_reg_get_proc_address(self.registry, name.encode())
        if not address:
            raise SystemExit(f"this ggml is too old: it has no {name}")
        found: Callable[..., Any] = ctypes.CFUNCTYPE(result, *arguments)(address)
        return found

    def features(self) -> str:
        """What the library was built for."""
        found = self.function("ggml_backend_get_features", ctypes.POINTER(Feature), POINTER)(self.registry)
        return " ".join(f.name.decode() for f in itertools.takewhile(lambda f: f.name, found))

    def buffer_types(self) -> list[int]:
        """Where weights may lie, in llama.cpp's order: AMX and other layouts of its own first, plain memory last."""
        extra = self.function("ggml_backend_dev_get_extra_bufts", ctypes.POINTER(POINTER), POINTER)(self.device)
        found = list(itertools.takewhile(bool, extra)) if extra else []
        return [*found, self.plain]

    @property
    def plain(self) -> int:
        address: int = self.lib.ggml_backend_dev_buffer_type(self.device)
        return address

    def buffer_name(self, buffer_type: int) -> str:
        name: bytes = self.lib.ggml_backend_buft_name(buffer_type)
        return name.decode()

    @contextmanager
    def context(self, tensors: int, graph_size: int = 0) -> Iterator[int]:
        """Room for tensors without their data, and for a graph."""
        size = tensors * self.lib.ggml_tensor_overhead() + self.lib.ggml_graph_overhead_custom(graph_size, False)
        made = self.lib.ggml_init(InitParams(size, None, True))
        try:
            yield made
        finally:
            self.lib.ggml_free(made)

    @contextmanager
    def placed(self, buffer_type: int, kind: int, rows: int, columns: int, count: int = 1) -> Iterator[Placed]:
        with self.context(count) as context:
            tensors = [self.lib.ggml_new_tensor_2d(context, kind, columns, rows) for _ in range(count)]
            buffer = self.lib.ggml_backend_alloc_ctx_tensors_from_buft(context, buffer_type)
            if not buffer:
                raise SystemExit(f"ggml could not allocate {count} matrices of {rows} x {columns}")
            try:
                advise_huge_pages(
                    self.lib.ggml_backend_buffer_get_base(buffer), self.lib.ggml_backend_buffer_get_size(buffer)
                )
                yield Placed(tensors, buffer)
            finally:
                self.lib.ggml_backend_buffer_free(buffer)

    def best_buffer_type(self, case: Case) -> int:
        """The first that takes the product, as llama.cpp chooses."""
        return next(b for b in self.buffer_types() if self.takes(case, b))

    def takes(self, case: Case, buffer_type: int) -> bool:
        with self.placed(buffer_type, number(case.format), case.n, case.k) as w, self.context(2) as context:
            x = self.lib.ggml_new_tensor_2d(context, F32_TYPE, case.k, case.batch)
            product = self.lib.ggml_mul_mat(context, w.tensors[0], x)
            return bool(self.lib.ggml_backend_dev_supports_op(self.device, product))

    def set(self, tensor: int, data: npt.NDArray[Any]) -> None:
        size = self.lib.ggml_nbytes(tensor)
        if size != data.nbytes:
            raise SystemExit(f"ggml lays out this matrix in {size} bytes, fewbit in {data.nbytes}")
        self.lib.ggml_backend_tensor_set(tensor, data.ctypes.data, 0, size)

    @contextmanager
    def product(self, case: Case, packed: npt.NDArray[np.uint8], count: int, x: Floats) -> Iterator[Product]:
        """Copies of the packed weights, the inputs, and one place for all results."""
        buffer_type = self.best_buffer_type(case)
        with (
            self.placed(buffer_type, number(case.format), case.n, case.k, count) as weights,
            self.placed(self.plain, F32_TYPE, case.batch, case.k) as inputs,
            self.placed(self.plain, F32_TYPE, case.batch, case.n) as results,
        ):
            for tensor in weights.tensors:
                self.set(tensor, packed)
            self.set(inputs.tensors[0], x)
            yield Product(self, self.buffer_name(buffer_type), weights, inputs.tensors[0], results)


class Product:
    """One case in ggml."""

    def __init__(self, ggml: Ggml, buffer_name: str, weights: Placed, x: int, results: Placed) -> None:
        self.ggml = ggml
        self.buffer_name = buffer_name
        self.turns = itertools.cycle(weights.tensors)
        self.x = x
        self.results = results
        self.shares: list[float] = []  # of the cores, as ggml got them while it computed

    def seconds(self, calls: int) -> float:
        """Time of a product; they make one graph, as the layers of a model do."""
        graph_size = 2 * (calls + 1)
        with self.ggml.context(calls, graph_size) as context:
            graph = self.graph(context, calls, graph_size)
            started, used = time.perf_counter(), time.process_time()
            status = self.ggml.lib.ggml_backend_graph_compute(self.ggml.backend, graph)
            taken, used = time.perf_counter() - started, time.process_time() - used
        self.shares.append(used / taken / self.ggml.threads)
        if status != 0:
            raise SystemExit(f"ggml could not compute the product: status {status}")
        return taken / calls

    def graph(self, context: int, calls: int, size: int) -> int:
        lib = self.ggml.lib
        graph: int = lib.ggml_new_graph_custom(context, size, False)
        place = lib.ggml_get_data(self.results.tensors[0])
        for w in itertools.islice(self.turns, calls):
            node = lib.ggml_mul_mat(context, w, self.x)
            lib.ggml_backend_tensor_alloc(self.results.buffer, node, place)
            lib.ggml_build_forward_expand(graph, node)
        return graph

    def read(self, out: Floats) -> Floats:
        self.ggml.lib.ggml_backend_tensor_get(self.results.tensors[0], out.ctypes.data, 0, out.nbytes)
        return out


def load(folder: Path) -> ctypes.CDLL:
    """The library with all of ggml's functions; those it needs are loaded first, wherever they were built to lie."""
    paths = [p for stem in ("ggml-base", "ggml-cpu", "ggml") if (p := library(folder, stem))]
    lib = [ctypes.CDLL(str(p), mode=ctypes.RTLD_GLOBAL) for p in paths][-1]
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def library(folder: Path, stem: str) -> Path | None:
    return next((p for end in ("so", "dylib") if (p := folder / f"lib{stem}.{end}").exists()), None)


def find_folder(given: str | None) -> Path:
    """Where ggml's libraries lie: as told, else inside the package llama_cpp."""
    wanted = given or os.environ.get("GGML_DIR")
    spec = None if wanted else importlib.util.find_spec("llama_cpp")
    folders = [wanted] if wanted else [f"{p}/lib" for p in (spec and spec.submodule_search_locations) or []]
    for folder in map(Path, folders):
        if library(folder, "ggml"):
            return folder.resolve()
    raise SystemExit(
        f"no ggml library {f'in {wanted}' if wanted else 'found'}: `pip install llama-cpp-python`, or name the folder "
        "that holds libggml.so with --ggml DIR or the environment variable GGML_DIR"
    )


def advise_huge_pages(base: int, size: int) -> None:
    """NumPy asks for huge pages for its arrays, ggml does not for its buffers: both shall have them."""
    first = -(-base // mmap.PAGESIZE) * mmap.PAGESIZE
    with suppress(AttributeError):  # not on this system
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [POINTER, SIZE, INT]
        advise(first, max(0, base + size - first), mmap.MADV_HUGEPAGE)


def number(fmt: Format) -> int:
    assert fmt.gguf is not None  # options() lets no other through
    return fmt.gguf


def compare(ggml: Ggml, case: Case, rounds: int) -> Result:
    matrices, _ = rotating(case, 1 << 28 if case.batch >= LARGE_BATCH else 1 << 30)
    x = np.random.default_rng(1).standard_normal((case.batch, case.k), np.float32)
    out = np.empty((case.batch, case.n), np.float32)
    turns = itertools.cycle(matrices)

    def ours(calls: int) -> float:
        started = time.perf_counter()
        for w in itertools.islice(turns, calls):
            cpu.linear(x, w, out=out, threads=case.threads)
        return (time.perf_counter() - started) / calls

    with ggml.product(case, matrices[0].data, len(matrices), x) as product:
        theirs = product.seconds
        theirs(1)
        ours(1)
        error = relative_rmse(product.read(np.empty_like(out)), out)
        calls = int(TURN_SECONDS / max(theirs(1), ours(1)))
        times = [turn(theirs, ours, max(1, min(len(matrices), calls))) for _ in range(rounds)]
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


def turn(theirs: Callable[[int], float], ours: Callable[[int], float], calls: int) -> tuple[float, float]:
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


def count_option(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def shape_option(text: str) -> tuple[int, int]:
    n, by, k = text.lower().partition("x")
    if not by:
        raise argparse.ArgumentTypeError(f"a shape is rows x columns, such as 4096x4096, not {text!r}")
    return count_option(n), count_option(k)


def batch_option(text: str) -> list[int]:
    return [count_option(part) for part in text.split(",")]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    more = "may be given more than once"
    parser.add_argument(
        "-f",
        "--format",
        action="append",
        type=format_option,
        metavar="F",
        help=f"{more} (default: {' '.join(FORMATS)})",
    )
    parser.add_argument(
        "--shape",
        action="append",
        type=shape_option,
        metavar="NxK",
        help=f"of the weights; {more} (default: 4096x4096)",
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
    parser.add_argument("--repack", action="store_true", help="our weights as fb.repack lays them, as in models")
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
        yield compare(ggml, Case(fmt, n, k, batch, args.threads, args.repack), args.rounds)


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

"""ggml's CPU backend by ctypes: llama.cpp's matrix products, for peer.py."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from fewbit.arrays import Bytes, Floats
from fewbit.bench.kernels import KernelCase
from fewbit.formats import Format

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
        """Memory for tensors without their data, and for a graph."""
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

    def best_buffer_type(self, case: KernelCase) -> int:
        """The first that takes the product, as llama.cpp chooses."""
        return next(b for b in self.buffer_types() if self.takes(case, b))

    def takes(self, case: KernelCase, buffer_type: int) -> bool:
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
    def product(self, case: KernelCase, packed: Bytes, count: int, x: Floats) -> Iterator[Product]:
        """Copies of the packed weights, the inputs, and one buffer for all results."""
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
        self.weights = itertools.cycle(weights.tensors)
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
        for w in itertools.islice(self.weights, calls):
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

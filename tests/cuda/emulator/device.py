"""A GPU that is none: kernels are compiled as plain C++ (emulate.h) and run when they are launched."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir
from threading import Lock, RLock, get_ident
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from fewbit.errors import OutOfMemory
from fewbit.ops.cuda import device
from fewbit.ops.cuda.compile import digest, sources
from fewbit.ops.cuda.device import Gpu
from fewbit.ops.cuda.kernels import Entry
from fewbit.ops.cuda.launch import layout
from fewbit.ops.cuda.session import MIN_BYTES, Session

from .translate import translated

HERE = Path(__file__).parent
OPTIONS = (
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-shared",
    "-w",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE",
)
MAX_GRID = 65535  # blocks in the second and third dimension
_libc = ctypes.CDLL(None, use_errno=True)
_running = Lock()


class Buffer:
    """Memory whose end lies before a page that must not be touched."""

    def __init__(self, nbytes: int) -> None:
        page = mmap.PAGESIZE
        inner = -(-nbytes // page) * page
        self._map = mmap.mmap(-1, inner + page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        _libc.mprotect(ctypes.c_void_p(start + inner), page, 0)
        self.handle, self.size = start + (inner - nbytes) // 256 * 256, nbytes


class Stream:
    handle = 0
    is_done = True

    def sync(self) -> None:
        """What was launched is over."""

    def wait(self, other: Any) -> None:
        """The same."""

    def record(self, *_: Any) -> Stream:
        return self


class EmulatedGpu(Gpu):
    compiles_ahead = False

    def __init__(self, ordinal: int = 0, nbytes: int = 8 << 30) -> None:
        self.ordinal, self.arch, self.has_dependent_launches = ordinal, "emulated", False
        self.has_wgmma = False  # tests set it in a session
        limits = {"max_shared_memory_per_block_optin": 227 << 10, "max_shared_memory_per_multiprocessor": 228 << 10}
        properties = SimpleNamespace(multiprocessor_count=4, **limits)
        self.device = SimpleNamespace(name="emulated", arch="80", properties=properties)
        self.lock = RLock()
        self.nbytes = nbytes
        self._kernels: dict[str, Any] = {}
        self._blas: list[Any] = []
        self._handles: dict[str, int] = {}
        self.entries: list[Entry] = []  # the handle of a kernel is its number here, from 1 on

    def session(self) -> EmulatedSession:
        return EmulatedSession(self)

    def use(self) -> None:
        """Every thread may."""

    def current(self) -> Any:
        return nullcontext()

    def kernel(self, entry: Entry) -> Any:
        if entry.name not in self._kernels:
            self._kernels[entry.name] = getattr(ctypes.CDLL(str(library(entry))), f"emulated_{entry.name}")
        return self._kernels[entry.name]

    def load(self, entry: Entry) -> int:
        self.entries.append(entry)
        self._handles[entry.name] = len(self.entries)
        return len(self.entries)

    def run(self, entry: Entry, sizes: tuple[int, ...], threads: int, parameters: bytes) -> None:
        """A kernel at a time: they have static memory."""
        memory = ctypes.create_string_buffer(parameters, len(parameters))
        packing, places = layout(entry.codes)
        assert packing.size == len(parameters)
        pointers = (ctypes.c_void_p * len(places))(*(ctypes.addressof(memory) + place for place in places))
        kernel = self.kernel(entry)
        with _running:
            kernel((ctypes.c_uint * 3)(*sizes), ctypes.c_uint(threads), pointers)

    def compile(self, entries: Sequence[Entry]) -> None:
        compile_all(list(entries))

    def free_bytes(self) -> int:
        return self.nbytes

    def ordinal_of(self, pointer: int) -> int:
        return self.ordinal


class EmulatedSession(Session):
    """Every launch is over when it returns; another session may run kernels between two of them."""

    gpu: EmulatedGpu

    def _open(self) -> None:
        self.stream = Stream()
        self._captured: list[Callable[[], None]] | None = None
        self._failure: BaseException | None = None
        self._function = LaunchKernel(self._reported(self._launched))  # in the place of cuLaunchKernelEx
        self._kernel_address = address_of(self._function)

    @property
    def blas(self) -> Any:
        self._blas = self._blas or HostBlas(self)
        return self._blas

    def _launched(self, config: Any, kernel: int, parameters: Any, extra: Any) -> None:
        entry, given = self.gpu.entries[kernel - 1], config[0]
        sizes, threads = tuple(given.grid), given.block[0]
        assert all(size <= MAX_GRID for size in sizes[1:]), f"{entry.name}: a grid of {sizes}"
        assert threads <= 1024
        values = ctypes.string_at(extra[1], ctypes.c_size_t.from_address(extra[3]).value)
        self.do(lambda: self.gpu.run(entry, sizes, threads, values))

    def _reported(self, function: Callable[..., None]) -> Callable[..., int]:
        """A function for C: what it raises is kept, and reported as a status."""

        def called(*args: Any) -> int:
            try:
                function(*args)
            except BaseException as error:
                self._failure = error
                return 1
            return 0

        return called

    def _launch_error(self, name: str, status: int) -> Exception:
        failure, self._failure = self._failure, None
        assert isinstance(failure, Exception), f"{name} failed with status {status}"
        return failure

    def do(self, work: Callable[[], None]) -> None:
        """Now, or whenever the graph is launched."""
        if self._captured is not None:
            self._captured.append(work)
        else:
            work()

    def allocate(self, nbytes: int) -> Any:
        assert self._captured is None
        if nbytes > self.gpu.nbytes:
            raise OutOfMemory(f"the GPU cannot give {nbytes / 2**20:.1f} MiB")
        return Buffer(max(nbytes, MIN_BYTES))

    def fill(self, pointer: int, byte: int, nbytes: int) -> None:
        ctypes.memset(pointer, byte, nbytes)

    def copy(self, source: int, destination: int, nbytes: int) -> None:
        ctypes.memmove(destination, source, nbytes)

    def pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        return np.empty(nbytes, np.uint8)

    def send(self, data: npt.NDArray[Any], pointer: int) -> None:
        ctypes.memmove(pointer, data.ctypes.data, data.nbytes)

    def fetch(self, pointer: int, out: npt.NDArray[Any]) -> None:
        ctypes.memmove(out.ctypes.data, pointer, out.nbytes)

    def capture(self, launches: Callable[[], None]) -> EmulatedGraph:  # type: ignore[override]
        """A list of launches, which can be run again."""
        self._captured = captured = []
        try:
            launches()
        finally:
            self._captured = None
        return EmulatedGraph(captured)

    def wait_for(self, stream: int) -> None:
        """All is over."""

    def let_wait(self, stream: int | None) -> None:
        """The same."""


class EmulatedGraph:
    def __init__(self, launches: list[Callable[[], None]]) -> None:
        self._launches = launches

    def launch(self) -> None:
        for one in self._launches:
            one()


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("num_attributes", ctypes.c_uint),
    )  # fmt: skip


_P, _I = ctypes.c_void_p, ctypes.c_int
LaunchKernel = ctypes.CFUNCTYPE(_I, ctypes.POINTER(LaunchConfig), _P, _P, ctypes.POINTER(_P))
GemmEx = ctypes.CFUNCTYPE(_I, _P, *[_I] * 5, _P, _P, _I, _I, _P, _I, _I, _P, _P, *[_I] * 4)


def address_of(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


class HostBlas:
    """Products of rows by NumPy, in the place of cuBLAS."""

    def __init__(self, session: EmulatedSession) -> None:
        self._session = session
        self._function = GemmEx(session._reported(self._called))
        self.address, self.handle = address_of(self._function), 1

    def use(self, stream: int) -> None:
        """There is one."""

    def _called(self, handle: int, *args: Any) -> None:
        transposed, normal, n, m, k, one, w, kind, w_stride, x, _, x_stride, beta, y, f32, stride, compute, _ = args
        assert (transposed, normal, f32, compute, w_stride) == (1, 0, 0, 68, k)
        assert ctypes.c_float.from_address(one).value == 1
        dtype, add = {0: "f32", 2: "f16", 14: "bf16"}[kind], ctypes.c_float.from_address(beta).value
        self._session.do(lambda: self._multiply((x, x_stride), w, (y, stride), m, n, k, dtype, add))

    @staticmethod
    def _multiply(
        x: tuple[int, int], w: int, y: tuple[int, int], m: int, n: int, k: int, dtype: str, beta: float
    ) -> None:
        rows, given = _strided(y, m, n, "f32"), _strided(x, m, k, dtype)
        product = given @ _floats(w, n * k, dtype).reshape(n, k).T
        rows[:] = product + (beta * rows if beta else 0)


def _strided(place: tuple[int, int], rows: int, width: int, dtype: str) -> npt.NDArray[np.float32]:
    pointer, stride = place
    values = _floats(pointer, (rows - 1) * stride + width, dtype)
    return np.lib.stride_tricks.as_strided(values, (rows, width), (4 * stride, 4))


def _floats(pointer: int, count: int, dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "f32":
        return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (count,))
    bits = np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint16)), (count,))
    if dtype == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


@cache
def folder() -> Path:
    """Translated headers, and libraries that were compiled with them."""
    own = sha256(b"".join(path.read_bytes() for path in [*sorted(HERE.glob("*.h")), HERE / "translate.py"]))
    found = Path(gettempdir(), f"fewbit-emulated-{os.getuid()}", own.hexdigest()[:8] + digest()[:16])
    (found / "cuda").mkdir(parents=True, exist_ok=True)
    for path in (sources() / "cuda").glob("*.h"):
        _write(found / "cuda" / path.name, translated(path.read_text()).encode())
    return found


def library(entry: Entry) -> Path:
    path = folder() / f"{sha256(entry.source.encode()).hexdigest()[:32]}.so"
    if not path.exists():
        source, made = (path.with_suffix(f".{os.getpid()}.{get_ident()}.{end}") for end in ("cpp", "so"))
        launch = (
            f'extern "C" void emulated_{entry.name}(const unsigned* grid, unsigned threads, void** args) '
            f"{{ emu::launch({entry.name}, grid, threads, args); }}\n"
        )
        source.write_text(f'#include "ptx.h"\n{translated(entry.source)}\n{launch}')
        include = [f"-I{p}" for p in (HERE, folder(), folder() / "cuda", sources())]
        command = [os.environ.get("CXX", "g++"), *OPTIONS, *include, "-o", str(made), str(source)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{entry.name}: {done.stderr[:4000]}")
        os.replace(made, path)
        source.unlink()
    return path


def _write(path: Path, data: bytes) -> None:
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}.{get_ident()}")
        part.write_bytes(data)
        os.replace(part, path)


def compile_all(entries: list[Entry]) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(library, dict.fromkeys(entries)))


def install() -> None:
    """Let `fewbit.ops.cuda` find this in the place of a GPU."""
    device._opened = cache(EmulatedGpu)

"""A session: a stream of a GPU, with the memory, graphs and cuBLAS handle of whoever works on it."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DeviceError, DtypeError, OutOfMemory
from . import dlpack
from .blas import TYPES, WORKSPACE_BYTES, Blas
from .device import Gpu, reported
from .kernels import Entry
from .launch import LaunchList, launch_all
from .memory import DTYPES, LEGACY_STREAM, DeviceArray

MIN_BYTES = 16
MAX_KEPT = 256 << 20  # bytes of inputs of others that wait for the GPU; with more the host waits


class Session:
    """What one user of a GPU has for himself: a model, or the library's products. One thread at a time uses it.

    All that a session does is done on its stream, in order; memory is allocated and freed there, too.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.device, self.ordinal, self.arch = gpu, gpu.device, gpu.ordinal, gpu.arch
        self.has_dependent_launches, self.has_wgmma = gpu.has_dependent_launches, gpu.has_wgmma
        self.lock = RLock()
        self._open()
        self._scratch: dict[str, Any] = {}
        self.generation = 0  # changes when scratch memory moves
        self._kept: deque[tuple[Mark, Any, int]] = deque()
        self._blas: Blas | None = None
        self._is_capturing = False

    def _open(self) -> None:
        gpu = self.gpu
        gpu.use()
        self._core, self._driver, self._checked = gpu._core, gpu._driver, gpu._checked
        self.stream = self.device.create_stream()  # non-blocking: the legacy stream does not wait for it
        self._kernel_address = gpu.kernel_address

    @property
    def takes_panels(self) -> bool:
        """Whether the GPU multiplies panels of 33 to 256 tokens."""
        return self.gpu.takes_panels

    def use(self) -> None:
        """Let the calling thread use the device."""
        self.gpu.use()

    def compile(self, entries: Sequence[Entry]) -> None:
        """Kernels that the cache folder does not have, on all cores."""
        self.gpu.compile(entries)

    def launch(
        self,
        entry: Entry,
        grid: int | tuple[int, ...],
        threads: int,
        *args: Any,
        stream: Any = None,
        dependent: bool = False,
    ) -> None:
        """Launch one kernel, as `add` describes it."""
        launches = LaunchList()
        self.add(launches, entry, grid, threads, args, dependent)
        self.launch_list(launches, stream)

    def add(
        self, launches: LaunchList, entry: Entry, grid: int | tuple[int, ...], threads: int, args: Sequence[Any],
        dependent: bool,
    ) -> None:  # fmt: skip
        """Add a kernel to a list.

        Args:
            launches: The list.
            entry: The kernel, loaded if it was not.
            grid: Blocks, in up to three dimensions.
            threads: Threads of a block.
            args: Pointers and numbers, as the kernel has them.
            dependent: It may begin before the kernel in front of it ends; that must be a kernel.
        """
        is_dependent = dependent and self.has_dependent_launches
        launches.add(entry, self.gpu.handle(entry), grid, threads, is_dependent, args)

    def add_product(
        self, launches: LaunchList, x: int, w: int, y: int, m: int, n: int, k: int, dtype: str, *, beta: float,
        x_stride: int, stride: int,
    ) -> None:  # fmt: skip
        """Add y (m, n) = x (m, k) w (n, k)^T + beta y to a list: pointers to rows of `dtype`, y to f32; sums in f32."""
        launches.add_product(x, w, y, m, n, k, TYPES[dtype], x_stride, stride, beta)

    def launch_list(self, launches: LaunchList, stream: Any = None, begin: int = 0, end: int | None = None) -> None:
        """Launch a list, or those from `begin` to before `end`, on the session's stream or another one."""
        where = int((stream or self.stream).handle)
        gemm, handle = 0, 0
        if launches.has_products:
            self.blas.use(where)
            gemm, handle = self.blas.address, self.blas.handle
        last = len(launches) if end is None else end
        failed = launch_all(launches, (self._kernel_address, gemm, handle), where, begin, last)
        if failed:
            raise self._launch_error(*failed)

    def _launch_error(self, name: str, status: int) -> Exception:
        return self.gpu.launch_error(name, status)

    @property
    def blas(self) -> Blas:
        """A cuBLAS handle, which nobody else uses until this session is gone."""
        if self._blas is None:
            self._blas = self.gpu.take_blas(self.scratch("blas", WORKSPACE_BYTES))
            weakref.finalize(self, _return_blas, self.gpu, self._blas, self.stream).atexit = False
        return self._blas

    def allocate(self, nbytes: int) -> Any:
        if self._is_capturing:
            raise DeviceError("memory of a GPU cannot be allocated while a graph is captured")
        self.use()
        try:
            return self.device.allocate(max(nbytes, MIN_BYTES), stream=self.stream)
        except Exception as error:
            free = self.free_bytes()
            raise OutOfMemory(
                f"the GPU cannot give {nbytes / 2**20:.1f} MiB, {free / 2**20:.1f} MiB are free ({error}); "
                "release what is not needed, or take a format with fewer bits"
            ) from None

    def free_bytes(self) -> int:
        return self.gpu.free_bytes()

    def scratch(self, name: str, nbytes: int, zeros: bool = False) -> int:
        """Memory that is kept and grows; its content is that of whoever used it last."""
        held = self._scratch.get(name)
        if held is None or held.size < nbytes:
            held = self._scratch[name] = self.allocate(nbytes + nbytes // 4)
            self.generation += 1
            if zeros:
                self.fill(int(held.handle), 0, held.size)
                self.sync()  # launches on another stream may use it
        return int(held.handle)

    def fill(self, pointer: int, byte: int, nbytes: int) -> None:
        self.use()
        if nbytes:
            self._checked(self._driver.cuMemsetD8Async(pointer, byte, nbytes, self.stream.handle))

    def upload(self, data: npt.NDArray[Any], pointer: int) -> None:
        data = np.ascontiguousarray(data)
        self.send(data, pointer)
        self.sync()

    def download(self, pointer: int, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        self.fetch(pointer, out)
        self.sync()
        return out

    def pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Host memory that copies can use while the host goes on; it is freed behind the last of them."""
        self.use()
        size = max(nbytes, MIN_BYTES)
        pointer = int(self._checked(self._driver.cuMemHostAlloc(size, 0)))
        memory = (ctypes.c_uint8 * size).from_address(pointer)
        weakref.finalize(memory, _free_pinned, self.gpu, self.stream, pointer).atexit = False
        return np.ctypeslib.as_array(memory)[:nbytes]

    def send(self, data: npt.NDArray[Any], pointer: int) -> None:
        """Copy pinned memory to the device, on the stream: the host does not wait."""
        self.use()
        if data.nbytes:
            self._checked(self._driver.cuMemcpyHtoDAsync(pointer, data.ctypes.data, data.nbytes, self.stream.handle))

    def fetch(self, pointer: int, out: npt.NDArray[Any]) -> None:
        """The other way."""
        self.use()
        if out.nbytes:
            self._checked(self._driver.cuMemcpyDtoHAsync(out.ctypes.data, pointer, out.nbytes, self.stream.handle))

    def copy(self, source: int, destination: int, nbytes: int) -> None:
        """From one place of the device's memory to another, on the stream."""
        self.use()
        if nbytes:
            self._checked(self._driver.cuMemcpyDtoDAsync(destination, source, nbytes, self.stream.handle))

    def mark(self) -> Mark:
        """A place in the stream: its `sync` waits for all that was given to the stream before."""
        with reported():
            return Mark(self.stream.record())

    def sync(self) -> None:
        """Wait for all that was given to the stream."""
        with reported():
            self.stream.sync()

    def capture(self, launches: Callable[[], None]) -> CapturedGraph | None:
        """What is launched there, as one graph. None: something that another thread did has spoilt it; try again.

        The mode is relaxed, since Python may collect garbage meanwhile: memory of other sessions, freed by this thread.
        """
        driver, handle = self._driver, self.stream.handle
        spoilt = driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        with self.gpu.lock:
            mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            self._checked(driver.cuStreamBeginCapture(handle, mode))
            failure: BaseException | None = None
            self._is_capturing = True
            try:
                launches()
            except BaseException as error:
                failure = error
            finally:
                self._is_capturing = False
            status, graph = driver.cuStreamEndCapture(handle)
            try:
                if failure is not None and not (status == spoilt and isinstance(failure, DeviceError)):
                    raise failure
                if status == spoilt:
                    return None
                self._checked((status,))
                return CapturedGraph(self, self._checked(driver.cuGraphInstantiate(graph, 0)))
            finally:
                if not int(status):
                    driver.cuGraphDestroy(graph)

    def empty(self, shape: Sequence[int], dtype: str = "f32") -> DeviceArray:
        shape = tuple(shape)
        return DeviceArray(self, self.allocate(prod(shape) * dlpack.ITEM_BYTES[dtype]), shape, dtype)

    def array(self, values: npt.NDArray[Any], dtype: str | None = None) -> DeviceArray:
        """A copy of a NumPy array; with dtype "bf16", of uint16 with its bits."""
        name = dtype or next((name for name, kind in DTYPES.items() if kind == values.dtype), None)
        if name is None:
            raise DtypeError(f"arrays on a GPU are float32, float16, uint8 or int32, not {values.dtype}")
        out = self.empty(values.shape, name)
        self.upload(values, out.pointer)
        return out

    # Beside the streams of others

    def keep(self, owner: Any, nbytes: int) -> None:
        """Hold on to memory of others until the GPU has read it, as what was launched so far does."""
        kept = self._kept
        kept.append((self.mark(), owner, nbytes))
        while kept and (sum(size for *_, size in kept) > MAX_KEPT or kept[0][0].is_done):
            kept.popleft()[0].sync()

    def ordinal_of(self, pointer: int) -> int:
        """The device whose memory a pointer of others is in; that of nothing is here."""
        return self.gpu.ordinal_of(pointer) if pointer else self.ordinal

    def wait_for(self, stream: int) -> None:
        """Make our stream wait for what another has been given so far."""
        self.use()
        self.stream.wait(self._core.Stream.from_handle(stream))

    def let_wait(self, stream: int | None) -> None:
        """Make another stream wait for ours."""
        self.use()
        if stream != -1:
            self._core.Stream.from_handle(LEGACY_STREAM if stream in (None, 0) else stream).wait(self.stream)


class CapturedGraph:
    """A captured graph, until nobody has it any more."""

    __slots__ = ("__weakref__", "_checked", "_graph", "_launch", "_stream")

    def __init__(self, session: Session, graph: Any) -> None:
        driver = session._driver
        self._checked, self._launch, self._graph, self._stream = (
            session._checked, driver.cuGraphLaunch, graph, session.stream.handle,
        )  # fmt: skip
        weakref.finalize(self, _destroy_graph, session.gpu, graph).atexit = False

    def launch(self) -> None:
        self._checked(self._launch(self._graph, self._stream))


class Mark:
    """A place in a stream."""

    __slots__ = ("_event",)

    def __init__(self, event: Any) -> None:
        self._event = event

    @property
    def is_done(self) -> bool:
        return bool(self._event.is_done)

    def sync(self) -> None:
        """Wait for all that was given to the stream before."""
        with reported():
            self._event.sync()


def _destroy_graph(gpu: Gpu, graph: Any) -> None:
    with suppress(Exception), gpu.current():  # it may be the end of the process
        gpu._driver.cuGraphExecDestroy(graph)  # the driver waits while it runs


def _free_pinned(gpu: Gpu, stream: Any, pointer: int) -> None:
    with suppress(Exception), gpu.current():
        stream.sync()
        gpu._driver.cuMemFreeHost(pointer)


def _return_blas(gpu: Gpu, blas: Blas, stream: Any) -> None:
    with suppress(Exception), gpu.current():
        stream.sync()
        gpu.return_blas(blas)

"""A GPU: its memory, its stream, its kernels; and arrays in that memory."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ...errors import DeviceError, DtypeError, FewbitError, OutOfMemory
from . import dlpack
from .cards import check
from .compile import compile_all, cubin, package
from .kernels import Entry
from .launch import Launches

DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "u8": np.dtype(np.uint8),
    "i32": np.dtype(np.int32),
}
MIN_BYTES = 16


class Gpu:
    """One device, with a stream of its own and the kernels that were loaded on it."""

    def __init__(self, ordinal: int) -> None:
        check(ordinal)
        core = package("cuda.core")
        self._core, self._driver = core, package("cuda.bindings.driver")
        self.device = core.Device(ordinal)
        self.device.set_current()
        self._context = self._checked(self._driver.cuCtxGetCurrent())
        self.ordinal = ordinal
        self.arch = f"sm_{self.device.arch}"
        self.stream = self.device.create_stream()
        self.has_dependent_launches = int(self.device.arch.rstrip("abcdef")) >= 90
        self._own, self._launches = int(self.stream.handle), Launches(self._driver)
        self._kernels: dict[str, Any] = {}
        self._handles: dict[str, int] = {}
        self._scratch: dict[str, Any] = {}

    def use(self) -> None:
        """Let the calling thread use the device: each has its own choice, and begins with none."""
        self._checked(self._driver.cuCtxSetCurrent(self._context))

    def compile(self, entries: Sequence[Entry]) -> None:
        """Kernels that the cache folder does not have, on all cores."""
        compile_all([entry.source for entry in entries], self.arch)

    def _load(self, entry: Entry) -> int:
        """A kernel, compiled where the cache folder does not have it."""
        self.use()
        code = self._core.ObjectCode.from_cubin(cubin(entry.source, self.arch))
        kernel = self._kernels[entry.name] = code.get_kernel(entry.name)
        if entry.shared:
            most = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._checked(self._driver.cuKernelSetAttribute(most, entry.shared, kernel.handle, self.ordinal))
        self._handles[entry.name] = int(kernel.handle)
        return self._handles[entry.name]

    def launch(
        self,
        entry: Entry,
        grid: int | tuple[int, ...],
        threads: int,
        *args: Any,
        stream: Any = None,
        dependent: bool = False,
    ) -> None:
        """Integers are pointers, NumPy numbers are numbers. `dependent`: it may begin before the kernel before ends.

        What comes before must then be a kernel.
        """
        handle = self._handles.get(entry.name) or self._load(entry)
        where = self._own if stream is None or stream is self.stream else int(stream.handle)
        is_dependent = dependent and self.has_dependent_launches
        self._checked(self._launches.launch(handle, grid, threads, entry.shared, where, is_dependent, args))

    def allocate(self, nbytes: int) -> Any:
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
        self.use()
        return int(self._checked(self._driver.cuMemGetInfo())[0])

    def scratch(self, name: str, nbytes: int, zeros: bool = False) -> int:
        """Memory that is kept and grows; its content is that of whoever used it last."""
        held = self._scratch.get(name)
        if held is None or held.size < nbytes:
            held = self._scratch[name] = self.allocate(nbytes + nbytes // 4)
            if zeros:
                self.fill(int(held.handle), 0, held.size)
                self.sync()  # others may use it on their streams
        return int(held.handle)

    def fill(self, pointer: int, byte: int, nbytes: int) -> None:
        self.use()
        if nbytes:
            self._checked(self._driver.cuMemsetD8Async(pointer, byte, nbytes, self.stream.handle))

    def upload(self, data: npt.NDArray[Any], pointer: int) -> None:
        data = np.ascontiguousarray(data)
        self.use()
        if data.nbytes:
            self._checked(self._driver.cuMemcpyHtoDAsync(pointer, data.ctypes.data, data.nbytes, self.stream.handle))
            self.sync()

    def download(self, pointer: int, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        self.use()
        self.sync()
        if out.nbytes:
            self._checked(self._driver.cuMemcpyDtoH(out.ctypes.data, pointer, out.nbytes))
        return out

    def pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Host memory that copies can use while the host goes on."""
        self.use()
        size = max(nbytes, MIN_BYTES)
        pointer = int(self._checked(self._driver.cuMemHostAlloc(size, 0)))
        memory = (ctypes.c_uint8 * size).from_address(pointer)
        weakref.finalize(memory, self._driver.cuMemFreeHost, pointer).atexit = False
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

    def mark(self) -> Any:
        """A place in the stream: its `sync` waits for all that was given to the stream before."""
        with reported():
            return Mark(self.stream.record())

    def sync(self) -> None:
        """Wait for all that was given to the stream."""
        with reported():
            self.stream.sync()

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        """What is launched there, as one graph; the function that comes back launches it."""
        driver, handle = self._driver, self.stream.handle
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._checked(driver.cuStreamBeginCapture(handle, mode))
        try:
            launches()
        except BaseException:
            driver.cuStreamEndCapture(handle)
            raise
        graph = self._checked(driver.cuStreamEndCapture(handle))
        made = self._checked(driver.cuGraphInstantiate(graph, 0))
        self._checked(driver.cuGraphDestroy(graph))
        return lambda: self._checked(driver.cuGraphLaunch(made, handle))

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

    def wait_for(self, stream: int) -> None:
        """Make our stream wait for what another has been given so far."""
        self.stream.wait(self._core.Stream.from_handle(stream))

    def let_wait(self, stream: int | None) -> None:
        """Make another stream wait for ours."""
        if stream != -1:
            self._core.Stream.from_handle(1 if stream in (None, 0) else stream).wait(self.stream)

    def _checked(self, result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise cuda_error(self._told(result[0]))
        return result[1:] if len(result) > 2 else result[1] if len(result) == 2 else None

    def _told(self, code: Any) -> str:
        """A result of the driver in words."""
        failed, text = self._driver.cuGetErrorString(code)
        name = getattr(code, "name", str(code))
        return name if int(failed) or not text else f"{name}, {text.decode()}"


class Mark:
    """A place in a stream."""

    __slots__ = ("_event",)

    def __init__(self, event: Any) -> None:
        self._event = event

    def sync(self) -> None:
        """Wait for all that was given to the stream before."""
        with reported():
            self._event.sync()


@contextmanager
def reported() -> Iterator[None]:
    """Errors of cuda-core become ours."""
    try:
        yield
    except FewbitError:
        raise
    except Exception as error:  # cuda-core raises its own kinds
        raise cuda_error(str(error)) from error


def cuda_error(what: str) -> FewbitError:
    """What a driver says, in one sentence."""
    said = " ".join(what.split()).rstrip(".")
    if "OUT_OF_MEMORY" in said:
        return OutOfMemory(f"the GPU has no memory left ({said}); take a smaller cache_bytes or max_batched_tokens")
    return DeviceError(f"the GPU reports an error: {said}")


def gpu(ordinal: int = 0) -> Gpu:
    """The device of a number, opened once: all that is done with it is done on one stream."""
    return _opened(ordinal)


_opened = cache(Gpu)


class DeviceArray:
    """An array in a GPU's memory. Others take it through DLPack or `__cuda_array_interface__`, without a copy."""

    __slots__ = ("buffer", "device", "dtype", "shape")

    def __init__(self, device: Gpu, buffer: Any, shape: tuple[int, ...], dtype: str) -> None:
        self.device, self.buffer, self.shape, self.dtype = device, buffer, shape, dtype

    @property
    def pointer(self) -> int:
        return int(self.buffer.handle)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * dlpack.ITEM_BYTES[self.dtype]

    def numpy(self) -> npt.NDArray[Any]:
        """A copy in host memory; bf16 becomes float32."""
        kind: np.dtype[Any] = np.dtype(np.uint16) if self.dtype == "bf16" else DTYPES[self.dtype]
        out = self.device.download(self.pointer, np.empty(self.shape, kind))
        return (out.astype(np.uint32) << 16).view(np.float32) if self.dtype == "bf16" else out

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        values = self.numpy()
        return values if dtype is None else values.astype(dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device.ordinal

    def __dlpack__(self, *, stream: int | None = None, **_others: Any) -> Any:
        self.device.let_wait(stream)
        view = dlpack.View(self.pointer, self.shape, self.dtype, dlpack.CUDA, self.device.ordinal, self.buffer)
        return dlpack.write(view)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype not in dlpack.TYPESTR:
            raise AttributeError("bfloat16 has no name there; DLPack has")
        self.device.sync()  # not all who take it wait for a stream
        return {
            "shape": self.shape,
            "typestr": dlpack.TYPESTR[self.dtype],
            "data": (self.pointer, False),
            "strides": None,
            "version": 3,
        }

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}, {'x'.join(map(str, self.shape))}, cuda:{self.device.ordinal})"

    def __reduce__(self) -> NoReturn:
        raise DtypeError("a DeviceArray cannot be pickled or copied, its values are on a GPU; pickle array.numpy()")

"""A GPU as a process shares it: its context, the kernels that were loaded on it, its cuBLAS handles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import DeviceError, FewbitError, OutOfMemory
from .blas import Blas
from .cards import check
from .compile import compile_ahead, compile_all, cubin, package
from .kernels import Entry
from .launch import GEMM_NAME

if TYPE_CHECKING:
    from .session import Session


class Gpu:
    """One device. Whoever works on it does so in a session of his own, with a stream and scratch memory.

    `lock` is held while a graph is captured, and while something is done that the driver may refuse meanwhile: loading
    kernels, making a cuBLAS handle.
    """

    compiles_ahead: ClassVar[bool] = True  # whether kernels are compiled while others are sent

    def __init__(self, ordinal: int) -> None:
        check(ordinal)
        core = package("cuda.core")
        self._core, self._driver = core, package("cuda.bindings.driver")
        self.device = core.Device(ordinal)
        self.device.set_current()
        self._context = self._checked(self._driver.cuCtxGetCurrent())
        self.ordinal = ordinal
        self.arch = f"sm_{self.device.arch}"
        self._find_features()
        self.lock = RLock()
        self._kernels: dict[str, Any] = {}
        self._handles: dict[str, int] = {}
        self._blas: list[Blas] = []  # that no session uses

    def _find_features(self) -> None:
        capability = int(self.device.arch.rstrip("abcdef"))
        self.has_dependent_launches = capability >= 90
        self.has_wgmma = capability == 90  # products of warpgroups, which only Hopper has

    @cached_property
    def takes_panels(self) -> bool:
        """Whether products of some tokens by panels are right on this GPU: they are tried once."""
        from .panel_check import try_panels  # which imports this module

        return try_panels(self.session())

    def session(self) -> Session:
        """A new one, for a model."""
        from .session import Session  # which imports this module

        return Session(self)

    @cached_property
    def shared(self) -> Session:
        """The session of `fb.linear` and its like. What several threads do with it waits for its lock."""
        return self.session()

    def use(self) -> None:
        """Let the calling thread use the device: each has its own choice, and begins with none."""
        self._checked(self._driver.cuCtxSetCurrent(self._context))

    @contextmanager
    def current(self) -> Iterator[None]:
        """The same for a while, in a thread that may be of others: it has its own device back afterwards."""
        self._checked(self._driver.cuCtxPushCurrent(self._context))
        try:
            yield
        finally:
            self._driver.cuCtxPopCurrent()

    def compile(self, entries: Sequence[Entry]) -> None:
        """Kernels that the cache folder does not have, on all cores."""
        compile_all([entry.source for entry in entries], self.arch)

    def compile_ahead(self, entries: Sequence[Entry]) -> None:
        """Begin to do so, in this order; who needs one of them waits for it."""
        compile_ahead([entry.source for entry in entries], self.arch)

    @cached_property
    def kernel_address(self) -> int:
        """Where the driver's function is that launches kernels."""
        version = 12000  # of CUDA, whose function it is
        return int(self._checked(self._driver.cuGetProcAddress(b"cuLaunchKernelEx", version, 0))[0])

    def handle(self, entry: Entry) -> int:
        """A kernel's handle for launches."""
        return self._handles.get(entry.name) or self.load(entry)

    def load(self, entry: Entry) -> int:
        """A kernel, compiled where the cache folder does not have it."""
        self.use()
        code = cubin(entry.source, self.arch)  # threads compile at the same time
        with self.lock:
            if entry.name not in self._handles:
                kernel = self._core.ObjectCode.from_cubin(code).get_kernel(entry.name)
                if entry.shared:
                    most = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                    self._checked(self._driver.cuKernelSetAttribute(most, entry.shared, kernel.handle, self.ordinal))
                status, function = self._driver.cuKernelGetFunction(kernel.handle)
                if not int(status):
                    self._driver.cuFuncLoad(function)  # here, not at the first launch: the lock is held
                self._kernels[entry.name] = kernel
                self._handles[entry.name] = int(kernel.handle)
            return self._handles[entry.name]

    def take_blas(self, workspace: int) -> Blas:
        """A cuBLAS handle for one session. Those of closed sessions come first: destroying one would wait for the whole
        device."""
        self.use()
        with self.lock:
            blas = self._blas.pop() if self._blas else Blas()
        blas.begin(workspace)
        return blas

    def return_blas(self, blas: Blas) -> None:
        self._blas.append(blas)

    def free_bytes(self) -> int:
        self.use()
        return int(self._checked(self._driver.cuMemGetInfo())[0])

    def ordinal_of(self, pointer: int) -> int:
        """The device whose memory a pointer is in."""
        self.use()
        which = self._driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(self._checked(self._driver.cuPointerGetAttribute(which, pointer)))

    def launch_error(self, name: str, status: int) -> FewbitError:
        """Why a kernel or product could not be launched."""
        if name == GEMM_NAME:
            return cuda_error(f"cuBLAS ended with status {status}")
        return cuda_error(f"{name}: {self._described(self._driver.CUresult(status))}")

    def _checked(self, result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise cuda_error(self._described(result[0]))
        return result[1:] if len(result) > 2 else result[1] if len(result) == 2 else None

    def _described(self, code: Any) -> str:
        """A result of the driver in words."""
        failed, text = self._driver.cuGetErrorString(code)
        name = getattr(code, "name", str(code))
        return name if int(failed) or not text else f"{name}, {text.decode()}"


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
    text = " ".join(what.split()).rstrip(".")
    if "OUT_OF_MEMORY" in text:
        return OutOfMemory(f"the GPU has no memory left ({text}); take a smaller cache_bytes or max_batched_tokens")
    return DeviceError(f"the GPU reports an error: {text}")


def gpu(ordinal: int = 0) -> Gpu:
    """The device of a number, opened once."""
    with _opening:
        return _opened(ordinal)


def shared_session(ordinal: int = 0) -> Session:
    """The session of a device that `fb.linear` and its like use."""
    device = gpu(ordinal)
    with _opening:
        return device.shared


_opening = Lock()
_opened: Callable[[int], Gpu] = cache(Gpu)

"""Launches through the driver, with little to do in Python: a prompt takes hundreds of them."""

from __future__ import annotations

import ctypes
import threading
from functools import cache, lru_cache
from struct import Struct
from typing import Any

import numpy as np

CODES = {int: "Q", np.int32: "i", np.uint32: "I", np.int64: "q", np.float32: "f"}
MAX_BYTES = 4096  # of a kernel's parameters


@cache
def layout(types: tuple[type, ...]) -> Struct:
    """Of parameters as a kernel has them: integers are pointers, NumPy numbers are numbers, each at its alignment.

    >>> layout((int, np.int32, np.float32, int)).size, layout((np.int32, int)).size
    (24, 16)
    """
    return Struct("@" + "".join(CODES[kind] for kind in types))


class Parameters(threading.local):
    """Memory of a thread for the parameters of one launch, and what points the driver to it."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(MAX_BYTES)
        self.size = ctypes.c_size_t()
        pointer, size, end = 1, 2, 0  # CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END
        given = (pointer, ctypes.addressof(self.memory), size, ctypes.addressof(self.size), end)
        self.extra = (ctypes.c_void_p * len(given))(*given)
        self.address = ctypes.addressof(self.extra)

    def pack(self, args: tuple[Any, ...]) -> int:
        """The driver copies them when it is called."""
        found = layout(tuple(map(type, args)))
        found.pack_into(self.memory, 0, *args)
        self.size.value = found.size
        return self.address


class Launches:
    """What launches kernels of a driver."""

    def __init__(self, driver: Any) -> None:
        self._driver, self._parameters = driver, Parameters()
        self._config = lru_cache(4096)(self._make_config)

    def launch(
        self, kernel: int, grid: int | tuple[int, ...], threads: int, shared: int, stream: int, dependent: bool,
        args: tuple[Any, ...],
    ) -> Any:  # fmt: skip
        """The driver's answer."""
        config = self._config(grid, threads, shared, stream, dependent)
        return self._driver.cuLaunchKernelEx(config, kernel, 0, self._parameters.pack(args))

    def _make_config(self, grid: Any, threads: int, shared: int, stream: int, dependent: bool) -> Any:
        driver, config = self._driver, self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*(grid if isinstance(grid, tuple) else (grid,)), 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes, config.hStream = shared, driver.CUstream(stream)
        if dependent:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        return config

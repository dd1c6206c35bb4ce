"""Launches: what the driver is told, by a driver that only listens."""

from __future__ import annotations

import ctypes
import struct
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fewbit.ops.cuda.launch import MAX_BYTES, Launches, layout


class Driver:
    """Keeps configurations and the bytes of parameters."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, int, bytes]] = []
        ids = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=6)
        self.CUlaunchAttributeID, self.CUstream = ids, int
        self.CUlaunchConfig = SimpleNamespace
        self.CUlaunchAttribute = lambda: SimpleNamespace(value=SimpleNamespace())

    def cuLaunchKernelEx(self, config: Any, kernel: int, params: int, extra: int) -> tuple[int]:  # noqa: N802
        assert params == 0
        words = (ctypes.c_size_t * 5).from_address(extra)
        assert (words[0], words[2], words[4]) == (1, 2, 0)
        size = ctypes.c_size_t.from_address(words[3]).value
        self.launched.append((config, kernel, ctypes.string_at(words[1], size)))
        return (0,)


def test_parameters_lie_as_in_a_kernel() -> None:
    driver = Driver()
    launches = Launches(driver)
    args = (1 << 40, np.int32(-3), 7, np.float32(0.5), np.uint32(9), np.int64(-1))
    assert launches.launch(77, (3, 4), 128, 1024, 5, True, args) == (0,)
    (config, kernel, given), = driver.launched  # fmt: skip
    assert kernel == 77
    assert given == struct.pack("<Qi4xQfIq", *(arg if isinstance(arg, int) else arg.item() for arg in args))
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (3, 4, 1)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (128, 1, 1)
    assert (config.sharedMemBytes, config.hStream, config.numAttrs) == (1024, 5, 1)
    assert config.attrs[0].value.programmaticStreamSerializationAllowed == 1
    launches.launch(77, 6, 32, 0, 5, False, ())
    assert not hasattr(driver.launched[1][0], "attrs")
    assert (driver.launched[1][0].gridDimX, driver.launched[1][2]) == (6, b"")


def test_threads_have_parameters_of_their_own() -> None:
    driver = Driver()
    launches = Launches(driver)

    def many(value: int) -> None:
        for _ in range(200):
            launches.launch(value, 1, 32, 0, 0, False, (value, np.int32(value)))

    threads = [Thread(target=many, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(driver.launched) == 800
    assert all(given[:8] == struct.pack("<Q", kernel) for _, kernel, given in driver.launched)


def test_what_is_no_parameter_is_refused() -> None:
    with pytest.raises(KeyError):
        layout((str,))
    with pytest.raises(struct.error):
        Launches(Driver()).launch(1, 1, 32, 0, 0, False, (1,) * (MAX_BYTES // 8 + 1))

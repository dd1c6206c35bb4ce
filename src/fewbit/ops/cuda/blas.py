"""cuBLAS, for prompts: the library that cuda-pathfinder finds, whose products are entries of launch lists."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_void_p
from typing import Any

from ...errors import DeviceError, ExtraError
from .compile import INSTALL, package

TYPES = {"f32": 0, "f16": 2, "bf16": 14}
WORKSPACE_BYTES = 32 << 20


class Blas:
    """A handle, for products in launch lists. The workspace is given, so that nothing is allocated during a capture."""

    def __init__(self) -> None:
        finder = package("cuda.pathfinder")
        try:
            self._library: Any = ctypes.CDLL(finder.load_nvidia_dynamic_lib("cublas").abs_path)
        except Exception as error:
            raise ExtraError(f"prompts on a GPU need cuBLAS ({error}); install it: {INSTALL}") from None
        self._handle = c_void_p()
        self._check(self._library.cublasCreate_v2(byref(self._handle)))
        self.address = int(ctypes.cast(self._library.cublasGemmEx, c_void_p).value or 0)
        self.handle = int(self._handle.value or 0)
        self._workspace, self._stream = 0, -1

    def begin(self, workspace: int) -> None:
        """Take the workspace of the session that it is for from now on."""
        self._workspace, self._stream = workspace, -1

    def _check(self, status: int) -> None:
        if status:
            raise DeviceError(f"the GPU reports an error: cuBLAS ended with status {status}")

    def use(self, stream: int) -> None:
        """Multiply on a stream from now on. The handle forgets its workspace when it gets another one."""
        if stream == self._stream:
            return
        self._check(self._library.cublasSetStream_v2(self._handle, c_void_p(stream)))
        workspace = c_void_p(self._workspace), c_size_t(WORKSPACE_BYTES)
        self._check(self._library.cublasSetWorkspace_v2(self._handle, *workspace))
        self._stream = stream

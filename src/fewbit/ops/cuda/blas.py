"""cuBLAS, for prompts: the library that cuda-pathfinder finds, called through ctypes."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_size_t, c_void_p
from typing import Any

from ...errors import DeviceError, ExtraError
from .compile import INSTALL, package

TYPES = {"f32": 0, "f16": 2, "bf16": 14}
_COMPUTE_F32, _NORMAL, _TRANSPOSED, _DEFAULT = 68, 0, 1, -1
WORKSPACE_BYTES = 32 << 20


class Blas:
    """A handle. The workspace is given, so that nothing is allocated while a graph is captured."""

    def __init__(self, workspace: int) -> None:
        finder = package("cuda.pathfinder")
        try:
            self._library: Any = ctypes.CDLL(finder.load_nvidia_dynamic_lib("cublas").abs_path)
        except Exception as error:
            raise ExtraError(f"prompts on a GPU need cuBLAS ({error}); install it: {INSTALL}") from None
        self._handle = c_void_p()
        self._check(self._library.cublasCreate_v2(byref(self._handle)))
        self._workspace = workspace

    def _check(self, status: int) -> None:
        if status:
            raise DeviceError(f"the GPU reports an error: cuBLAS ended with status {status}")

    def linear(
        self, stream: int, x: int, w: int, y: int, m: int, n: int, k: int, dtype: str, beta: float = 0.0,
        stride: int | None = None,
    ) -> None:  # fmt: skip
        """y (m, n) in f32 = x (m, k) w (n, k)^T, pointers to contiguous rows of f16 or bf16; sums in f32.

        Rows of y are `stride` apart (None: n); the product is added to `beta` times what they hold.
        """
        self._check(self._library.cublasSetStream_v2(self._handle, c_void_p(stream)))
        workspace = c_void_p(self._workspace), c_size_t(WORKSPACE_BYTES)
        self._check(self._library.cublasSetWorkspace_v2(self._handle, *workspace))
        one, old, kind = c_float(1), c_float(beta), c_int(TYPES[dtype])
        self._check(
            self._library.cublasGemmEx(
                self._handle, c_int(_TRANSPOSED), c_int(_NORMAL), c_int(n), c_int(m), c_int(k), byref(one),
                c_void_p(w), kind, c_int(k), c_void_p(x), kind, c_int(k), byref(old),
                c_void_p(y), c_int(TYPES["f32"]), c_int(stride or n), c_int(_COMPUTE_F32), c_int(_DEFAULT),
            )
        )  # fmt: skip

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

    def __init__(self) -> None:
        finder = package("cuda.pathfinder")
        try:
            self._library: Any = ctypes.CDLL(finder.load_nvidia_dynamic_lib("cublas").abs_path)
        except Exception as error:
            raise ExtraError(f"prompts on a GPU need cuBLAS ({error}); install it: {INSTALL}") from None
        self._handle = c_void_p()
        self._check(self._library.cublasCreate_v2(byref(self._handle)))
        self._workspace, self._stream = 0, -1
        matrix = (c_void_p, c_int, c_int)  # with its type and the distance of its rows
        scaled = (c_void_p, *matrix)
        self._library.cublasGemmEx.argtypes = [c_void_p, *(c_int,) * 5, *scaled, *matrix, *scaled, c_int, c_int]
        self._one, self._zero = c_float(1), c_float(0)

    def begin(self, workspace: int) -> None:
        """Take the workspace of the session that it is for from now on."""
        self._workspace, self._stream = workspace, -1

    def _check(self, status: int) -> None:
        if status:
            raise DeviceError(f"the GPU reports an error: cuBLAS ended with status {status}")

    def linear(
        self, stream: int, x: int, w: int, y: int, m: int, n: int, k: int, dtype: str, beta: float = 0.0,
        stride: int | None = None, x_stride: int | None = None,
    ) -> None:  # fmt: skip
        """y (m, n) in f32 = x (m, k) w (n, k)^T, pointers to contiguous rows of f32, f16 or bf16; sums in f32.

        Rows of y are `stride` apart (None: n), those of x `x_stride` (None: k). The product is added to `beta` times
        what y holds.
        """
        self._use(stream)
        kind, old = TYPES[dtype], self._zero if beta == 0 else c_float(beta)
        self._check(
            self._library.cublasGemmEx(
                self._handle, _TRANSPOSED, _NORMAL, n, m, k, byref(self._one), w, kind, k, x, kind, x_stride or k,
                byref(old), y, TYPES["f32"], stride or n, _COMPUTE_F32, _DEFAULT,
            )
        )  # fmt: skip

    def _use(self, stream: int) -> None:
        """It forgets the workspace when it is given a stream."""
        if stream == self._stream:
            return
        self._check(self._library.cublasSetStream_v2(self._handle, c_void_p(stream)))
        workspace = c_void_p(self._workspace), c_size_t(WORKSPACE_BYTES)
        self._check(self._library.cublasSetWorkspace_v2(self._handle, *workspace))
        self._stream = stream

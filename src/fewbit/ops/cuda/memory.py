"""Arrays in a GPU's memory, and what keeps that memory while others have it."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from ...errors import DtypeError
from . import dlpack

if TYPE_CHECKING:
    from .session import Session

DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "u8": np.dtype(np.uint8),
    "i32": np.dtype(np.int32),
}
LEGACY_STREAM, PER_THREAD_STREAM = 1, 2  # the first waits for all streams that are not non-blocking


class Lent:
    """Memory that somebody else reads on a stream of his. When he drops it, ours waits for that stream, then frees it.

    Of a consumer that names no stream it is the legacy default stream.
    """

    __slots__ = ("_session", "_stream", "buffer")

    def __init__(self, session: Session, buffer: Any, stream: int | None) -> None:
        self._session, self.buffer, self._stream = session, buffer, stream or LEGACY_STREAM
        if self._stream <= PER_THREAD_STREAM:  # which is another one in another thread
            self._stream = LEGACY_STREAM

    @property
    def handle(self) -> Any:
        return self.buffer.handle

    @property
    def size(self) -> int:
        return int(self.buffer.size)

    def __del__(self) -> None:
        with suppress(Exception), self._session.gpu.current():  # his stream may be gone, and all it was given with it
            self._session.wait_for(self._stream)


class DeviceArray:
    """An array in a GPU's memory. Others take it through DLPack or `__cuda_array_interface__`, without a copy."""

    __slots__ = ("buffer", "device", "dtype", "shape")

    def __init__(self, device: Session, buffer: Any, shape: tuple[int, ...], dtype: str) -> None:
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

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,  # ours is of version 0, which all read
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"an array on cuda:{self.device.ordinal} is given out as it is; numpy() copies it")
        self.device.let_wait(stream)
        owner = Lent(self.device, self.buffer, stream)
        return dlpack.write(
            dlpack.ForeignArray(self.pointer, self.shape, self.dtype, dlpack.CUDA, self.device.ordinal, owner)
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The device is that of the pointer: the interface has no field for it."""
        if self.dtype not in dlpack.TYPESTR:
            raise AttributeError("bfloat16 has no name there; DLPack has")
        self.device.sync()  # not all who take it wait for a stream
        if not isinstance(self.buffer, Lent):
            self.buffer = Lent(self.device, self.buffer, None)
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

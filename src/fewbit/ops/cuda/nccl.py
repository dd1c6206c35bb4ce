"""NCCL, which exchanges rows between GPUs: the library that cuda-pathfinder finds, called through ctypes.

What it is given is enqueued on the streams of the ranks, and becomes part of their captured graphs.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from typing import Any

from ...errors import DeviceError, ExtraError
from ..collective import FAILED
from .collective import BUFFER_BYTES
from .compile import package
from .session import Session

INSTALL = "pip install 'fewbit[tensor-parallel]'"
FLOAT32 = 7  # ncclFloat32
ARGUMENTS: dict[str, tuple[Any, ...]] = {  # with the types that ctypes would not guess
    "ncclCommInitAll": (c_void_p, c_int, c_void_p),
    "ncclAllGather": (c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p),
    "ncclBroadcast": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclSend": (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclRecv": (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclCommAbort": (c_void_p,),
    "ncclCommDestroy": (c_void_p,),
}


def load_nccl() -> Any:
    """The library, with the functions that are called."""
    try:
        library: Any = ctypes.CDLL(package("cuda.pathfinder").load_nvidia_dynamic_lib("nccl").abs_path)
    except ExtraError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ExtraError(f"tensor_parallel on several GPUs needs NCCL ({reason}); install it: {INSTALL}") from None
    for name, types in ARGUMENTS.items():
        getattr(library, name).argtypes = types
    library.ncclGetErrorString.restype = c_char_p
    return library


class NcclGroup:
    """Ranks on GPUs of this machine, one on each."""

    can_be_captured = True

    def __init__(self, sessions: Sequence[Session], library: Any = None) -> None:
        self._library = load_nccl() if library is None else library
        self.ranks, self._sessions = len(sessions), sessions
        self._buffers = [session.allocate(BUFFER_BYTES) for session in sessions]
        for session in sessions:
            session.sync()
        comms, ordinals = (c_void_p * self.ranks)(), (c_int * self.ranks)(*(one.ordinal for one in sessions))
        self._check(self._library.ncclCommInitAll(comms, self.ranks, ordinals))
        self._comms = [c_void_p(comm) for comm in comms]
        self._live, self._failed = [*self._comms], False
        weakref.finalize(self, _destroy, self._library, self._live).atexit = False

    def begin(self, rank: int) -> int:
        if self._failed:
            raise DeviceError(f"{FAILED}; load the model again")
        return int(self._buffers[rank].handle)

    def exchange(self, rank: int, buffer: int, counts: Sequence[int]) -> None:
        session, comm = self._sessions[rank], self._comms[rank]
        session.use()
        stream = c_void_p(int(session.stream.handle))
        if len(set(counts)) == 1:
            own = buffer + 4 * rank * counts[0]
            self._check(self._library.ncclAllGather(own, buffer, counts[0], FLOAT32, comm, stream))
            return
        self._check(self._library.ncclGroupStart())
        for root, count in enumerate(counts):
            part = buffer + 4 * sum(counts[:root])
            self._check(self._library.ncclBroadcast(part, part, count, FLOAT32, root, comm, stream))
        self._check(self._library.ncclGroupEnd())

    def scatter(self, rank: int, source: int, target: int, count: int) -> None:
        session, comm = self._sessions[rank], self._comms[rank]
        session.use()
        stream = c_void_p(int(session.stream.handle))
        self._check(self._library.ncclGroupStart())
        for peer in range(self.ranks):
            away = 4 * peer * count
            self._check(self._library.ncclSend(source + away, count, FLOAT32, peer, comm, stream))
            self._check(self._library.ncclRecv(target + away, count, FLOAT32, peer, comm, stream))
        self._check(self._library.ncclGroupEnd())

    def abort(self) -> None:
        """What the others have enqueued ends; captured graphs are of no use any more."""
        if not self._failed:
            self._failed = True
            while self._live:
                self._library.ncclCommAbort(self._live.pop())

    def reset(self) -> None:
        """There is no way back."""

    def _check(self, status: int) -> None:
        if status:
            text = self._library.ncclGetErrorString(status).decode()
            raise DeviceError(FAILED if self._failed else f"the GPU reports an error: NCCL: {text}")


def _destroy(library: Any, comms: list[c_void_p]) -> None:
    with suppress(Exception):
        for comm in comms:
            library.ncclCommDestroy(comm)

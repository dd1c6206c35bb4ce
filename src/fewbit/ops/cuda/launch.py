"""Launch lists: kernels and matrix products packed as csrc/launches.cpp takes them, all by one call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ... import _native
from ...arrays import Bytes
from ...errors import ArgumentError
from .kernels import Entry

LAUNCH = Struct("=Q8I")  # Launch in csrc/launches.cpp
GEMM = Struct("=3Q6if4x")  # Gemm there
GEMM_NAME = "cublasGemmEx"
ALIGN = 16


class StepPointer(int):
    """A pointer to inputs of a step, with its place among them: the list of a step is patched for the next one."""

    place: int

    def __new__(cls, value: int, place: int) -> StepPointer:
        made = super().__new__(cls, value)
        made.place = place
        return made

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError("a pointer to a step's inputs is passed to kernels as it is: lists could not be patched")

    __add__ = __radd__ = __sub__ = _refuse


@cache
def layout(codes: str) -> tuple[Struct, tuple[int, ...]]:
    """Parameters as a kernel has them, each at its alignment, and where each begins.

    >>> layout("QifQ")[1], layout("iQ")[1]
    ((0, 8, 12, 16), (0, 8))
    """
    ends = [Struct("@" + codes[: i + 1]).size for i in range(len(codes))]
    return Struct("@" + codes), tuple(end - Struct(code).size for end, code in zip(ends, codes, strict=True))


class LaunchList:
    """Launches in their order. `names` are those of the kernels, for errors."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.has_products = False
        self._launches, self._arena = bytearray(), bytearray()
        self._patches: list[tuple[int, int]] = []  # word of the arena, place of the step's pointer

    def __len__(self) -> int:
        return len(self.names)

    def add(
        self, entry: Entry, kernel: int, grid: int | tuple[int, ...], threads: int, dependent: bool, args: Sequence[Any]
    ) -> None:
        """A kernel, by its handle. `dependent`: it may begin before the kernel before it ends."""
        packing, offsets = layout(entry.codes)
        first = len(self._arena)
        try:
            parameters = packing.pack(*args)
        except StructError as error:
            raise ArgumentError(f"{entry.name} takes other arguments: {error}") from None
        for offset, arg in zip(offsets, args, strict=True):
            if type(arg) is StepPointer:
                self._patches.append(((first + offset) // 8, arg.place))
        x, y, z = (*(grid if isinstance(grid, tuple) else (grid,)), 1, 1)[:3]
        self._launches += LAUNCH.pack(kernel, x, y, z, threads, entry.shared, dependent, first, packing.size)
        self._put(parameters, entry.name)

    def add_product(self, *args: Any) -> None:
        """A product by cuBLAS: the fields of `GEMM`."""
        self.has_products = True
        self._launches += LAUNCH.pack(0, 0, 0, 0, 0, 0, 0, len(self._arena), GEMM.size)
        self._put(GEMM.pack(*args), GEMM_NAME)

    def _put(self, parameters: bytes, name: str) -> None:
        self._arena += parameters + bytes(-len(parameters) % ALIGN)
        self.names.append(name)

    def patch(self, pointers: Sequence[int]) -> None:
        """Let kernels read the inputs of another step, given by their places."""
        arena_slots, places = self._patched
        np.frombuffer(self._arena, np.uint64)[arena_slots] = np.array(pointers, np.uint64)[places]

    @cached_property
    def _patched(self) -> npt.NDArray[np.int64]:
        """Of a list that is complete: words of the arena, and places of the pointers there."""
        return np.array(self._patches, np.int64).reshape(-1, 2).T

    def packed(self) -> tuple[Bytes, Bytes]:
        """Launches and arena. Nothing can be added while the arrays live."""
        return _view(self._launches), _view(self._arena)


def _view(data: bytearray) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def launch_all(
    launches: LaunchList, addresses: tuple[int, int, int], stream: int, begin: int, end: int
) -> tuple[str, int] | None:
    """Launch what is between two numbers. None: it went well; else which kernel failed, and the driver's status.

    Args:
        launches: What to launch.
        addresses: cuLaunchKernelEx, cublasGemmEx and a cuBLAS handle; 0 where the list needs none.
        stream: Handle of the stream of the kernels; that of products is set in the cuBLAS handle.
        begin: The first one's number.
        end: The number behind the last.
    """
    failed, status = _native.launch_all(*addresses, stream, *launches.packed(), begin, end)
    return None if failed < 0 else (launches.names[failed], status)

"""A GPU that is not there: parameters of launches are packed, and written down."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy.typing as npt

from fewbit.ops.cuda.kernels import Entry
from fewbit.ops.cuda.launch import LaunchList


def check_arguments(entry: Entry, args: Sequence[Any]) -> None:
    """Whether a kernel's parameters can be packed."""
    launches = LaunchList()
    launches.add(entry, 1, 1, 32, False, args)


class FakeGpu:
    """As much of a `Gpu` as products need."""

    def __init__(self, arch: int = 90) -> None:
        self.ordinal, self.has_dependent_launches, self.has_wgmma = -arch, arch >= 90, arch == 90
        self.takes_panels = True
        self.stream = SimpleNamespace(handle=1, sync=lambda: None)
        self.launches: list[tuple[Entry, Any, int, tuple[Any, ...]]] = []
        self.products: list[tuple[Any, ...]] = []
        self._scratch: dict[str, Any] = {}
        self._addresses = count(1 << 20, 1 << 20)

    def launch(
        self, entry: Entry, grid: Any, threads: int, *args: Any, stream: Any = None, dependent: bool = False
    ) -> None:
        bound = re.search(r"__launch_bounds__\((\d+)\)", entry.text)
        assert bound
        assert threads == int(bound[1])
        sizes = grid if isinstance(grid, tuple) else (grid,)
        assert all(size > 0 for size in sizes)
        assert all(size <= 65535 for size in sizes[1:])
        check_arguments(entry, args)
        self.launches.append((entry, grid, threads, args))

    def add_product(self, launches: Any, *args: Any, **options: Any) -> None:
        self.products.append(args)

    def launch_list(self, launches: Any, stream: Any) -> None:
        pass

    def allocate(self, nbytes: int) -> Any:
        return SimpleNamespace(handle=next(self._addresses), size=nbytes)

    def scratch(self, name: str, nbytes: int, zeros: bool = False) -> int:
        self._scratch[name] = self.allocate(nbytes)
        return int(self._scratch[name].handle)

    def copy(self, source: int, destination: int, nbytes: int) -> None:
        pass

    def fill(self, pointer: int, byte: int, nbytes: int) -> None:
        pass

    def download(self, pointer: int, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return out

    @property
    def names(self) -> list[str]:
        return [entry.name for entry, *_ in self.launches]

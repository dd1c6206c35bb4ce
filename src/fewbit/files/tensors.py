"""Tensors over the memory maps of one file or several, and lists of them for people."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

import numpy as np

from ..arrays import Bytes
from ..errors import MissingError, PathError
from ..tensor import QuantTensor
from .maps import FileMap, release
from .shown import short


class StoredInfo(Protocol):
    """Where a tensor is in its files."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def offset(self) -> int:
        """From the start of the file."""

    @property
    def nbytes(self) -> int: ...

    @property
    def part(self) -> int:
        """Which of several files."""


InfoT = TypeVar("InfoT", bound=StoredInfo)


class MappedTensors(Mapping[str, QuantTensor], Generic[InfoT]):
    """Tensors by name, which share the bytes of the files. After `close`, those that are in use stay valid.

    Args:
        paths: The files.
        maps: Their memory maps.
        infos: Where each tensor is.
    """

    def __init__(self, paths: Sequence[Path], maps: list[FileMap], infos: Mapping[str, InfoT]) -> None:
        self.paths, self.infos = tuple(paths), MappingProxyType(dict(infos))
        self.file_bytes = sum(len(data) for data in maps)
        self.maps = WeakSet(maps)  # tensors may use them after `close` too
        self._maps = maps

    def data(self, name: str) -> Bytes:
        """The bytes of a tensor, shared with the file."""
        if name not in self.infos:
            raise MissingError(f"{self.paths[0]}: there is no tensor {short(name)} among its {len(self)}")
        info, maps = self.infos[name], self._maps.copy()  # another thread may close
        if not maps:
            raise PathError(f"{self.paths[0]}: the file is closed; tensor {short(name)} cannot be read any more")
        return np.frombuffer(maps[info.part], np.uint8, info.nbytes, info.offset)

    def forget(self, name: str) -> None:
        """Release the memory of a tensor. If it is used again, it is read from the file again."""
        info, maps = self.infos[name], self._maps.copy()
        if maps:
            release(maps[info.part], info.offset, info.nbytes)

    def close(self) -> None:
        """Close the files. They are unmapped when no tensor uses them."""
        self._maps.clear()

    def __contains__(self, name: object) -> bool:
        return name in self.infos

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)

    def __repr__(self) -> str:
        files = self.paths[0].name if len(self.paths) == 1 else f"{len(self.paths)} files"
        return f"<{len(self)} tensors of {files}>"


def tensor_sizes(infos: Sequence[InfoT], format_name: Callable[[InfoT], str], *, tensors: bool) -> dict[str, Any]:
    """Sizes by format and in all, and of each tensor if `tensors`: a part of a file's summary, ready for JSON."""
    groups: defaultdict[str, list[InfoT]] = defaultdict(list)
    for info in infos:
        groups[format_name(info)].append(info)
    formats = [{"format": name, **_total(members)} for name, members in groups.items()]
    sizes = {"formats": sorted(formats, key=lambda row: -int(row["bytes"])), "total": _total(infos)}
    if not tensors:
        return sizes
    rows = [
        {
            "name": info.name,
            "format": format_name(info),
            "shape": list(info.shape),
            "values": math.prod(info.shape),
            "bytes": info.nbytes,
            "file": info.part,
            "offset": info.offset,
        }
        for info in infos
    ]
    return sizes | {"tensors": rows}


def _total(infos: Sequence[StoredInfo]) -> dict[str, Any]:
    values, size = sum(math.prod(info.shape) for info in infos), sum(info.nbytes for info in infos)
    bits = 8 * size / values if values else 0.0
    return {"tensors": len(infos), "values": values, "bytes": size, "bits_per_weight": bits}

"""Memory maps of files.

A file that is truncated or overwritten while it is mapped must not end the process, nor go unnoticed. Maps are guarded
(`csrc/map_guard.cpp`): pages that are gone read as zeros, and `check_maps` raises from then on.
"""

from __future__ import annotations

import mmap as mmap_module
import os
import stat
import weakref
from collections.abc import Iterable
from mmap import ACCESS_READ, PAGESIZE, mmap
from pathlib import Path

import numpy as np

from ..errors import FileChanged, FileError, PathError

_DONTNEED: int | None = getattr(mmap_module, "MADV_DONTNEED", None)


class FileMap(mmap):
    """A guarded map that knows its file, and the file's state when it was opened."""

    path: Path
    opened: os.stat_result
    guard: int  # its number in the native table

    @property
    def is_changed(self) -> bool:
        """Whether the file was truncated or written to since it was opened."""
        from ..ops.cpu.maps import map_failed

        if map_failed(self.guard) or self.size() != self.opened.st_size:
            return True
        try:
            now = os.stat(self.path)
        except OSError:  # removed
            return False
        is_same = (now.st_dev, now.st_ino) == (self.opened.st_dev, self.opened.st_ino)
        return is_same and now.st_mtime_ns != self.opened.st_mtime_ns


def open_map(path: Path) -> FileMap:
    """Map a file into memory."""
    try:
        with open(path, "rb", opener=_open_regular) as file:
            opened = os.fstat(file.fileno())
            if not opened.st_size:
                raise FileError(f"{path}: the file is empty")
            found = FileMap(file.fileno(), 0, access=ACCESS_READ)
            found.path, found.opened = path, opened
            _guard(found)
            return found
    except FileError:
        raise
    except (OSError, ValueError) as error:
        raise PathError(f"{path}: cannot be opened: {getattr(error, 'strerror', None) or error}") from None


def check_maps(maps: Iterable[FileMap]) -> None:
    """Raise FileChanged if a file was truncated or written to since it was mapped.

    A file that was removed, or replaced by another one under its name, harms no map.
    """
    for data in maps:
        if data.is_changed:
            raise FileChanged(f"{data.path}: the file changed while it was in use; load the model again")


def _guard(data: FileMap) -> None:
    from ..ops.cpu.maps import guard_map, unguard_map

    data.guard = guard_map(np.frombuffer(data, np.uint8))
    weakref.finalize(data, unguard_map, data.guard)


def release(data: mmap, offset: int, nbytes: int) -> None:
    """Release the memory of a part of a map. If it is used again, it is read from the file again."""
    start, end = -(-offset // PAGESIZE) * PAGESIZE, (offset + nbytes) // PAGESIZE * PAGESIZE
    if _DONTNEED is not None and start < end:
        data.madvise(_DONTNEED, start, end - start)


def _open_regular(path: str, flags: int) -> int:
    if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would wait for a writer
        raise OSError("not a regular file")
    return os.open(path, flags)

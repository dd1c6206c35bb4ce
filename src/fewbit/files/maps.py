"""Memory maps of files, opened with care, and parts of them released."""

from __future__ import annotations

import mmap as mmap_module
import os
import stat
from mmap import ACCESS_READ, PAGESIZE, mmap
from pathlib import Path

from ..errors import FileError, PathError

_DONTNEED: int | None = getattr(mmap_module, "MADV_DONTNEED", None)


def open_map(path: Path) -> mmap:
    """A file's bytes, read when they are looked at."""
    try:
        with open(path, "rb", opener=_open_regular) as file:
            if not os.fstat(file.fileno()).st_size:
                raise FileError(f"{path}: the file is empty")
            return mmap(file.fileno(), 0, access=ACCESS_READ)
    except FileError:
        raise
    except (OSError, ValueError) as error:
        raise PathError(f"{path}: cannot be opened: {getattr(error, 'strerror', None) or error}") from None


def release(data: mmap, offset: int, nbytes: int) -> None:
    """Give memory back that is not used any more; if it is, it is read from the file again."""
    start, end = -(-offset // PAGESIZE) * PAGESIZE, (offset + nbytes) // PAGESIZE * PAGESIZE
    if _DONTNEED is not None and start < end:
        data.madvise(_DONTNEED, start, end - start)


def _open_regular(path: str, flags: int) -> int:
    if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would wait for a writer
        raise OSError("not a regular file")
    return os.open(path, flags)

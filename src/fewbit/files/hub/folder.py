"""The folder of downloaded models: its place, its locks, and its notes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ...errors import FetchError, PathError

Progress = Callable[[str, int, int | None], None]

MAGIC = b"GGUF"
LOCK = "lock"  # a file in the folder that is locked


def silent(what: str, done: int, total: int | None) -> None:
    """No progress reports."""


def cache_folder() -> Path:
    """FEWBIT_CACHE, else fewbit in XDG_CACHE_HOME, else ~/.cache/fewbit."""
    own, shared = os.environ.get("FEWBIT_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(os.path.expanduser(own)).absolute()
    if shared and os.path.isabs(shared):  # a relative one is to be ignored, by the rules of XDG
        return Path(shared, "fewbit")
    try:
        return Path.home() / ".cache" / "fewbit"
    except RuntimeError:
        raise PathError("there is no home folder to keep models in; set FEWBIT_CACHE to a folder") from None


def key(*parts: str) -> str:
    """A short name of fixed form for any text.

    >>> key("a"), key("../..")
    ('0eb5b8d6f81bc677', 'e1ddd531b2ccdf04')
    """
    from hashlib import sha256

    return sha256(json.dumps(parts).encode()).hexdigest()[:16]


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turn an OSError about a file or folder into a PathError."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise PathError(f"{path}: cannot be written: {why}; FEWBIT_CACHE names another folder") from error


def make_folder(path: Path) -> Path:
    with disk(path):
        while not path.is_dir():
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                if os.path.lexists(path) and not path.is_dir():
                    raise  # otherwise another process made it, or made and removed it
    return path


@contextmanager
def locked(folder: Path, what: str, progress: Progress) -> Iterator[None]:
    """Lock a folder; other processes wait. The lock is released when the process ends.

    The lock file is removed at the end, and so is an empty folder. A process that waited for a lock file that was
    removed takes a new one.
    """
    file = _lock(folder, what, progress)
    try:
        yield
    finally:
        _unlock(folder, file)


def sweep(home: Path) -> None:
    """Remove folders that hold nothing but the lock of a killed process."""
    import fcntl

    for folder in home.glob("*"):
        with suppress(OSError):
            if [entry.name for entry in os.scandir(folder)] == [LOCK]:
                file = open(folder / LOCK, "ab")  # noqa: SIM115
                with file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if _is_at(file, folder / LOCK):
                        _unlock(folder, file)


def _lock(folder: Path, what: str, progress: Progress) -> BinaryIO:
    import fcntl

    path = folder / LOCK
    while True:
        make_folder(folder)
        try:
            file = open(path, "ab")  # noqa: SIM115
        except FileNotFoundError:  # the folder was removed just now
            continue
        except OSError as error:
            with disk(path):
                raise error
        try:
            with disk(path):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    progress(f"waiting for another process that fetches {what}", 0, None)
                    fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, path):
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _unlock(folder: Path, file: BinaryIO) -> None:
    """Remove the lock while it is held, and the folder if nothing else is in it."""
    with suppress(OSError):
        (folder / LOCK).unlink()
        folder.rmdir()
    file.close()


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is still the one that has this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except OSError:
        return False


def size_of(path: Path) -> int | None:
    """The size of a file, None if there is none."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def need_space(folder: Path, nbytes: int, what: str) -> None:
    """Refuse a download that the disk has no room for."""
    with disk(folder):
        free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise PathError(
            f"{folder}: {what} needs {nbytes:,} bytes, the disk has {free:,} left; FEWBIT_CACHE names another folder"
        )


def start_of(path: Path) -> bytes:
    """The first bytes of a file, none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(64)
    except OSError:
        return b""


def refused(what: str, start: bytes) -> FetchError:
    """The error about a file that is no GGUF."""
    page = "; it looks like a web page (hf:org/repo:file.gguf is a file of a repository)" if start[:1] == b"<" else ""
    return FetchError(f"{what}: not a GGUF file (it starts with {start[:4]!r}){page}")


def write_note(path: Path, values: dict[str, object]) -> None:
    """Write a few values to a file, atomically."""
    new = path.with_name(path.name + ".new")
    with disk(path):
        new.write_text(json.dumps(values))
        os.replace(new, path)


def read_note(path: Path) -> dict[str, object]:
    """The values of a note; none if it is missing or damaged."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}

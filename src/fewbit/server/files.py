"""Files that clients uploaded, in a private folder, each with a record beside it. Names there are ids made here.

What a client calls its file is in the record and never part of a path. A file belongs to the API key that it came with.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal
from uuid import uuid4
from weakref import finalize

import msgspec

from ..errors import PathError
from .errors import ApiError

FILE_ID = re.compile(r"file-[0-9a-f]{32}")
MAX_NAME_CHARS = 255

Purpose = Literal["batch", "batch_output"]


class FileObject(msgspec.Struct):
    """A file as clients see it."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: Purpose
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"


class FileRecord(msgspec.Struct):
    """What stands beside a file."""

    owner: str  # id of the API key that it belongs to
    file: FileObject


class FileStore:
    """The files in a folder, which is made if it is not there.

    Args:
        folder: The folder; only its owner may read it.
        max_bytes: Bytes of all files of an API key.
        max_files: Files of an API key.
    """

    def __init__(self, folder: Path, max_bytes: int, max_files: int) -> None:
        self.folder, self._max_bytes, self._max_files = folder, max_bytes, max_files
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            self._close = finalize(self, os.close, _locked(folder))
            self._found = {record.file.id: record for record in _records(folder)}
        except BlockingIOError:
            raise PathError(f"{folder}: another server keeps its files there") from None
        except OSError as error:
            raise PathError(f"{error.filename or folder}: {error.strerror or error}") from None
        self._pending: dict[str, list[int]] = {}  # sizes of files that are being written, by owner

    def close(self) -> None:
        """Let another server have the folder."""
        self._close()

    def path(self, name: str) -> Path:
        """Where a file is. Only ids that were made here have a path."""
        if not FILE_ID.fullmatch(name):
            raise missing(name)
        return self.folder / name

    def get(self, name: str, owner: str) -> FileObject:
        record = self._found.get(name)
        if record is None or record.owner != owner:
            raise missing(name)
        return record.file

    def owned_by(self, owner: str) -> list[FileObject]:
        """All files of an owner, the oldest first."""
        found = [one.file for one in self._found.values() if one.owner == owner]
        return sorted(found, key=lambda file: file.created_at)

    @contextmanager
    def room(self, owner: str, size: int) -> Iterator[None]:
        """Room for a file of so many bytes while it is written, or an error."""
        pending = self._pending.setdefault(owner, [])
        used = [file.bytes for file in self.owned_by(owner)] + pending
        if len(used) >= self._max_files:
            raise ApiError(413, f"there are {len(used)} files already, which is all that a key may have; delete some",
                           "file", "too_many_files")  # fmt: skip
        if sum(used) + size > self._max_bytes:
            raise ApiError(413, f"all files of a key have at most {self._max_bytes} bytes together; delete some",
                           "file", "files_too_large")  # fmt: skip
        pending.append(size)
        try:
            yield
        finally:
            pending.remove(size)

    def add(self, owner: str, filename: str, purpose: Purpose, source: BinaryIO) -> FileObject:
        """Keep what can be read from `source`. It blocks."""
        name = new_file_id()
        try:
            with open_private(self.path(name)) as file:
                shutil.copyfileobj(source, file, 1 << 20)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            self.path(name).unlink(missing_ok=True)
            raise
        return self.adopt(name, owner, filename, purpose)

    def adopt(self, name: str, owner: str, filename: str, purpose: Purpose) -> FileObject:
        """Keep a file that was written to its path already."""
        path = self.path(name)
        file = FileObject(name, path.stat().st_size, int(time.time()), filename[:MAX_NAME_CHARS], purpose)
        record = FileRecord(owner, file)
        write_record(path.with_name(f"{name}.json"), record)
        self._found[name] = record
        return file

    def remove(self, name: str, owner: str) -> None:
        self.get(name, owner)
        path = self.path(name)
        path.with_name(f"{name}.json").unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        del self._found[name]


def new_file_id() -> str:
    return f"file-{uuid4().hex}"


def missing(name: str) -> ApiError:
    return ApiError(404, f"there is no file {name[:100]!r}", "file_id", "file_not_found")


def open_private(path: Path) -> BinaryIO:
    """A new file that only its owner may read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def write_record(path: Path, record: msgspec.Struct) -> None:
    """Write a record, all of it or none."""
    target = path.with_name(f"{path.name}.unfinished")
    with open_private(target) as file:
        file.write(msgspec.json.encode(record))
        file.flush()
        os.fsync(file.fileno())
    target.replace(path)


def _locked(folder: Path) -> int:
    """A descriptor that holds a folder until it is closed."""
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _records(folder: Path) -> Iterator[FileRecord]:
    """The records of files that are there. What a killed process left is removed."""
    for path in folder.glob("*.unfinished"):
        path.unlink()
    for path in folder.glob("file-*"):
        name = path.name.removesuffix(".json")
        if not FILE_ID.fullmatch(name):
            continue
        pair = folder / name, folder / f"{name}.json"
        if path == pair[0] and not pair[1].exists():
            path.unlink()
        elif path == pair[1]:
            try:
                record = msgspec.json.decode(path.read_bytes(), type=FileRecord)
            except msgspec.DecodeError:
                continue
            if pair[0].exists() and record.file.id == name:
                yield record

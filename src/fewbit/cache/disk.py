"""Pages of a KV cache in a folder, which survive a restart.

A file holds one page of one group of layers. Its name is a hash chain over the model, the layout, the namespace and all
tokens up to the end of the page (spill.py), and the number of the group.

    magic          8 bytes   "fewbitPG"
    version        u32       1
    group          u32
    payload size   u64
    digest         32 bytes  the hash chain, as in the name
    payload        what `spill.pack` makes of a page
    checksum       16 bytes  blake2b of all that comes before

Numbers are little-endian. A file appears under its name when it is complete. Damaged files are removed; others are left
alone. The least recently used are removed when there are too many bytes.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import struct
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from ..errors import PathError, RequestError
from ..validation import to_path, to_size

MAGIC = b"fewbitPG"
VERSION = 1
HEADER = struct.Struct("<8sIIQ32s")
CHECKSUM_BYTES = 16
MAX_BYTES = 8 << 30
QUEUE_BYTES = 256 << 20  # that wait to be written; beyond, pages are dropped
NAME = re.compile(r"[0-9a-f]{64}-[0-9]{1,4}\.page")
PART = re.compile(r"\.[0-9a-f]{64}-[0-9]{1,4}\.page\.(\d+)\.[0-9a-f]{8}")

Key = tuple[bytes, int]  # digest and group


@dataclass(frozen=True, slots=True)
class DiskStats:
    """Files now, and events since the start."""

    files: int = 0
    nbytes: int = 0
    read: int = 0  # pages that were found
    written: int = 0
    dropped: int = 0  # not written: too many waited, or the disk is full
    damaged: int = 0
    evictions: int = 0
    failed: int = 0  # not written: the folder is gone, full or read-only
    error: str = ""  # why the last page could not be written; empty once one could


class DiskCache:
    """Pages in a folder. Threads and processes may share it. A thread writes, and ends when nothing is left to write.

    Args:
        folder: The folder.
        max_bytes: Maximum size of all files.
        identity: Must be the same for whoever reads a page and whoever wrote it, besides model and layout.
        queue_bytes: Maximum size of the pages that wait to be written.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        max_bytes: int = MAX_BYTES,
        *,
        identity: str = "",
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        self.folder = to_path(folder, "the folder of a disk cache")
        self.max_bytes = to_size(max_bytes, "the bytes of a disk cache", error=RequestError)
        self.identity = identity
        self._queue_bytes = queue_bytes
        self._changed = threading.Condition()
        self._files: OrderedDict[str, int] = OrderedDict()  # name -> bytes; used longest ago first
        self._pending: OrderedDict[Key, bytes] = OrderedDict()  # to be written
        self._pending_bytes = 0
        self._thread: threading.Thread | None = None
        self._stats = DiskStats()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._scan()
        except OSError as error:
            raise PathError(f"{self.folder}: cannot be used for a cache: {error.strerror or error}") from error

    def has(self, key: Key) -> bool:
        """Whether a page is on the disk, or about to be."""
        name = _name(key)
        with self._changed:
            if key in self._pending or name in self._files:
                return True
        try:
            found = os.lstat(self.folder / name)  # of another process
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode)

    def touch(self, key: Key) -> bool:
        """Mark a page as used, so that it is removed later. Returns whether it is there."""
        if not self.has(key):
            return False
        with self._changed, suppress(OSError):
            os.utime(self.folder / _name(key))
            if _name(key) in self._files:
                self._files.move_to_end(_name(key))
        return True

    def get(self, key: Key, nbytes: int) -> bytes | memoryview | None:
        """The payload of a page, of so many bytes; None if it is missing or damaged."""
        with self._changed:
            payload: bytes | memoryview | None = self._pending.get(key)
        if payload is None:
            payload = self._read(key, nbytes)
        if payload is not None:
            self._count(read=1)
        return payload

    def put(self, key: Key, payload: bytes, wait: bool = False) -> bool:
        """Write a page in the background. If the queue is full, it is dropped (False), or waited for."""
        with self._changed:
            if key in self._pending:
                return True
            while self._pending and self._pending_bytes + len(payload) > self._queue_bytes:
                if not wait:
                    self._count(dropped=1)
                    return False
                self._changed.wait()
            self._pending[key] = payload
            self._pending_bytes += len(payload)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="fewbit-disk-cache")
                self._thread.start()
        return True

    def flush(self) -> None:
        """Wait until everything is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending)

    def stats(self) -> DiskStats:
        with self._changed:
            return replace(self._stats, files=len(self._files), nbytes=sum(self._files.values()))

    def _scan(self) -> None:
        found = []
        for entry in os.scandir(self.folder):
            if not entry.is_file(follow_symlinks=False):
                continue
            part = PART.fullmatch(entry.name)
            if part and not _is_alive(int(part[1])):  # its writer was killed
                _remove(Path(entry.path))
            elif NAME.fullmatch(entry.name):
                with suppress(OSError):
                    found.append((entry.stat().st_mtime_ns, entry.name, entry.stat().st_size))
        self._files.update((name, nbytes) for _, name, nbytes in sorted(found))
        self._trim()

    def _read(self, key: Key, nbytes: int) -> memoryview | None:
        path = self.folder / _name(key)
        header = _header(key, nbytes)
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_size != len(header) + nbytes + CHECKSUM_BYTES:
                    self._drop_damaged(path)
                    return None
                data = file.read()
            os.utime(path)
        except OSError:  # another process removed it, or the disk fails
            self._forget(path.name)
            return None
        end = len(header) + nbytes
        view = memoryview(data)
        if view[: len(header)] != header or _checksum(view[:end]) != view[end:]:
            self._drop_damaged(path)
            return None
        with self._changed:
            self._files[path.name] = len(data)
            self._files.move_to_end(path.name)
        return view[len(header) : end]

    def _drop_damaged(self, path: Path) -> None:
        _remove(path)
        self._forget(path.name)
        self._count(damaged=1)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                if not self._pending:
                    self._thread = None
                    return
                key, payload = next(iter(self._pending.items()))
            try:
                self._write(key, payload)
                error = ""
            except OSError as problem:
                error = problem.strerror or str(problem)
                self._count(dropped=1, failed=1)
            finally:
                with self._changed:
                    self._stats = replace(self._stats, error=error)
                    del self._pending[key]
                    self._pending_bytes -= len(payload)
                    self._changed.notify_all()

    def _write(self, key: Key, payload: bytes) -> None:
        name, header = _name(key), _header(key, len(payload))
        part = self.folder / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
        nbytes = len(header) + len(payload) + CHECKSUM_BYTES
        if nbytes > self.max_bytes:
            self._count(dropped=1)
            return
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0) as file:
                for piece in (header, payload, _checksum(header, payload)):
                    _write_whole(file.fileno(), piece)
            os.replace(part, self.folder / name)
        finally:
            _remove(part)
        with self._changed:
            self._files[name] = nbytes
            self._files.move_to_end(name)
            self._count(written=1)
            self._trim()

    def _trim(self) -> None:
        total = sum(self._files.values())
        while total > self.max_bytes:
            name, nbytes = self._files.popitem(last=False)
            _remove(self.folder / name)
            total -= nbytes
            self._count(evictions=1)

    def _forget(self, name: str) -> None:
        with self._changed:
            self._files.pop(name, None)

    def _count(self, **events: int) -> None:
        with self._changed:  # its lock is reentrant
            counts = {name: getattr(self._stats, name) + count for name, count in events.items()}
            self._stats = replace(self._stats, **counts)


def _name(key: Key) -> str:
    return f"{key[0].hex()}-{key[1]}.page"


def _header(key: Key, nbytes: int) -> bytes:
    return HEADER.pack(MAGIC, VERSION, key[1], nbytes, key[0])


def _checksum(*parts: bytes | memoryview) -> bytes:
    checksum = blake2b(digest_size=CHECKSUM_BYTES)
    for part in parts:
        checksum.update(part)
    return checksum.digest()


def _write_whole(file: int, data: bytes) -> None:
    rest: Sequence[int] = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]  # type: ignore[arg-type]


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _is_alive(pid: int) -> bool:
    """Whether another process has this number."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True

"""Which lines of a job are done, on the disk: an append-only file beside the output, OUT.partial.

Its first line says what the job is. Each other one is a record: index, CRC-32, status, tokens, and the line as it will
stand in the output. Records are in the order in which they were done. A process that is killed leaves at most a torn
record at the end, which is dropped when the job goes on. A lock keeps two processes from the same job.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zlib import crc32

from ...errors import PathError
from ...files.gguf.resumable import BusyPath
from .lines import Record

VERSION = 1
SYNC_BYTES = 1 << 20  # between two calls of fsync


class Totals(NamedTuple):
    """Counts over records."""

    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, record: Record) -> Totals:
        is_done = record.status == 200
        return Totals(
            self.completed + is_done, self.failed + (not is_done), self.prompt_tokens + record.prompt_tokens,
            self.completion_tokens + record.completion_tokens,
        )  # fmt: skip


class Journal:
    """Records of a job. What was written before is kept if it is of the same job.

    Args:
        path: The file.
        facts: What the job is: values by name, all of which must be the same when it goes on, except `created`.

    Attributes:
        created: When the job was created first, in seconds.
        totals: Counts of all records.
    """

    def __init__(self, path: Path, facts: dict[str, str | int]) -> None:
        self.path, self.totals, self._places = path, Totals(), dict[int, int]()
        self._file = _locked(path)
        try:
            self.created = self._read_header({"version": VERSION, **facts})
            self._read_records()
        except BaseException:
            self._file.close()
            raise
        self._unsynced = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, index: int) -> bool:
        return index in self._places

    @property
    def nbytes(self) -> int:
        return self._end

    def add(self, record: Record) -> bool:
        """Keep a record, unless there is one of the same line. It survives the end of this process."""
        if record.index in self:
            return False
        data = _packed(record)
        self._places[record.index] = self._end
        self._file.write(data)
        self._file.flush()
        self._end += len(data)
        self._unsynced += len(data)
        if self._unsynced > SYNC_BYTES:
            os.fsync(self._file.fileno())
            self._unsynced = 0
        self.totals = self.totals.plus(record)
        return True

    def write(self, path: Path, num_lines: int, wants: Callable[[Record], bool] = lambda _: True) -> None:
        """Write the lines of all records that are wanted into a file, in order: all of them or none."""
        target = path.with_name(f"{path.name}.unfinished")
        with target.open("wb") as out:
            for record in self._ordered(num_lines):
                if wants(record):
                    out.write(record.line + b"\n")
            out.flush()
            os.fsync(out.fileno())
        target.replace(path)
        sync_folder(path.parent)

    def close(self) -> None:
        """Release the lock; the file stays."""
        self._file.close()

    def remove(self) -> None:
        """The job is over."""
        self.path.unlink()
        self._file.close()

    def _ordered(self, num_lines: int) -> Iterator[Record]:
        for index in range(num_lines):
            if index in self._places:
                self._file.seek(self._places[index])
                record = _unpacked(self._file.readline())
                if record is None:
                    raise PathError(
                        f"{self.path}: the record of line {index} is damaged; remove the file to begin anew"
                    )
                yield record
        self._file.seek(0, os.SEEK_END)

    def _read_header(self, facts: dict[str, str | int]) -> int:
        line = self._file.readline()
        if not line.endswith(b"\n"):  # it was killed before it had begun
            self._file.seek(0)
            self._file.truncate()
            self._file.write(json.dumps(facts).encode() + b"\n")
            self._file.flush()
            return int(facts["created"])
        try:
            found = dict(json.loads(line))
            created = int(found.pop("created"))
        except (ValueError, TypeError, KeyError):
            raise PathError(
                f"{self.path} is not a checkpoint of a batch; remove it, or choose another output"
            ) from None
        wrong = [name for name in {**facts, **found} if name != "created" and facts.get(name) != found.get(name)]
        if wrong:
            names = ", ".join(f"{name} {found.get(name)!r} instead of {facts.get(name)!r}" for name in wrong)
            raise PathError(f"{self.path} is the checkpoint of another job ({names}); remove it to begin anew")
        return created

    def _read_records(self) -> None:
        self._end = self._file.tell()
        for line in iter(self._file.readline, b""):
            record = _unpacked(line)
            if record is None:
                break
            if record.index not in self._places:
                self._places[record.index] = self._end
                self.totals = self.totals.plus(record)
            self._end += len(line)
        self._file.seek(self._end)
        self._file.truncate()


def _locked(path: Path) -> BinaryIO:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not path.exists() or os.fstat(descriptor).st_ino != path.stat().st_ino:  # its owner has just finished
            raise BlockingIOError
    except BlockingIOError:
        os.close(descriptor)
        raise BusyPath(f"{path}: another process works on this job") from None
    return os.fdopen(descriptor, "r+b")


def _packed(record: Record) -> bytes:
    """
    >>> _packed(Record(7, 200, 3, 2, b"{}"))
    b'7 ca2e0a48 200 3 2 {}\\n'
    """
    rest = b"%d %d %d %b" % (record.status, record.prompt_tokens, record.completion_tokens, record.line)
    return b"%d %08x %b\n" % (record.index, crc32(rest, record.index), rest)


def _unpacked(line: bytes) -> Record | None:
    """The record in a line; None if it is torn or damaged."""
    try:
        index, checksum, rest = line.removesuffix(b"\n").split(b" ", 2)
        status, prompt, completion, text = rest.split(b" ", 3)
        if not line.endswith(b"\n") or crc32(rest, int(index)) != int(checksum, 16):
            return None
        return Record(int(index), int(status), int(prompt), int(completion), text)
    except ValueError:
        return None


def sync_folder(path: Path) -> None:
    """Make names in a folder survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Writes a GGUF file tensor by tensor, and goes on where it was killed.

Until it is complete the file is called NAME.partial. NAME.partial.journal beside it says what it is made of, and then,
a line for each finished tensor, its hash. Whoever opens the same file for the same contents again keeps the tensors
whose bytes have the hash, and writes the others.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from io import BufferedRandom
from pathlib import Path
from typing import Any, BinaryIO

from ...arrays import Bytes
from ...errors import FewbitError, PathError
from .values import DEFAULT_ALIGNMENT
from .writer import CHUNK_BYTES, TensorSpec, encode_header

COMPLETE = "complete"  # a line of the journal, before the file gets its name


class ResumableGGUF:
    """A GGUF file that is being written.

    Args:
        path: The name that it gets when it is complete.
        metadata: Values by key.
        specs: Shape and format of each tensor.
        identity: A text that changes with all that the contents depend on.

    Attributes:
        finished: Tensors that were written before, and are kept.
        is_complete: Whether the whole file was.
    """

    def __init__(self, path: Path, metadata: Mapping[str, Any], specs: Mapping[str, TensorSpec], identity: str) -> None:
        self.path, self.partial = path, path.with_name(f"{path.name}.partial")
        self._journal_path = path.with_name(f"{self.partial.name}.journal")
        self._header, self.specs = encode_header(metadata, specs)
        self._offsets, self.nbytes = _offsets(len(self._header), self.specs)
        self._identity = blake2b(self._header + identity.encode(), digest_size=16).hexdigest()
        self.finished: set[str] = set()
        self.is_complete = False

    @contextmanager
    def opened(self) -> Iterator[ResumableGGUF]:
        """Open the file for writing. What fails leaves no part of it; an interruption leaves what can be resumed."""
        try:
            with open(self._journal_path, "a+b") as journal:
                _lock(journal, self.path)
                self._journal = journal
                with open(self.partial, "a+b"):  # there is one from here on
                    pass
                with open(self.partial, "r+b") as file:
                    self._file = file
                    self._begin()
                    yield self
        except FewbitError as error:
            if not isinstance(error, BusyPath):
                self._discard()
            raise
        except OSError as error:
            self._discard()
            raise PathError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def write(self, name: str, chunks: Iterable[Bytes]) -> None:
        """Write the bytes of a tensor. They count when all are there."""
        self._file.seek(self._offsets[name])
        digest, size = blake2b(digest_size=16), 0
        for chunk in chunks:
            self._file.write(chunk.data)
            digest.update(chunk.data)
            size += chunk.nbytes
        assert size == self.specs[name].nbytes, name
        self._note(name, digest.hexdigest())
        self.finished.add(name)

    def commit(self) -> None:
        """Give the file its name: all tensors are written."""
        assert self.finished == self.specs.keys()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._note(COMPLETE, self._identity)
        os.replace(self.partial, self.path)
        self._journal_path.unlink(missing_ok=True)

    def was_completed(self) -> bool:
        """Whether this very file was completed just before it was stopped: nothing remains but to say so."""
        lines = _read_journal(self._journal_path)
        done = lines[:1] == [["identity", self._identity]] and lines[-1] == [COMPLETE, self._identity]
        if done and not self.partial.exists() and self.path.exists():
            self._journal_path.unlink(missing_ok=True)
            return True
        return False

    def _begin(self) -> None:
        """Find the tensors that are there already, or begin anew."""
        self._journal.seek(0)
        lines = _parse_journal(self._journal.read())
        if lines[:1] == [["identity", self._identity]] and self._starts_well():
            self.finished = {name for name, digest in lines[1:] if name in self.specs and self._has(name, digest)}
            return
        self._journal.truncate(0)
        self._file.truncate(0)
        self._note("identity", self._identity)
        _need_space(self.path, self.nbytes)
        self._file.truncate(self.nbytes)
        self._file.seek(0)
        self._file.write(self._header)
        self._file.flush()

    def _starts_well(self) -> bool:
        self._file.seek(0)
        return os.fstat(self._file.fileno()).st_size == self.nbytes and (
            self._file.read(len(self._header)) == self._header
        )

    def _has(self, name: str, digest: str) -> bool:
        """Whether the bytes of a tensor are in the file."""
        found, remaining = blake2b(digest_size=16), self.specs[name].nbytes
        self._file.seek(self._offsets[name])
        while remaining:
            data = self._file.read(min(remaining, CHUNK_BYTES))
            if not data:
                return False
            found.update(data)
            remaining -= len(data)
        return found.hexdigest() == digest

    def _note(self, name: str, digest: str) -> None:
        self._file.flush()
        self._journal.write(json.dumps([name, digest]).encode() + b"\n")
        self._journal.flush()

    def _discard(self) -> None:
        for path in (self.partial, self._journal_path):
            with suppress(OSError):
                path.unlink()

    _file: BufferedRandom
    _journal: BinaryIO


class BusyPath(PathError):
    """Another process writes the file."""


def _lock(file: BinaryIO, path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BusyPath(f"{path}: another process is writing it") from None


def _offsets(start: int, specs: Mapping[str, TensorSpec]) -> tuple[dict[str, int], int]:
    """Where each tensor begins, and the size of the file."""
    offsets, at = {}, _aligned(start)
    for name, spec in specs.items():
        offsets[name] = at
        at += _aligned(spec.nbytes)
    return offsets, at


def _aligned(size: int) -> int:
    return -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _need_space(path: Path, nbytes: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if nbytes > free:
        raise PathError(f"{path} needs {nbytes:,} bytes, the disk has {free:,} left")


def _read_journal(path: Path) -> list[list[str]]:
    try:
        return _parse_journal(path.read_bytes())
    except OSError:
        return []


def _parse_journal(data: bytes) -> list[list[str]]:
    """The lines of a journal, up to the first that is damaged."""
    lines = []
    for line in data.split(b"\n")[:-1]:
        try:
            pair = json.loads(line)
        except ValueError:
            break
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
            break
        lines.append(pair)
    return lines

"""Versions of an adapter in a folder: each is kept, one is in use, and an earlier one can be used again.

Several processes may share the folder: one trains at a time, and each change of the index is made on what it is then.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path

from ..errors import FileError, PathError, RequestError
from ..validation import to_path
from .replacing import replace_file
from .safetensors import read_json

INDEX_NAME, CONFIG_NAME = "versions.json", "adapter_config.json"
_INDEX_LOCK, _TRAINING_LOCK = ".index.lock", ".training.lock"


class TrainingElsewhere(RequestError):
    """Another process trains in the folder."""


@dataclass(frozen=True)
class AdapterVersion:
    """One version.

    Args:
        name: The name of its folder, such as "v1".
        votes: Rated answers that it learned from, held-out ones included.
        loss: Its loss on held-out answers.
        previous_loss: That of the version before it, or of the model alone, on the same answers.
        is_better: Whether it was taken into use for that.
        time: When the votes were read, in seconds since 1970.
    """

    name: str
    votes: int
    loss: float
    previous_loss: float
    is_better: bool
    time: float = 0.0


class AdapterVersions:
    """The versions in a folder, and which of them is in use.

    Args:
        folder: The folder; it need not be there.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = to_path(folder)
        self.versions: list[AdapterVersion] = []
        self.current: str | None = None  # None: the model alone
        self._read()

    @property
    def current_path(self) -> Path | None:
        """The folder of the adapter in use."""
        return None if self.current is None else self.folder / self.current

    @property
    def time(self) -> float:
        """When the votes of the last version were read."""
        return max((version.time for version in self.versions), default=0.0)

    def next_name(self) -> str:
        """The name of the version to come."""
        return f"v{len(self.versions) + 1}"

    def add(self, version: AdapterVersion, compared_to: str | None) -> None:
        """Note a version, and use it if it is better than the one in use. If another one than `compared_to` is in use
        by now, that one stays."""
        with self._changing():
            self.versions.append(version)
            if version.is_better and self.current == compared_to:
                self.current = version.name

    def use(self, name: str | None) -> None:
        """Use a version from now on; None: the model alone."""
        with self._changing():
            known = [version.name for version in self.versions]
            if name is not None and name not in known:
                raise RequestError(
                    f"there is no version {name!r} in {self.folder}; there are: {', '.join(known) or 'none'}"
                )
            if name is not None and not (self.folder / name / CONFIG_NAME).exists():
                raise FileError(f"{self.folder / name}: the adapter is not there any more")
            self.current = name

    @contextmanager
    def training(self) -> Iterator[None]:
        """Hold the folder for training. Another process that holds it is an error."""
        try:
            with _locked(self._made_folder() / _TRAINING_LOCK, wait=False):
                self._read()
                yield
        except BlockingIOError:
            raise TrainingElsewhere(f"another process is training in {self.folder}") from None

    def is_training(self) -> bool:
        """Whether a process holds the folder for training."""
        path = self.folder / _TRAINING_LOCK
        if not path.exists():
            return False
        try:
            with _locked(path, wait=False):
                return False
        except BlockingIOError:
            return True

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """The index as it is now, written at the end."""
        with _locked(self._made_folder() / _INDEX_LOCK, wait=True):
            self._read()
            yield
            index = {"current": self.current, "versions": [asdict(version) for version in self.versions]}
            replace_file(self.folder / INDEX_NAME, json.dumps(index, indent=2).encode() + b"\n")

    def _made_folder(self) -> Path:
        """The folder; what was learned of conversations is for this user alone."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise PathError(f"{self.folder}: {error.strerror}") from None
        return self.folder

    def _read(self) -> None:
        path = self.folder / INDEX_NAME
        if not path.exists():
            return
        index = read_json(path)
        try:
            self.versions = [AdapterVersion(**version) for version in index["versions"]]
            self.current = index["current"]
        except (KeyError, TypeError) as error:
            raise FileError(f"{path}: not a list of adapter versions: {error}") from None
        if self.current is not None and self.current not in [version.name for version in self.versions]:
            raise FileError(f"{path}: {self.current!r} is in use and is none of the versions")


@contextmanager
def _locked(path: Path, wait: bool) -> Iterator[None]:
    """Hold a file; BlockingIOError if another process does, unless this waits. A killed process holds nothing."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PathError(f"{path}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)

"""Versions of an adapter in a folder: each is kept, one is in use, and an earlier one can be used again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path

from ..errors import FileError, RequestError
from ..files.safetensors import read_json
from ..validation import to_path
from .saving import CONFIG_NAME, replace_file

INDEX_NAME = "versions.json"


@dataclass(frozen=True)
class AdapterVersion:
    """One version.

    Args:
        name: The name of its folder, such as "v1".
        votes: Rated answers that it learned from, held-out ones included.
        loss: Its loss on held-out answers.
        previous_loss: That of the version before it, or of the model alone, on the same answers.
        is_better: Whether it was taken into use for that.
    """

    name: str
    votes: int
    loss: float
    previous_loss: float
    is_better: bool


class AdapterVersions:
    """The versions in a folder, and which of them is in use.

    Args:
        folder: The folder; it need not be there.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = to_path(folder)
        self.versions: list[AdapterVersion] = []
        self.current: str | None = None  # None: the model alone
        if (self.folder / INDEX_NAME).exists():
            self._read()

    @property
    def current_path(self) -> Path | None:
        """The folder of the adapter in use."""
        return None if self.current is None else self.folder / self.current

    def next_name(self) -> str:
        """The name of the version to come."""
        return f"v{len(self.versions) + 1}"

    def add(self, version: AdapterVersion) -> None:
        """Note a version, and use it if it is better."""
        self.versions.append(version)
        self.current = version.name if version.is_better else self.current
        self._write()

    def use(self, name: str | None) -> None:
        """Use a version from now on; None: the model alone."""
        known = [version.name for version in self.versions]
        if name is not None and name not in known:
            raise RequestError(
                f"there is no version {name!r} in {self.folder}; there are: {', '.join(known) or 'none'}"
            )
        if name is not None and not (self.folder / name / CONFIG_NAME).exists():
            raise FileError(f"{self.folder / name}: the adapter is not there any more")
        self.current = name
        self._write()

    def _read(self) -> None:
        path = self.folder / INDEX_NAME
        index = read_json(path)
        try:
            self.versions = [AdapterVersion(**version) for version in index["versions"]]
            self.current = index["current"]
        except (KeyError, TypeError) as error:
            raise FileError(f"{path}: not a list of adapter versions: {error}") from None

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        index = {"current": self.current, "versions": [asdict(version) for version in self.versions]}
        replace_file(self.folder / INDEX_NAME, json.dumps(index, indent=2).encode() + b"\n")

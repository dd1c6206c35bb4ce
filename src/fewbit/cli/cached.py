"""The models on this machine that fewbit fetched: names that tell them apart, paths, sizes, and how to remove them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import MissingError, PathError
from ..files.hub import Named, builtin, cache_folder, known, named
from ..files.hub.folder import LOCK, read_note, sweep
from ..files.hub.names import models, quantization

KINDS = ("builtin", "url", "quantized")  # folders of the cache with a folder for each model

_OF_HUB = re.compile(r".*/models--(?P<org>[^/]+?)--(?P<repo>[^/]+)/snapshots/[^/]+/(?P<file>.+)")


@dataclass(frozen=True)
class Cached:
    """A model: all its files, and those beside them that are of no use without it."""

    name: str
    files: tuple[Path, ...]  # none: a built-in model that is not here
    nbytes: int
    about: str = ""
    license: str = ""
    notes: tuple[Path, ...] = ()
    place: str | None = None  # the file in its repository

    @property
    def path(self) -> Path | None:
        return self.files[0] if self.files else None

    def is_called(self, name: str) -> bool:
        entry = known(name)
        if (entry.name if entry else name) in (self.name, self.place):
            return True
        return any(name == str(file) or Path(name).absolute() == file for file in self.files)


def known_models() -> list[Cached]:
    """Built-in models, here or not, then what was fetched from repositories and URLs, and what was quantized."""
    return [*_builtin(), *_of_repositories(), *_in_folders("url"), *_in_folders("quantized")]


def local_names() -> list[str]:
    """What can be given as a model right now: built-in and fetched ones, and GGUF files in this folder."""
    here = [*_of_repositories(), *_in_folders("url"), *_in_folders("quantized")]
    files = (name for name in sorted(_names(Path.cwd())) if name.endswith(".gguf"))
    return [*builtin(), *(model.name for model in here), *files]


def fetched(name: str) -> Cached:
    """The fetched model of a name or path."""
    here = [model for model in known_models() if model.files]
    found = [model for model in here if model.is_called(name)]
    found = found or [model for model in here if name and model.name.endswith(f"/{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise MissingError(f"{name}: several models are called that; name one: {_listed(found)}")
    if os.path.exists(name):
        raise PathError(f"{name}: fewbit did not fetch this file; remove it with `rm`")
    there = f"there are: {_listed(here)}" if here else "none was fetched yet"
    raise MissingError(f"{name}: there is no such model; {there}")


def remove(model: Cached) -> None:
    """Remove a model's files, what belongs to them, and folders that are empty then."""
    for file in (*model.files, *model.notes):
        try:
            if file.is_symlink() and _is_last_link(file):  # of a repository: the contents lie elsewhere
                blob = file.resolve()
                blob.unlink(missing_ok=True)
                _remove_hub_lock(blob)
            file.unlink(missing_ok=True)
        except OSError as error:
            raise PathError(f"{file}: cannot be removed: {error.strerror}") from None
    with suppress(OSError):  # it is not empty
        for file in model.files:
            file.parent.rmdir()
    for kind in KINDS:
        sweep(cache_folder() / kind)


def _remove_hub_lock(blob: Path) -> None:
    """The lock that huggingface_hub left of a download, and its folder if no other lock is in it."""
    folder = blob.parents[2] / ".locks" / blob.parents[1].name
    with suppress(OSError):
        (folder / f"{blob.name}.lock").unlink(missing_ok=True)
        folder.rmdir()


def _is_last_link(file: Path) -> bool:
    """Whether no other revision of the repository has the same contents."""
    snapshots = next((folder for folder in file.parents if folder.name == "snapshots"), file.parent)
    return not any(other != file and other.resolve() == file.resolve() for other in snapshots.rglob(file.name))


def _builtin() -> Iterator[Cached]:
    for model in builtin().values():
        here = (model.path,) if model.is_whole else ()
        yield Cached(model.name, here, model.bytes, model.about, model.license, (model.path.with_name(LOCK),))


def _of_repositories() -> Iterator[Cached]:
    """Each was noted when it was fetched; several notes may tell of the same files."""
    found: dict[tuple[Path, ...], list[Path]] = {}
    for note in sorted((cache_folder() / "hf").glob("*.json")):
        files = read_note(note).get("files")
        with suppress(TypeError, ValueError):  # not what was written there
            paths = tuple(Path(path) for path, _ in files if Path(path).is_file())  # type: ignore[attr-defined]
            if paths:
                found.setdefault(paths, []).append(note)
    for paths, notes in found.items():
        part = _OF_HUB.fullmatch(paths[0].as_posix())
        file = "" if not part or part["file"] == "config.json" else f":{part['file']}"  # a whole checkpoint
        place = f"hf:{part['org']}/{part['repo']}{file}" if part else str(paths[0])
        short = _short_name(f"{part['org']}/{part['repo']}", part["file"]) if part else None
        about, license = (short.about, short.license) if short else ("", "")
        yield Cached(short.name if short else place, paths, _nbytes(paths), about, license, tuple(notes), place)


def _short_name(repo: str, file: str) -> Named | None:
    """The model of the table of names that lies in a repository, in this quantization."""
    kind = quantization(file)
    return next((one for one in named().values() if one.repo == repo and quantization(one.file) == kind), None)


def _in_folders(kind: str) -> Iterator[Cached]:
    """One folder for each URL, or each model that was quantized; its name is part of the model's where two files are
    called the same."""
    home = cache_folder() / kind
    found = [(folder, one) for folder in sorted(home.glob("*")) for one in models(_names(folder))]
    for folder, one in found:
        alone = sum(other.name == one.name for _, other in found) == 1
        files = tuple(folder / name for name in one.files)
        notes = *(file.with_name(file.name + ".json") for file in files), folder / LOCK
        yield Cached(one.name if alone else f"{folder.name}/{one.name}", files, _nbytes(files), notes=notes)


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return [path.name for path in folder.iterdir() if path.is_file()]
    return []


def _nbytes(files: tuple[Path, ...]) -> int:
    return sum(file.stat().st_size for file in files)


def _listed(found: list[Cached]) -> str:
    return ", ".join(model.name for model in found)

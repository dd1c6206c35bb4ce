"""The models that fewbit fetched: their names, paths and sizes, and how to remove them."""

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
from ..files.hub.names import is_encoder, models, quantization

KINDS = ("builtin", "url", "quantized")  # folders of the cache with a folder for each model

_HUB_PATH = re.compile(r".*/models--(?P<org>[^/]+?)--(?P<repo>[^/]+)/snapshots/[^/]+/(?P<file>.+)")


@dataclass(frozen=True)
class Cached:
    """A model, with all its files and the notes that belong to them."""

    name: str
    files: tuple[Path, ...]  # empty for a built-in model that was not fetched
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
    """Built-in models, fetched or not, then models from repositories and URLs, and quantized ones."""
    return [*_builtin(), *_in_repositories(), *_in_folders("url"), *_in_folders("quantized")]


def local_names() -> list[str]:
    """Names of models that need no download: built-in and fetched ones, and GGUF files in this folder."""
    here = [*_in_repositories(), *_in_folders("url"), *_in_folders("quantized")]
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
    """Remove a model's files and notes, and the folders that this leaves empty. An image encoder stays as long as
    another model has it."""
    kept = {file for other in known_models() if other.notes != model.notes for file in other.files}
    for file in (*(file for file in model.files if file not in kept), *model.notes):
        try:
            if file.is_symlink() and _is_last_link(file):  # of a repository: the contents are in another folder
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
    """Remove the lock file that huggingface_hub leaves after a download, and its folder if it is empty."""
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


def _in_repositories() -> Iterator[Cached]:
    """Models with a note of their download. Several notes may name the same files, one of them an image encoder too."""
    found: dict[tuple[Path, ...], list[Path]] = {}
    encoders: dict[tuple[Path, ...], dict[Path, None]] = {}
    for note in sorted((cache_folder() / "hf").glob("*.json")):
        files = read_note(note).get("files")
        with suppress(TypeError, ValueError):  # a damaged note
            paths = tuple(Path(path) for path, _ in files if Path(path).is_file())  # type: ignore[attr-defined]
            beside = [path for path in paths[1:] if is_encoder(path.name)]
            own = tuple(path for path in paths if path not in beside)
            if paths:
                found.setdefault(own, []).append(note)
                encoders.setdefault(own, {}).update(dict.fromkeys(beside))
    for own, notes in found.items():
        paths = *own, *encoders[own]
        part = _HUB_PATH.fullmatch(paths[0].as_posix())
        file = "" if not part or part["file"] == "config.json" else f":{part['file']}"  # a whole checkpoint
        place = f"hf:{part['org']}/{part['repo']}{file}" if part else str(paths[0])
        short = _short_name(f"{part['org']}/{part['repo']}", part["file"]) if part else None
        about, license = (short.about, short.license) if short else ("", "")
        yield Cached(short.name if short else place, paths, _nbytes(paths), about, license, tuple(notes), place)


def _short_name(repo: str, file: str) -> Named | None:
    """The named model in a repository with this quantization."""
    kind = quantization(file)
    return next((one for one in named().values() if one.repo == repo and quantization(one.file) == kind), None)


def _in_folders(kind: str) -> Iterator[Cached]:
    """Models that have a folder each: from URLs, or quantized. If two have the same name, the folder is part of it."""
    home = cache_folder() / kind
    found = [(folder, one) for folder in sorted(home.glob("*")) for one in models(_names(folder))]
    for folder, one in found:
        is_unique = sum(other.name == one.name for _, other in found) == 1
        files = tuple(folder / name for name in one.files)
        notes = *(file.with_name(file.name + ".json") for file in files), folder / LOCK
        yield Cached(one.name if is_unique else f"{folder.name}/{one.name}", files, _nbytes(files), notes=notes)


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return [path.name for path in folder.iterdir() if path.is_file()]
    return []


def _nbytes(files: tuple[Path, ...]) -> int:
    return sum(file.stat().st_size for file in files)


def _listed(found: list[Cached]) -> str:
    return ", ".join(model.name for model in found)

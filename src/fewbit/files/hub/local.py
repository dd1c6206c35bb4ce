"""Models that are on this machine already: a file, or a folder with one model."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from ...errors import MissingError, PathError
from ..shown import first_names
from .names import listed, models, part_names, whole

PICKLES = (".bin", ".pt", ".pth")
_LISTED = 10_000  # names of a folder that are looked at


def find_local(path: Path) -> Path:
    """A file that is there, the only GGUF model of a folder, or a folder that is a checkpoint. Of a split model all
    files must be there."""
    try:
        if path.is_dir():
            return _only_model(path)
        if not path.exists():
            raise PathError(f"{path}: there is no such file{_near(path)}")
    except (OSError, ValueError) as error:  # no permission, or a name that no file can have
        if isinstance(error, PathError):
            raise
        raise PathError(f"{path}: cannot be opened: {getattr(error, 'strerror', None) or error}") from None
    if not path.is_file():
        raise PathError(f"{path}: not a regular file")
    _need_parts(path)
    return path


def near_names(given: str, names: list[str]) -> str:
    """A question to add to an error: whether one of some names was meant; empty if none is near."""
    from difflib import get_close_matches

    lower = {name.lower().removesuffix(".gguf"): name for name in names}  # which would make all alike
    found = [lower[name] for name in get_close_matches(given.lower().removesuffix(".gguf"), lower, n=3, cutoff=0.6)]
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""


def _only_model(folder: Path) -> Path:
    found = models(_names(folder))
    if len(found) == 1:
        try:
            return folder / whole(found[0], str(folder)).name
        except MissingError as error:
            raise PathError(str(error)) from None
    if found:
        raise PathError(f"{folder}: the folder has {len(found)} GGUF models, name one of them: {listed(found)}")
    names = _names(folder)
    stored = any(name.endswith(".safetensors") for name in names)
    if stored and "config.json" in names:
        return folder
    hint = "; its safetensors files need config.json beside them" if stored else _pickle_hint(names)
    raise PathError(f"{folder}: the folder has no GGUF or safetensors model in it{hint}")


def _pickle_hint(names: list[str]) -> str:
    pickles = [name for name in names if name.endswith(PICKLES)]
    hint = "which could run code and is not supported; look for a safetensors or GGUF version of the model"
    return f"; {pickles[0]} is a pickle, {hint}" if pickles else ""


def _need_parts(path: Path) -> None:
    try:
        names = part_names(path.name)
    except MissingError as error:
        raise PathError(f"{path.parent}: {error}") from None
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        raise PathError(f"{path}: the model has {len(names)} parts, not found: {first_names(missing)}")


def _near(path: Path) -> str:
    if not path.parent.is_dir():
        return f", and no folder {str(path.parent)!r}"
    names = _names(path.parent)
    near = near_names(path.name, names)
    return near or (f"; the folder has: {listed(found)}" if (found := models(names)) else "")


def _names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in islice(entries, _LISTED))

"""Where models come from: a file, a URL, a repository, or a built-in name. `find` gives its place on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ...errors import ArgumentError, MissingError, PathError
from ...validation import to_path
from .folder import Progress, cache_folder, silent
from .local import find_local, near_names
from .named import NAMED, Named, all_names, known
from .wheel import TABLE, Builtin, find_builtin

__all__ = [
    "Builtin",
    "Named",
    "Progress",
    "all_names",
    "builtin",
    "cache_folder",
    "find",
    "known",
    "named",
    "recommended_activations",
    "recommended_sampling",
]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w.-]+(?<!\.gguf)", re.ASCII)
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}


def builtin() -> dict[str, Builtin]:
    """The models that have a name of their own.

    >>> builtin()["smollm2"].license
    'Apache-2.0'
    """
    return dict(TABLE)


def named() -> dict[str, Named]:
    """Models in repositories that have a short name.

    >>> named()["qwen3:0.6b"].place
    'hf:Qwen/Qwen3-0.6B-GGUF:q8_0'
    """
    return dict(NAMED)


def recommended_sampling(metadata: Mapping[str, object]) -> Mapping[str, float]:
    """How the makers of a model want it sampled, by the name in its metadata: the same for every copy of its file.

    >>> recommended_sampling({"general.name": builtin()["smollm2"].title})["temperature"]
    0.2
    """
    model = _builtin_with(metadata)
    return model.sampling if model else {}


def recommended_activations(metadata: Mapping[str, object]) -> str | None:
    """The activations that the answers of a model need; None: any will do.

    >>> recommended_activations({"general.name": builtin()["smollm2"].title})
    'int16'
    """
    model = _builtin_with(metadata)
    return model.activations if model else None


def _builtin_with(metadata: Mapping[str, object]) -> Builtin | None:
    title = metadata.get("general.name")
    return next((model for model in TABLE.values() if model.title == title), None)


def find(
    model: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    offline: bool | None = None,
    encoder: bool = False,
) -> Path:
    """The path of a model on this machine, downloaded first if needed: a GGUF file, or a folder with config.json and
    safetensors files.

    Files in the cache are not checked for updates. Downloads are tried five times, 0.5 s to 4 s apart, and resumed.

    Args:
        model: One of
            - a path: a file, or a folder with one model;
            - a URL of a file that ends in .gguf;
            - `hf:org/repo`, `hf:org/repo:file.gguf` or `hf:org/repo:q4_k_m`: a repository, with the extra `hub`;
            - a name such as `smollm2` or `qwen3:4b`: see `builtin` and `named`. It takes precedence over a file of the
              same name; `./name` is the file.
        progress: Called during a download with its name, the bytes done, and the total or None.
        offline: Find only what is on this machine. Defaults to FEWBIT_OFFLINE=1 or HF_HUB_OFFLINE=1.
        encoder: Fetch the model's image encoder too, if its repository has one: a file such as mmproj-F16.gguf.

    Returns:
        The file, the first of a split model, or config.json of a repository without GGUF files.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
    ...     find(file.name) == Path(file.name)
    True
    """
    report = silent if progress is None else progress
    if not isinstance(model, str):
        return find_local(to_path(model, "model"))
    is_offline = _from_environment() if offline is None else bool(offline)
    entry = known(model)
    if isinstance(entry, Builtin):
        return find_builtin(entry, report, is_offline)
    if entry:
        model = entry.place
    if model.startswith("hf:"):
        from .huggingface import find_huggingface

        return find_huggingface(model, report, is_offline, encoder)
    if scheme := _SCHEME.match(model):
        return _find_url(model, scheme[1], report, is_offline)
    path = Path(os.path.expanduser(model))
    if _REPOSITORY.fullmatch(model) and not os.path.exists(path.parent):
        raise PathError(f"{model}: there is no such file; a repository is written hf:{model}")
    if model and (_looks_like_path(model) or os.path.lexists(path)):
        return find_local(path)
    raise MissingError(_not_understood(model))


def _find_url(url: str, scheme: str, report: Progress, is_offline: bool) -> Path:
    from .remote import shown
    from .web import find_url

    if scheme.lower() not in {"http", "https"}:
        raise MissingError(
            f"{shown(url)}: a URL must begin with https:// or http://; a local file is given by its path"
        )
    return find_url(url, report, is_offline)


def _looks_like_path(text: str) -> bool:
    return "\0" in text or text.endswith(".gguf") or text.startswith((".", "~", "/")) or os.sep in text


def _not_understood(model: str) -> str:
    near = near_names(model, all_names())
    return (
        f"{model!r} is neither a file nor a known name{near or '.'} Give the path of a GGUF file, a URL "
        f"(https://...gguf), a repository (hf:org/repo or hf:org/repo:file.gguf), or a name that `fewbit pull --list` "
        "shows"
    )


def _from_environment() -> bool:
    value = os.environ.get("FEWBIT_OFFLINE", "").lower()
    if value not in _TRUE | _FALSE:
        raise ArgumentError(f"FEWBIT_OFFLINE must be 0 or 1, got {value!r}")
    return value in _TRUE or os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE

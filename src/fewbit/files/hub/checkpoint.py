"""Checkpoints of transformers in a repository: which of its files are fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ...errors import FetchError, MissingError
from ..safetensors import FILE_NAME, INDEX_NAME, read_json, shard_names
from .names import models

BESIDE = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja", "modules.json",
          "preprocessor_config.json", "processor_config.json",
          "1_Pooling/config.json")  # fmt: skip


def is_checkpoint(names: Iterable[str]) -> bool:
    """Whether the files of a repository are a checkpoint, and none is a GGUF model.

    >>> is_checkpoint(["config.json", "model.safetensors"]), is_checkpoint(["config.json", "m.gguf"])
    (True, False)
    """
    found = list(names)
    return "config.json" in found and bool(_stored(found)) and not models(found)


def fetch_checkpoint(names: list[str], download: Callable[[str], Path], where: str) -> list[Path]:
    """config.json, its weights, and what else of use lies beside it, in this order."""
    paths = [download("config.json")]
    if INDEX_NAME in names:
        index = download(INDEX_NAME)
        weights = sorted(set(shard_names(read_json(index), f"{where}:{INDEX_NAME}").values()))
        paths.append(index)
    else:
        weights = [FILE_NAME] if FILE_NAME in names else _stored(names)
    missing = [name for name in weights if name not in names]
    if missing:
        raise FetchError(f"{where}: its index names {missing[0]}, which is missing")
    if len(weights) > 1 and INDEX_NAME not in names:
        raise FetchError(f"{where}: it has several safetensors files but no {INDEX_NAME}")
    return [*paths, *map(download, weights), *(download(name) for name in BESIDE if name in names)]


def refuse_selector(where: str, selector: str | None) -> None:
    """A checkpoint has one form; another format is made when it is loaded."""
    if selector is not None:
        raise MissingError(
            f"{where}: the repository has safetensors only, no GGUF; "
            f"give {where} alone and choose the format with --format {selector}"
        )


def _stored(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if "/" not in name and name.endswith(".safetensors"))

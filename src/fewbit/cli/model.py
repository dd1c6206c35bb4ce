"""Finding and loading the model of a command."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import FetchError, MissingError, OutOfMemory
from .options import as_flags
from .output import shown
from .progress import Waiting

if TYPE_CHECKING:
    from ..llm import LLM

DEFAULT = "smollm2"
PREFIXES = ("hf:", "http://", "https://")

# A word that names a model elsewhere: with a digit (llama3), a tag (llama:8b), a folder (org/model), or a known family.
_FAMILIES = "llama|tinyllama|mistral|mixtral|qwen|gemma|phi|smollm|deepseek|granite|falcon"
_MODEL_LIKE = re.compile(rf"(?=.*(\d|[:/]\w))[a-z][\w.:/-]*|{_FAMILIES}", re.IGNORECASE | re.ASCII)


def is_model(text: str) -> bool:
    """Whether an argument names a model; if not it is a prompt.

    >>> is_model("model.gguf"), is_model("qwen3:4b"), is_model("Why is the sky blue?")
    (True, True, False)
    """
    if text.endswith((".gguf", ".safetensors")) or text.lower().startswith(PREFIXES) or os.path.isfile(text):
        return True
    if os.path.isdir(text) and (os.sep in text or text in (".", "..") or has_model(text)):
        return True
    from ..files.hub import known

    return known(text) is not None or fetched_path(text) is not None


def fetched_path(name: str) -> str | None:
    """The path of a fetched model by a name that `fewbit list` shows; None if a file has that name."""
    from ..files.hub import known
    from .cached import known_models

    if not name or (os.path.exists(name) and not known(name)):
        return None
    return next((str(model.path) for model in known_models() if model.path and model.is_called(name)), None)


def find_model(model: str, encoder: bool = False) -> Path:
    """The path of a model that a command names: a path, a URL, a repository, or any name that `fewbit list` shows. With
    `encoder` the model's image encoder is fetched too, unless the model is here and the encoder cannot be had."""
    from ..files.hub import find, known

    here = fetched_path(model)
    with Waiting(f"fetching {shown(model, 60)}") as waiting:
        if encoder and here and (model.startswith(PREFIXES) or known(model)):
            with suppress(FetchError):
                return find(model, progress=waiting, encoder=True)
        return find(here or model, progress=waiting, encoder=encoder)


def has_model(folder: str) -> bool:
    return any(name.endswith((".gguf", ".safetensors")) for name in os.listdir(folder))


def model_and_prompt(first: str | None, rest: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Two arguments are a model and a prompt; a single one is a model if it looks like one.

    >>> model_and_prompt("model.gguf", ()), model_and_prompt("Why?", ()), model_and_prompt("model.gguf", ("Why?",))
    (('model.gguf', None), (None, 'Why?'), ('model.gguf', 'Why?'))
    """
    if first is None:
        return None, None
    if len(rest) > 1:
        parts = rest if is_model(first) else (first, *rest)
        raise click.UsageError(f'a prompt of several words needs quotes: "{shown(" ".join(parts), 60)}"')
    if rest:
        return first, rest[0]
    if is_model(first):
        return first, None
    if _MODEL_LIKE.fullmatch(first) or begins_a_name(first):
        raise MissingError(unknown_model(first))
    return None, first


def unknown_model(word: str) -> str:
    """The error for a word that looks like a model and is not known."""
    text = shown(word)
    near = " or ".join(similar_models(word))
    hint = f"did you mean {near}? If" if near else "`fewbit pull --list` shows the names; if"
    return f"no model is called {text!r}; {hint} it is a prompt: fewbit run {DEFAULT} {text}"


def begins_a_name(word: str) -> bool:
    """Whether a word is a prefix of the name of a local model."""
    from .cached import local_names

    names = (os.path.basename(name).lower() for name in local_names())
    return len(word) > 3 and any(name.startswith(word.lower()) for name in names)


def similar_models(word: str, most: int = 3) -> list[str]:
    """Known models with similar names: those with the word as a prefix first, then those that contain it."""
    from difflib import SequenceMatcher

    from ..files.hub import all_names
    from .cached import local_names

    word = word.lower().removesuffix(":latest")
    wanted, ranks = _plain(word), {}
    for name in dict.fromkeys([*local_names(), *all_names()]) if wanted else ():
        base = os.path.basename(name).lower().removesuffix(".gguf")
        ratio = SequenceMatcher(None, word, base).ratio()
        if wanted in _plain(base) or ratio >= 0.6:
            ranks[name] = (not _plain(base).startswith(wanted), wanted not in _plain(base), -ratio)
    return sorted(ranks, key=ranks.__getitem__)[:most]


def _plain(text: str) -> str:
    return "".join(c for c in text.lower().removesuffix(".gguf") if c.isalnum())


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings become lines on standard error, and proposals of the library options of the command."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        except OutOfMemory as error:
            raise OutOfMemory(as_flags(str(error))) from None
    for warning in caught:
        click.echo(f"fewbit: {as_flags(str(warning.message))}", err=True)


def load(model: str | None, *, writes: bool = True, **options: Any) -> LLM:
    """Load a model, with progress on standard error if it takes long.

    Args:
        model: The model; None for the default one.
        writes: Refuse a model that cannot generate text.
        options: Fields of `LoadOptions`.
    """
    with plain_warnings(), Waiting(f"loading {shown(model or 'the default model', 60)}") as waiting:
        from ..llm import LLM

        llm = LLM(DEFAULT if model is None else fetched_path(model) or model, progress=waiting, **options)
    if writes:
        llm.engine.check_writes()
    from ..bench.machine import only_scalar

    if only_scalar():
        click.echo("fewbit: only scalar kernels run on this machine, and slowly; see `fewbit doctor`", err=True)
    return llm

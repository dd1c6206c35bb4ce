"""Which model a command is to use, and loading it."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ..errors import MissingError, OutOfMemory
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

    >>> is_model("model.gguf"), is_model("hf:org/repo"), is_model("Why is the sky blue?")
    (True, True, False)
    """
    if text.endswith((".gguf", ".safetensors")) or text.lower().startswith(PREFIXES) or os.path.isfile(text):
        return True
    if os.path.isdir(text) and (os.sep in text or text in (".", "..") or has_model(text)):
        return True
    from ..files.hub import builtin

    return text in builtin()


def has_model(folder: str) -> bool:
    return any(name.endswith((".gguf", ".safetensors")) for name in os.listdir(folder))


def model_and_prompt(first: str | None, rest: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Two arguments are a model and a prompt; one is whichever it looks like.

    >>> model_and_prompt("model.gguf", ()), model_and_prompt("Why?", ()), model_and_prompt("model.gguf", ("Why?",))
    (('model.gguf', None), (None, 'Why?'), ('model.gguf', 'Why?'))
    """
    if first is None:
        return None, None
    if len(rest) > 1:
        words = rest if is_model(first) else (first, *rest)
        raise click.UsageError(f'a prompt of several words needs quotes: "{shown(" ".join(words), 60)}"')
    if rest:
        return first, rest[0]
    if is_model(first):
        return first, None
    if _MODEL_LIKE.fullmatch(first) or begins_a_name(first):
        raise MissingError(unknown_model(first))
    return None, first


def unknown_model(word: str) -> str:
    """What to say of a word that looks like a model, and is none that is here."""
    text = shown(word)
    near = " or ".join(similar_models(word))
    hint = f"did you mean {near}? If" if near else f"give a GGUF file, hf:org/repo or {DEFAULT}; if"
    is_prompt = f"it is a prompt: fewbit run {DEFAULT} {text}"
    return f"{text!r} looks like a model, but there is none of that name; {hint} {is_prompt}"


def begins_a_name(word: str) -> bool:
    """Whether a word is the beginning of the name of a model that is here."""
    from .cached import local_names

    names = (os.path.basename(name).lower() for name in local_names())
    return len(word) > 3 and any(name.startswith(word.lower()) for name in names)


def similar_models(word: str, most: int = 3) -> list[str]:
    """Models on this machine whose names have the word in them, or are nearly the same."""
    from difflib import get_close_matches

    from .cached import local_names

    plain = {name: _plain(os.path.basename(name)) for name in local_names()}
    wanted = _plain(word)
    near = get_close_matches(wanted, plain.values(), most, 0.6)
    return [name for name, form in plain.items() if wanted and (wanted in form or form in near)][:most]


def _plain(text: str) -> str:
    return "".join(c for c in text.lower().removesuffix(".gguf") if c.isalnum())


def as_flags(text: str) -> str:
    """What the library proposes, as options of the command.

    >>> as_flags('try ctx=512 or kv="q8_0" or max_batched_tokens=64 or gpu_layers=8')
    'try --ctx 512 or --kv q8_0 or --max-batched-tokens 64 or --gpu-layers 8'
    """
    text = re.sub(r'\b(kv|device)="(\w+)"', r"--\1 \2", text.replace("repack=False", "--no-repack"))
    names = r"\b(ctx|max_batched_tokens|cache_bytes|gpu_layers)="
    return re.sub(names, lambda found: f"--{found[1].replace('_', '-')} ", text)


@contextmanager
def said_plainly() -> Iterator[None]:
    """Warnings become lines on standard error; what does not fit is said in the words of the command."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        except OutOfMemory as error:
            raise OutOfMemory(as_flags(str(error))) from None
    for warning in caught:
        click.echo(f"fewbit: {as_flags(str(warning.message))}", err=True)


def load(model: str | None, *, writes: bool = True, **options: Any) -> LLM:
    """A model, the default one for None; where that takes long, or answers will, it says so. `writes`: it must."""
    with said_plainly(), Waiting(f"loading {shown(model or 'the default model', 60)}") as waiting:
        from ..llm import LLM

        llm = LLM(DEFAULT if model is None else model, progress=waiting, **options)
    if writes:
        llm.engine.check_writes()
    from ..bench.machine import only_scalar

    if only_scalar():
        click.echo("fewbit: only scalar kernels run on this machine, and slowly; see `fewbit doctor`", err=True)
    return llm

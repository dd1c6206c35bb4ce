"""Which model a command is to use, and loading it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from .options import kv_formats
from .output import shown
from .progress import Waiting

if TYPE_CHECKING:
    from ..llm import LLM

PREFIXES = ("hf:", "http://", "https://")


def is_model(text: str) -> bool:
    """Whether an argument names a model; if not it is a prompt.

    >>> is_model("model.gguf"), is_model("hf:org/repo"), is_model("Why is the sky blue?")
    (True, True, False)
    """
    if text.endswith(".gguf") or text.lower().startswith(PREFIXES) or os.path.isfile(text):
        return True
    if os.sep in text and os.path.isdir(text):
        return True
    from ..files.hub import builtin

    return text in builtin()


def model_and_prompt(first: str | None, second: str | None) -> tuple[str | None, str | None]:
    """Two arguments are a model and a prompt; one is whichever it looks like.

    >>> model_and_prompt("model.gguf", None), model_and_prompt("Why?", None), model_and_prompt("model.gguf", "Why?")
    (('model.gguf', None), (None, 'Why?'), ('model.gguf', 'Why?'))
    """
    if first is None or second is not None or is_model(first):
        return first, second
    return None, first


def load(
    model: str | None,
    *,
    ctx: int | None,
    threads: int | None,
    kv: str,
    exact: bool,
    activations: str | None = None,
    repack: bool | None = None,
) -> LLM:
    """A model, the default one for None; where that takes long, or answers will, it says so."""
    formats = kv_formats(kv)
    with Waiting(f"loading {shown(model or 'the default model', 60)}") as waiting:
        from ..llm import LLM

        given = {} if model is None else {"model": model}
        llm = LLM(
            **given, kv=formats, ctx=ctx, exact=exact, threads=threads,
            activations=activations, repack=repack, progress=waiting,
        )  # fmt: skip
    from ..bench.machine import only_scalar

    if only_scalar():
        click.echo("fewbit: only scalar kernels run on this machine, and slowly; see `fewbit doctor`", err=True)
    return llm

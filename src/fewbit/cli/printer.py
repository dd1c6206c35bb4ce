"""Printing an answer and its figures."""

from __future__ import annotations

import sys
from shutil import get_terminal_size
from typing import Any, TextIO

from .output import harmless
from .wrap import Wrapper


class Printer:
    """Writes text without delay. A terminal gets lines wrapped between words, without control characters; a pipe or a
    file gets the text as it is."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._wrapper = _wrapper() if self._out.isatty() else None
        self._last = "\n"
        if hasattr(self._out, "reconfigure"):
            self._out.reconfigure(errors="replace")  # a model may write what the terminal's encoding lacks

    def write(self, text: str) -> None:
        self._print(self._wrapper.feed(harmless(text)) if self._wrapper else text)

    def end_line(self) -> None:
        if self._wrapper:
            self._print(self._wrapper.flush())
            self._wrapper = _wrapper()  # an open code block ends here
        if self._last != "\n":
            self._print("\n")

    def _print(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()
            self._last = text[-1]


def _wrapper() -> Wrapper:
    return Wrapper(lambda: get_terminal_size().columns)


def figures(completion: Any) -> str:
    """Counts and speeds of an answer, in a line."""
    cached = f", {completion.cached_tokens} of them cached" if completion.cached_tokens else ""
    if not completion.tokens and completion.text:  # a server that reports no token ids
        return f"prompt: {completion.prompt_tokens} tokens{cached}; answer: {completion.decode_seconds:.1f} s"
    guessed = completion.draft_tokens
    guesses = f", {completion.accepted_tokens} of {guessed} guesses right" if guessed else ""
    return (
        f"prompt: {completion.prompt_tokens} tokens{cached}, {completion.prefill_tokens_per_second:.1f} tokens/s; "
        f"answer: {len(completion.tokens)} tokens, {completion.decode_tokens_per_second:.1f} tokens/s{guesses}"
    )


def cut_note(completion: Any, ctx: int | None, max_tokens: int | None) -> str:
    """Which limit ended an answer, and what to do about it, or how it breaks its schema; empty if all is well."""
    if completion.finish_reason == "invalid":
        return f"the answer breaks the schema: {completion.error}"
    if completion.finish_reason != "length":
        return ""
    if max_tokens is not None and len(completion.tokens) >= max_tokens:
        return f"the answer was cut after {max_tokens} tokens; a larger --max-tokens lets it go on"
    context = f"the context of {ctx} tokens" if ctx else "the context"
    return f"the answer was cut: {context} is full; a larger --ctx makes room"


def answer_facts(model: str, completion: Any) -> dict[str, Any]:
    """An answer as JSON, with the value of one that had to be JSON."""
    facts = completion.to_dict()
    own = {name: facts[name] for name in ("parsed", "error") if facts[name] is not None}
    return {
        "model": model,
        "text": completion.text,
        **own,
        "tokens": completion.tokens,
        "finish_reason": completion.finish_reason,
        "prompt_tokens": completion.prompt_tokens,
        "cached_tokens": completion.cached_tokens,
        "draft_tokens": completion.draft_tokens,
        "accepted_tokens": completion.accepted_tokens,
        "seconds": completion.prefill_seconds + completion.decode_seconds,
        "tokens_per_second": completion.decode_tokens_per_second,
    }

"""Fill-in-the-middle prompts: prefix and suffix, with the special tokens of models trained for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import RequestError
from .tokenizer import Tokenizer

_TOKENS = [  # before the prefix, the suffix and the middle
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<PRE>", "<SUF>", "<MID>"),
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<|prefix|>", "<|suffix|>", "<|middle|>"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
]
_FILE_TOKENS = ("<|file_sep|>", "<file_sep>", "<filename>")


class File(NamedTuple):
    """A file of the same project, as context."""

    name: str
    text: str


def infill_tokens(tokenizer: Tokenizer) -> tuple[int, int, int] | None:
    """The tokens before the prefix, the suffix and the middle, if the model has them."""
    for texts in _TOKENS:
        before, between, after = map(tokenizer.token_id, texts)
        if before is not None and between is not None and after is not None:
            return before, between, after
    return None


def infill_prompt(
    tokenizer: Tokenizer, prefix: str, suffix: str, *, files: Sequence[File] = (), middle: str = ""
) -> list[int]:
    """The token ids of a prompt for the text between a prefix and a suffix.

    Args:
        tokenizer: The tokenizer. RequestError if it has no tokens for infilling.
        prefix: Text before the gap.
        suffix: Text after the gap.
        files: Other files, placed before the prefix.
        middle: The start of the text in the gap.
    """
    found = infill_tokens(tokenizer)
    if found is None:
        raise RequestError("the model has no tokens for filling in the middle; leave the suffix out")
    before, between, after = found
    begin = [tokenizer.bos_id] if tokenizer.encode("", add_special=True)[:1] == [tokenizer.bos_id] else []
    return [
        *(token for token in begin if token is not None),
        *(token for file in files for token in _file(tokenizer, file)),
        before, *tokenizer.encode(prefix), between, *tokenizer.encode(suffix), after, *tokenizer.encode(middle),
    ]  # fmt: skip


def _file(tokenizer: Tokenizer, file: File) -> list[int]:
    marks = [token for text in _FILE_TOKENS if (token := tokenizer.token_id(text)) is not None]
    return [*marks[:1], *tokenizer.encode(f"{file.name}\n{file.text}\n")]

"""Prompts: text to token ids. Text that cannot fit is refused before it is tokenized."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral

from ..engine.engine import Engine
from ..errors import RequestError, TooLong
from ..text.tokenizer import Tokenizer
from .sampling_options import to_list

Prompt = str | Sequence[int]
Prompts = Prompt | Sequence[Prompt]


class PromptEncoder:
    """Makes prompts for an engine.

    Args:
        tokenizer: The model's tokenizer.
        engine: Limits their lengths.
    """

    def __init__(self, tokenizer: Tokenizer, engine: Engine) -> None:
        self.tokenizer, self.engine = tokenizer, engine

    def encode(self, prompt: str | Iterable[int]) -> list[int]:
        """The token ids of a prompt; text gets the special tokens around it that the model expects."""
        if not isinstance(prompt, str):
            return list(prompt)
        self.refuse_long(prompt)
        return self.tokenizer.encode(prompt, add_special=True)

    def encode_text(self, text: Prompt, name: str, truncate: bool) -> list[int]:
        """The token ids of a text that is read to its end, or cut. Errors call it `name`."""
        most = self.engine.max_length
        try:
            tokens = self.truncated(text, most) if truncate else self.encode(text)
        except TooLong as error:
            raise TooLong(f"{name} does not fit: {error}, or truncate=True") from None
        if len(tokens) > most:
            raise TooLong(f"{name} has {len(tokens)} tokens, and {most} fit; truncate=True cuts it")
        if not tokens:
            raise RequestError(f"{name} is empty: it has no tokens, and the model adds none")
        return tokens

    def truncated(self, prompt: Prompt, length: int) -> list[int]:
        """At most `length` token ids; the special tokens at the end stay."""
        ids = self.tokenizer.encode(prompt, add_special=True) if isinstance(prompt, str) else list(prompt)
        return self.tokenizer.truncate(ids, length)

    def refuse_long(self, text: str) -> None:
        """Refuse text that cannot fit. Tokenizing a million characters would take a second."""
        most = self.engine.max_length
        if len(text) > most and (least := self.tokenizer.min_tokens(text)) > most:
            raise TooLong(
                f"a text of {len(text)} characters is too long: it has at least {least} tokens, and {most} fit; "
                "give less text, or a larger ctx",
                least, most, is_exact=False,
            )  # fmt: skip


def split_prompts(prompt: Prompts) -> tuple[list[Prompt], bool]:
    """A list of prompts, and whether a list was given.

    >>> split_prompts("Once"), split_prompts([1, 2]), split_prompts(["Once", [1, 2]])
    ((['Once'], False), ([[1, 2]], False), (['Once', [1, 2]], True))
    """
    if isinstance(prompt, str):
        return [prompt], False
    items = to_list(prompt, "a prompt must be a str or token ids, or a list of such prompts")
    if not items:
        raise RequestError("the prompt is empty: it has no tokens")
    if isinstance(items[0], Integral):
        return [items], False
    what = "a prompt must be a str or token ids"
    return [item if isinstance(item, str) else to_list(item, what) for item in items], True

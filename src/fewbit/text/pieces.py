"""What bytes a token stands for."""

from __future__ import annotations

from collections.abc import Callable

from .letters import BYTE_LETTERS, BYTE_TOKENS, SPACE
from .special import BYTE, CONTROL, UNKNOWN, USER_DEFINED
from .vocabulary import Vocabulary

_BYTES = {token: bytes([byte]) for byte, token in enumerate(BYTE_TOKENS)}


def piece_reader(vocabulary: Vocabulary, plain: bool) -> Callable[[int], bytes]:
    """A function from ids to bytes. In a `plain` vocabulary tokens are text, otherwise a letter stands for a byte."""
    tokens, kinds = vocabulary.tokens, vocabulary.kinds
    read = _plain if plain else _letters

    def piece(token: int) -> bytes:
        text, kind = tokens[token], kinds[token]
        if kind in (CONTROL, UNKNOWN, USER_DEFINED):
            return text.encode()
        if kind == BYTE and text in _BYTES:
            return _BYTES[text]
        return read(text)

    return piece


def _plain(text: str) -> bytes:
    return text.replace(SPACE, " ").encode()


def _letters(text: str) -> bytes:
    try:
        return bytes(BYTE_LETTERS[letter] for letter in text)
    except KeyError:
        return text.encode()  # not made of such letters: it was added later

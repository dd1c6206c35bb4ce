"""How vocabularies write spaces and bytes, and which bytes a token stands for.

Tokens are plain text, or byte-level: there each character is a byte, the character of that number if it can be seen, or
else one from U+0100 on.
"""

from __future__ import annotations

from collections.abc import Callable

from .special import BYTE, CONTROL, UNKNOWN, USER_DEFINED
from .vocabulary import Vocabulary

SPACE = "\u2581"  # a space, where tokens are plain text
BYTE_TOKENS = {f"<0x{byte:02X}>": byte for byte in range(256)}  # a byte, where tokens are plain text


def _byte_chars() -> dict[str, int]:
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


BYTE_CHARS = _byte_chars()  # a byte, where tokens are byte-level


def token_decoder(vocabulary: Vocabulary, byte_level: bool) -> Callable[[int], bytes]:
    """A function from ids to bytes."""
    tokens, kinds = vocabulary.tokens, vocabulary.kinds
    decode_text = _from_byte_level if byte_level else _from_plain

    def decode(token: int) -> bytes:
        text, kind = tokens[token], kinds[token]
        if kind in (CONTROL, UNKNOWN, USER_DEFINED):
            return text.encode()
        if kind == BYTE and text in BYTE_TOKENS:
            return bytes([BYTE_TOKENS[text]])
        return decode_text(text)

    return decode


def _from_plain(text: str) -> bytes:
    return text.replace(SPACE, " ").encode()


def _from_byte_level(text: str) -> bytes:
    try:
        return bytes(BYTE_CHARS[char] for char in text)
    except KeyError:
        return text.encode()  # not made of such characters: it was added later

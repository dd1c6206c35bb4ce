"""How vocabularies write spaces and bytes."""

from __future__ import annotations

SPACE = "\u2581"  # a space, where tokens are plain text
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]  # a byte, where tokens are plain text


def _byte_letters() -> dict[str, int]:
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


# Elsewhere each letter of a token is a byte: the letter of that number if it can be seen, or else one from U+0100.
BYTE_LETTERS = _byte_letters()

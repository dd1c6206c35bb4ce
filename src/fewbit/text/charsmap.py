"""The normalization of a SentencePiece vocabulary: a compiled trie that maps characters to their replacements.

Layout: u32 size, that many bytes of u32 units, then texts that end in a zero byte. From a node, byte `c` leads to the
unit at `node ^ c` if its label is `c`. Bit 8 says that a key ends there: the next node tells where its text is.
"""

from __future__ import annotations

import numpy as np

from ..errors import TokenizerError

_WINDOW = 32  # no key has more characters
_LABEL = (1 << 31) | 0xFF
_CACHE_PAIRS = 1 << 17


class CharsMap:
    """Replaces the longest keys, from left to right."""

    def __init__(self, data: bytes) -> None:
        size = int.from_bytes(data[:4], "little")
        if len(data) < 8 or size % 4 or not 4 <= size < len(data) - 4:
            raise TokenizerError(f"tokenizer.ggml.precompiled_charsmap cannot be read: {size} of {len(data)} bytes")
        self._units: list[int] = np.frombuffer(data, "<u4", size // 4, 4).tolist()
        self._texts = data[4 + size :]
        self._steps: dict[str, tuple[int, str]] = {}

    def normalize(self, text: str) -> str:
        """The text with all keys replaced."""
        parts, at = [], 0
        while at < len(text):
            pair = text[at : at + 2]
            step = self._steps.get(pair) or self._step(text, at, pair)
            at += step[0]
            parts.append(step[1])
        return "".join(parts)

    def _step(self, text: str, at: int, pair: str) -> tuple[int, str]:
        """How many characters are replaced here, and by what. If two characters decide it, they are remembered."""
        window = text[at : at + _WINDOW].encode()
        length, replacement, seen = self._longest(window)
        key = window[:length].decode("utf-8", "ignore")  # a bad trie may end in half a character
        step = (len(key), replacement) if key else (1, text[at])
        if len(pair) == 2 and seen < len(pair.encode()) and len(self._steps) < _CACHE_PAIRS:
            self._steps[pair] = step
        return step

    def _longest(self, window: bytes) -> tuple[int, str, int]:
        """Bytes of the longest key, its text, and how many bytes were looked at before the trie ended."""
        length, place = 0, 0
        node = _offset(self._units[0])
        for seen, byte in enumerate(window):
            node ^= byte
            if node >= len(self._units) or self._units[node] & _LABEL != byte:
                return length, self._text(place) if length else "", seen
            ends = self._units[node] >> 8 & 1
            node ^= _offset(self._units[node])
            if ends and node < len(self._units):
                length, place = seen + 1, self._units[node] & 0x7FFFFFFF
        return length, self._text(place) if length else "", len(window)

    def _text(self, place: int) -> str:
        end = self._texts.find(b"\0", place)
        if end < 0:
            raise TokenizerError("tokenizer.ggml.precompiled_charsmap names a text outside of it")
        return self._texts[place:end].decode("utf-8", "replace")


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)

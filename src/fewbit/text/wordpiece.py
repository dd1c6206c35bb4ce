"""WordPiece: text is normalized and split into words, and each word is split greedily, longest token first."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from .byte_level import SPACE
from .vocabulary import Vocabulary, read_flag

_CACHE_WORDS, _CACHE_CHARS = 1 << 16, 40
_PREFIX = 2  # characters that tell how long a token can be


class WordPiece:
    """Text to ids for `tokenizer.ggml.model` "bert". U+2581 begins a token that begins a word."""

    adds_space = True
    lost_bytes: bytes | None = None  # a word may be one unknown token

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        lower = read_flag(metadata, "tokenizer.ggml.normalizer.lowercase", True)
        strip = read_flag(metadata, "tokenizer.ggml.normalizer.strip_accents", lower)
        self._fold = _Fold(lower, strip)
        self._ids = vocabulary.ids
        self._longest: dict[str, int] = {}  # token, by how it begins
        for token in vocabulary.tokens:
            self._longest[token[:_PREFIX]] = max(len(token), self._longest.get(token[:_PREFIX], 0))
        self._unknown = [] if vocabulary.unknown is None else [vocabulary.unknown]
        self._cache: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        return [token for word in text.translate(self._fold).split(" ") if word for token in self._word(word)]

    def _word(self, word: str) -> list[int]:
        tokens = self._cache.get(word)
        if tokens is None:
            tokens = self._cut(SPACE + word)
            if len(self._cache) < _CACHE_WORDS and len(word) <= _CACHE_CHARS:
                self._cache[word] = tokens
        return tokens

    def _cut(self, word: str) -> list[int]:
        tokens, start = [], 0
        while start < len(word):
            longest = max(1, self._longest.get(word[start : start + _PREFIX], 0))
            for end in range(min(len(word), start + longest), start, -1):
                token = self._ids.get(word[start:end])
                if token is not None:
                    tokens.append(token)
                    start = end
                    break
            else:
                return self._unknown
        return tokens


class _Fold(dict[int, str]):
    """Maps each character to its normalized form, for `str.translate`; computed at first use."""

    def __init__(self, lower: bool, strip: bool) -> None:
        super().__init__()
        self._lower, self._strip = lower, strip

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if self._strip:
            char = unicodedata.normalize("NFD", char)[0]
        self[code] = folded = self._folded(char)
        return folded

    def _folded(self, char: str) -> str:
        kind = unicodedata.category(char)
        if char in "\t\n\v\f\r\x85" or kind[0] == "Z":
            return " "
        if kind in ("Cc", "Cf", "Co", "Cs") or char == "\ufffd" or (self._strip and kind[0] == "M"):
            return ""
        alone = kind[0] == "P" or (kind[0] == "S" and char < "\x7f") or _is_chinese(ord(char))
        if self._lower:
            char = char.lower()[0]
        return f" {char} " if alone else char


def _is_chinese(code: int) -> bool:
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2A6DF
        or 0x2A700 <= code <= 0x2B81F
        or 0x2B920 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )

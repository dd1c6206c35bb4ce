"""Unigram vocabularies: the split into tokens with the highest sum of scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models

from ..errors import TokenizerError
from .bpe import encode
from .byte_level import SPACE
from .charsmap import CharsMap
from .special import NORMAL, UNUSED, USER_DEFINED
from .vocabulary import Vocabulary, read_flag, read_numbers

_HIDDEN = "\0"  # begins the text of tokens that no text may become


class Unigram:
    """The encoder for `tokenizer.ggml.model` "t5"."""

    lost_bytes: bytes | None = None  # characters are replaced, spaces merged

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        scores = read_numbers(metadata, "tokenizer.ggml.scores", len(vocabulary.tokens)).astype(np.float64)
        if vocabulary.unknown is None:
            raise TokenizerError("a vocabulary of model 't5' needs tokenizer.ggml.unknown_token_id")
        self._tokenizer = Tokenizer(models.Unigram(_entries(vocabulary, scores), vocabulary.unknown, False))
        self._prefix = read_flag(metadata, "tokenizer.ggml.add_space_prefix", False)
        self._merge_spaces = read_flag(metadata, "tokenizer.ggml.remove_extra_whitespaces", False)
        self.adds_space = self._prefix or self._merge_spaces
        self._charsmap = _read_charsmap(metadata)

    def __call__(self, text: str) -> list[int]:
        text = text.replace(_HIDDEN, "\uffff")
        if self._charsmap is not None:
            text = self._charsmap.normalize(text)
        return encode(self._tokenizer, self._spaced(text))

    def _spaced(self, text: str) -> str:
        if self._merge_spaces:
            return "".join(SPACE + word for word in text.split(" ") if word)
        prefix = " " if self._prefix and text.strip(" ") else ""
        return (prefix + text).replace(" ", SPACE)


def _entries(vocabulary: Vocabulary, scores: np.ndarray[Any, Any]) -> list[tuple[str, float]]:
    """Text and score of each token."""
    kinds = np.frombuffer(vocabulary.kinds, np.uint8)
    scores[kinds == USER_DEFINED] = 0.0
    hidden = ~np.isin(kinds, (NORMAL, USER_DEFINED, UNUSED))
    scores[hidden] = scores.max()
    texts = list(vocabulary.tokens)
    for i in np.flatnonzero(hidden):
        texts[i] = f"{_HIDDEN}{i}"
    return list(zip(texts, scores.tolist(), strict=True))


def _read_charsmap(metadata: Mapping[str, Any]) -> CharsMap | None:
    given = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if given is None:
        return None
    numbers = np.asarray(given)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise TokenizerError("tokenizer.ggml.precompiled_charsmap cannot be read: it is a list of bytes")
    return CharsMap(numbers.astype(np.uint8).tobytes())

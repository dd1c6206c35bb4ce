"""SentencePiece vocabularies: pairs whose joined text is a token are merged, highest score first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from .bpe import encode, merging_model, split_merges
from .byte_level import BYTE_TOKENS, SPACE
from .special import NORMAL, UNUSED, USER_DEFINED
from .vocabulary import Vocabulary, read_flag, read_numbers, read_texts


class SentencePiece:
    """The encoder for `tokenizer.ggml.model` "llama". A character without a token becomes its bytes."""

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        unknown = None if vocabulary.unknown is None else vocabulary.tokens[vocabulary.unknown]
        merges = _merges(vocabulary, metadata)
        self._tokenizer = Tokenizer(merging_model(vocabulary.ids, merges, byte_fallback=True, unk_token=unknown))
        self.lost_bytes: bytes | None = b"" if all(byte in vocabulary.ids for byte in BYTE_TOKENS) else None
        self.adds_space = read_flag(metadata, "tokenizer.ggml.add_space_prefix", True)

    def __call__(self, text: str) -> list[int]:
        if self.adds_space:
            text = " " + text
        return encode(self._tokenizer, text.replace(" ", SPACE))


def _merges(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The merges of the file if it has no scores, as in tokenizer.json; else those that follow from the scores."""
    if "tokenizer.ggml.scores" not in metadata and "tokenizer.ggml.merges" in metadata:
        return split_merges(read_texts(metadata, "tokenizer.ggml.merges"))
    return merges_of(vocabulary, read_numbers(metadata, "tokenizer.ggml.scores", len(vocabulary.tokens)).tolist())


def merges_of(vocabulary: Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Every way to join two tokens to a third, the best first. Control tokens are never joined from text."""
    ids, tokens, kinds = vocabulary.ids, vocabulary.tokens, vocabulary.kinds
    joined = [i for i, kind in enumerate(kinds) if kind in (NORMAL, USER_DEFINED, UNUSED) and len(tokens[i]) > 1]
    joined.sort(key=scores.__getitem__, reverse=True)
    return [
        (left, right)
        for i in joined
        for at in range(1, len(tokens[i]))
        if (left := tokens[i][:at]) in ids and (right := tokens[i][at:]) in ids
    ]

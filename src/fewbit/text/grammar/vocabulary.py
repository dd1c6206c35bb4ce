"""A tokenizer of fewbit as llguidance needs it: the bytes of every token, and how text is split into tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ...arrays import Words
from ..special import CONTROL, UNKNOWN, UNUSED
from ..tokenizer import Tokenizer
from .packages import grammar_extra

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_BEFORE = "\n"  # stands before a text for tokenizers that put a space at its start


class GrammarVocabulary:
    """The tokens of a model.

    Control tokens have no bytes that a grammar may use: they stand for themselves, `<|name|>` in a Lark grammar.

    Args:
        tokenizer: The tokenizer of the model.
        eos_ids: Tokens that end an output.
        size: Number of tokens that have a logit.
    """

    def __init__(self, tokenizer: Tokenizer, eos_ids: frozenset[int], size: int) -> None:
        self._tokenizer = tokenizer
        self.size = size
        self.num_words = -(-size // 32)
        self.eos_ids = sorted(token for token in eos_ids if 0 <= token < size)
        kinds = tokenizer.vocabulary.kinds
        known = range(min(size, tokenizer.vocab_size))
        self.special = [i for i in known if kinds[i] in (CONTROL, UNKNOWN) or i in eos_ids]
        self.bytes = [tokenizer.token_bytes(i) if kinds[i] != UNUSED else b"" for i in known]
        self.bytes += [b""] * (size - len(self.bytes))

    @cached_property
    def llguidance(self) -> LLTokenizer:
        """The tokenizer for llguidance."""
        with grammar_extra():
            from llguidance import LLTokenizer
        return LLTokenizer(_Wrapper(self), eos_token=self.eos_ids or None)  # type: ignore[arg-type]

    def encode(self, text: str) -> list[int]:
        """Tokens whose bytes are exactly those of a text: as the model expects them where possible."""
        for ids in self._encoded(text):
            if all(token < self.size for token in ids) and self._joined(ids) == text.encode():
                return ids
        return self.spell(text.encode())

    def spell(self, data: bytes) -> list[int]:
        """Tokens for any bytes, the longest first; they end where no token fits."""
        ids, at = [], 0
        while at < len(data):
            longest = min(self._longest, len(data) - at)
            token = next(
                (self._ids[part] for n in range(longest, 0, -1) if (part := data[at : at + n]) in self._ids), None
            )
            if token is None:
                break
            ids.append(token)
            at += len(self.bytes[token])
        return ids

    def marker(self, text: str) -> list[int]:
        """Tokens for a text that may be, or hold, a control token such as `</think>`."""
        ids = self._tokenizer.encode(text, parse_special=True)
        return ids if self._joined(ids) == text.encode() else self.encode(text)

    def starting_with(self, data: bytes) -> Iterator[int]:
        """The tokens that begin with some bytes and go on."""
        at = bisect_left(self._sorted, data, key=self.bytes.__getitem__)
        while at < len(self._sorted) and (token := self.bytes[self._sorted[at]]).startswith(data):
            if len(token) > len(data):
                yield self._sorted[at]
            at += 1

    def containing(self, data: bytes) -> list[int]:
        """The tokens that have some bytes inside and go on after them."""
        return [i for i in self._sorted if data in self.bytes[i] and not self.bytes[i].endswith(data)]

    @cached_property
    def is_complete(self) -> bool:
        """Whether there is a token for every ASCII character that can be seen, and so for most texts."""
        return all(bytes([byte]) in self._ids for byte in range(0x20, 0x7F))

    @cached_property
    def whitespace(self) -> Words:
        """The tokens that are nothing but a little whitespace."""
        return self.words(i for i in self._sorted if len(self.bytes[i]) <= 8 and self.bytes[i].isspace())

    def words(self, ids: Iterable[int]) -> Words:
        """A mask with the bits of these tokens."""
        bits = np.zeros(self.num_words * 32, np.uint8)
        bits[list(ids)] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def words_without(self, ids: Iterable[int]) -> Words:
        """A mask with the bits of all tokens but these."""
        return self.words(np.delete(np.arange(self.size), list(ids)).tolist())

    @cached_property
    def _sorted(self) -> list[int]:
        """Tokens with bytes, in the order of these."""
        special = set(self.special)
        return sorted((i for i, data in enumerate(self.bytes) if data and i not in special), key=self.bytes.__getitem__)

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {self.bytes[i]: i for i in reversed(self._sorted)}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=0)

    def _joined(self, ids: list[int]) -> bytes:
        return b"".join(self.bytes[token] for token in ids if token < self.size)

    def _encoded(self, text: str) -> Iterator[list[int]]:
        yield self._tokenizer.encode(text)
        before = self._tokenizer.encode(_BEFORE)
        ids = self._tokenizer.encode(_BEFORE + text)
        if ids[: len(before)] == before:
            yield ids[len(before) :]


class _Wrapper:
    """What llguidance asks of a tokenizer. It calls it for text that is forced."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.tokens = vocabulary.bytes
        self.special_token_ids = vocabulary.special
        self.eos_token_id = vocabulary.eos_ids[0] if vocabulary.eos_ids else None
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)

"""Tokenizer: text to token ids and back, built from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import cached_property
from os import PathLike
from typing import Any, Protocol

from ..errors import DtypeError, TokenizerError
from ..validation import to_integer
from .bpe import BytePairs
from .byte_level import token_decoder
from .pretokenizers import PreTokenizer, find_pre_tokenizer
from .sentencepiece import SentencePiece
from .special import CONTROL, UNKNOWN, UNUSED, USER_DEFINED
from .splits import pre_tokenizer_of
from .splitter import Splitter
from .unigram import Unigram
from .vocabulary import Vocabulary, read_flag, read_ids, read_text, read_texts, read_vocabulary
from .wordpiece import WordPiece

_FEW_ROWS = 127  # an embedding table may have this many rows without a token, or a sixteenth of its rows
_NOT_ALNUM = bytes(byte for byte in range(256) if not chr(byte).isalnum() or byte > 127)
_CUT_OUT = (CONTROL, UNKNOWN, USER_DEFINED)  # found in the text as they are, before the rest is encoded


class Encoder(Protocol):
    """Encodes text without special tokens. With `adds_space`, it puts a space before each text."""

    adds_space: bool
    lost_bytes: bytes | None  # bytes of a text that end up in no token; None: unknown

    def __call__(self, text: str) -> list[int]: ...


class Tokenizer:
    """Text to token ids and back.

    >>> metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
    ...             "tokenizer.ggml.tokens": ["l", "o", "w", "lo", "low", "<|im_end|>"],
    ...             "tokenizer.ggml.merges": ["l o", "lo w"]}
    >>> tokenizer = Tokenizer.from_metadata(metadata)
    >>> tokenizer.encode("lowlo")
    [4, 3]
    >>> tokenizer.decode([4, 3])
    'lowlo'
    >>> tokenizer.encode("low<|im_end|>", parse_special=True)
    [4, 5]
    >>> tokenizer.end_of_generation
    frozenset({5})
    """

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self.vocabulary = vocabulary
        self.chat_templates = _chat_templates(metadata)
        pre = _pre_tokenizer(vocabulary.model, metadata)
        self._encoder = _encoder(vocabulary, metadata, pre)
        self._strip_left, self._strip_right = _stripping(vocabulary, metadata)
        self._byte_level = pre is not None and pre.byte_level
        self._decode_token = token_decoder(vocabulary, self._byte_level)
        self._bytes: dict[int, bytes] = {}  # of tokens that were decoded before
        self._before, self._after = _surroundings(vocabulary, metadata, pre)
        self._between = _between(vocabulary, metadata)

    @classmethod
    def from_gguf(cls, path: str | PathLike[str]) -> Tokenizer:
        """The tokenizer of a GGUF file."""
        from ..files.gguf import read_gguf

        with read_gguf(path) as file:
            return cls.from_metadata(file.metadata)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer that the `tokenizer.*` keys of a GGUF file describe."""
        return cls(read_vocabulary(metadata), metadata)

    def encode(self, text: str, add_special: bool = False, parse_special: bool = False, *, mark: str = "") -> list[int]:
        """The token ids of a text.

        Args:
            text: Any text.
            add_special: Add the tokens that the model expects around a text, such as BOS.
            parse_special: Text that spells a control token becomes that token. Do not use it on untrusted text.
            mark: A character that is not part of the text. A control token with it inside stays plain text.
        """
        _check_text(text)
        splitter = self._all_special if parse_special else self._user_defined
        ids: list[int] = []
        for part in splitter.split(text):
            if isinstance(part, int):
                ids.append(part)
            elif mark:
                ids += self.encode(part.replace(mark, ""))
            else:
                ids += self._encoder(part)
        return [*self._before, *ids, *self._after] if add_special else ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int], list[int]]:
        """The token ids of two texts that are read together: up to the second text, its own, and those after it."""
        return [*self.encode(first, add_special=True), *self._between], self.encode(second), [*self._after]

    def truncate(self, ids: list[int], length: int) -> list[int]:
        """The first `length` token ids of a text; those that `add_special` put after it stay.

        >>> metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "</s>"],
        ...             "tokenizer.ggml.merges": [], "tokenizer.ggml.eos_token_id": 2,
        ...             "tokenizer.ggml.add_eos_token": True}
        >>> tokenizer = Tokenizer.from_metadata(metadata)
        >>> tokenizer.truncate(tokenizer.encode("abab", add_special=True), 3)
        [0, 1, 2]
        """
        after = self._after if self._after and ids[-len(self._after) :] == self._after else []
        if len(ids) <= length or length <= len(after):
            return ids[:length]
        return ids[: length - len(after)] + after

    def min_tokens(self, text: str) -> int:
        """A lower bound on the number of tokens of a text, without tokenizing it; 0 where none is known.

        No token is longer than the longest, and none has more ASCII letters and digits than one of them has.
        """
        lost = self._encoder.lost_bytes
        if lost is None:
            return 0
        if self._strip_left or self._strip_right:
            lost += b" \t\n\v\f\r"
        data = text.encode("utf-8", "ignore").translate(None, lost)
        longest, most = self._longest
        return max(-(-len(data) // longest), -(-len(_alnums(data)) // max(1, most)))

    def fitted(self, rows: int) -> Tokenizer:
        """A tokenizer for a model whose embedding table is padded.

        Rows past the last token become unused tokens.

        Args:
            rows: Rows of the embedding table.

        Raises:
            TokenizerError: The sizes differ too much: the tokenizer belongs to another model.
        """
        missing = rows - self.vocab_size
        if missing > max(_FEW_ROWS, rows // 16) or any(kind != UNUSED for kind in self.vocabulary.kinds[rows:]):
            raise TokenizerError(
                f"the tokenizer has {self.vocab_size} tokens and the model {rows}, so they do not belong together; "
                "fetch the file again, or convert the model again with its own tokenizer"
            )
        if missing <= 0:
            return self
        fitted = copy(self)
        fitted.vocabulary = self.vocabulary.padded(rows)
        fitted._decode_token = token_decoder(fitted.vocabulary, self._byte_level)
        fitted._bytes = {}
        return fitted

    def control_texts(self) -> list[str]:
        """The texts that become tokens with `parse_special` only."""
        return [self.vocabulary.tokens[i] for i in self.vocabulary.of_kind(CONTROL, UNKNOWN)]

    def decode(self, ids: Iterable[int], skip_special: bool = False, continues: bool = False) -> str:
        """The text of token ids. Bytes that are not UTF-8 become U+FFFD.

        Args:
            ids: Token ids.
            skip_special: Leave out control tokens.
            continues: The ids continue an earlier text: a leading space that the vocabulary adds is kept.
        """
        return self.decode_bytes(ids, skip_special, continues).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int], skip_special: bool = False, continues: bool = False) -> bytes:
        """`decode` without the last step: bytes, which may end in the middle of a character."""
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise DtypeError(f"token ids must be a list of integers, not {type(ids).__name__}")
        parts, starts = [], not continues
        for token in ids:
            part, starts = self.decode_next(token, starts, skip_special)
            parts.append(part)
        return b"".join(parts)

    def decode_next(self, token: int, starts: bool, skip_special: bool) -> tuple[bytes, bool]:
        """Decode one token of a sequence.

        Args:
            token: Token id.
            starts: The token is the first of a text, or follows a special token.
            skip_special: Give no bytes for control tokens.

        Returns:
            The bytes that the token adds, and `starts` of the next token.
        """
        data = self.token_bytes(token)
        kind = self.vocabulary.kinds[token]
        if kind in _CUT_OUT:
            return (b"" if skip_special and kind != USER_DEFINED else data), True
        if skip_special and kind == UNUSED:
            return b"", starts
        return data.removeprefix(b" ") if starts and self._encoder.adds_space else data, False

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        try:
            return self._bytes[token]
        except KeyError:
            self._check(token)
            return self._bytes.setdefault(token, self._decode_token(token))

    def token_text(self, token: int) -> str:
        """The token as the vocabulary writes it."""
        self._check(token)
        return self.vocabulary.tokens[token]

    def token_id(self, text: str) -> int | None:
        """The id of a token by its text in the vocabulary, or None."""
        return self.vocabulary.ids.get(text)

    def is_special(self, token: int) -> bool:
        """Whether a token is a control token, the unknown token or unused."""
        self._check(token)
        return self.vocabulary.kinds[token] in (CONTROL, UNKNOWN, UNUSED)

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return len(self.vocabulary.tokens)

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, or None."""
        return self.vocabulary.bos

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text, or None."""
        return self.vocabulary.eos

    @property
    def bos_token(self) -> str:
        """The text of the token that begins a text; empty if there is none."""
        return "" if self.bos_id is None else self.token_text(self.bos_id)

    @property
    def eos_token(self) -> str:
        """The text of the token that ends a text; empty if there is none."""
        return "" if self.eos_id is None else self.token_text(self.eos_id)

    @property
    def end_of_generation(self) -> frozenset[int]:
        """The ids of all tokens that end an output."""
        return self.vocabulary.end_of_generation

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocabulary.model}, {self.vocab_size} tokens)"

    @cached_property
    def _user_defined(self) -> Splitter:
        return self._splitter(USER_DEFINED)

    @cached_property
    def _all_special(self) -> Splitter:
        return self._splitter(*_CUT_OUT)

    @cached_property
    def _longest(self) -> tuple[int, int]:
        """Bytes of the longest token, and ASCII letters and digits of the one that has most."""
        tokens = [text.encode() for text in self.vocabulary.tokens]
        return max(map(len, tokens)), max(len(_alnums(token)) for token in tokens)

    def _splitter(self, *kinds: int) -> Splitter:
        tokens = {self.vocabulary.tokens[i]: i for i in self.vocabulary.of_kind(*kinds)}
        return Splitter(tokens, self._strip_left, self._strip_right)

    def _check(self, token: int) -> None:
        if not 0 <= to_integer(token, "a token id") < self.vocab_size:
            raise TokenizerError(f"there is no token {token} in a vocabulary of {self.vocab_size}")


def _alnums(data: bytes) -> bytes:
    return data.translate(None, _NOT_ALNUM)


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise DtypeError(f"a text must be a str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(f"the text holds half a character, {text[error.start]!r} at {error.start}") from None


def _pre_tokenizer(model: str, metadata: Mapping[str, Any]) -> PreTokenizer | None:
    if model == "gemma4":
        return find_pre_tokenizer("gemma4")
    if model == "gpt2" and metadata.get("tokenizer.ggml.pre") == "regex":  # of a tokenizer.json
        key, whole_words = "tokenizer.fewbit.splits", read_flag(metadata, "tokenizer.fewbit.ignore_merges", False)
        return pre_tokenizer_of(read_texts(metadata, key) if key in metadata else [], whole_words)
    if model == "gpt2":
        return find_pre_tokenizer(read_text(metadata, "tokenizer.ggml.pre", "default"))
    return None


def _encoder(vocabulary: Vocabulary, metadata: Mapping[str, Any], pre: PreTokenizer | None) -> Encoder:
    if pre is not None:
        return BytePairs(vocabulary, metadata, pre)
    encoders: dict[str, Callable[[Vocabulary, Mapping[str, Any]], Encoder]]
    encoders = {"llama": SentencePiece, "bert": WordPiece, "t5": Unigram}
    if vocabulary.model not in encoders:
        known = ", ".join(("gpt2", "gemma4", *encoders))
        raise TokenizerError(f"unknown tokenizer.ggml.model {vocabulary.model!r}; known are {known}")
    return encoders[vocabulary.model](vocabulary, metadata)


def _surroundings(
    vocabulary: Vocabulary, metadata: Mapping[str, Any], pre: PreTokenizer | None
) -> tuple[list[int], list[int]]:
    """The tokens before and after a text with `add_special`."""
    if vocabulary.model == "bert":
        return _present(vocabulary.bos), _present(vocabulary.separator)
    bos = pre.add_bos if pre is not None else vocabulary.model == "llama"
    eos = vocabulary.model == "t5"
    add_bos = read_flag(metadata, "tokenizer.ggml.add_bos_token", bos)
    add_eos = read_flag(metadata, "tokenizer.ggml.add_eos_token", eos)
    return _present(vocabulary.bos if add_bos else None), _present(vocabulary.eos if add_eos else None)


def _between(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> list[int]:
    """The tokens that come between two texts, beside the one that ends the first."""
    architecture = metadata.get("general.architecture")
    if architecture == "modern-bert" or not read_flag(metadata, "tokenizer.ggml.add_sep_token", False):
        return []  # llama.cpp's converter sets the flag for every ModernBERT
    return _present(vocabulary.eos if vocabulary.separator is None else vocabulary.separator)


def _present(token: int | None) -> list[int]:
    return [] if token is None else [token]


def _stripping(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """The special tokens that swallow the whitespace before them and after them. GGUF files do not say it."""
    sides = [f"tokenizer.fewbit.strip_{side}" for side in ("left", "right")]
    if any(key in metadata for key in sides):
        left, right = (read_ids(metadata, key, len(vocabulary.tokens)) for key in sides)
        return left, right
    name = str(metadata.get("general.name", "")).lower()
    if "phi-3" in name or "phi3" in name:
        keep = ("<unk>", "<s>", "<|endoftext|>")
        special = vocabulary.of_kind(*_CUT_OUT)
        return [], [i for i in special if vocabulary.tokens[i] not in keep]
    pre = str(metadata.get("tokenizer.ggml.pre", ""))
    arch = str(metadata.get("general.architecture", ""))
    if pre in ("jina-v2-de", "jina-v2-es", "jina-v2-code") or arch in ("nomic-bert-moe", "jina-bert-v3"):
        return _present(vocabulary.ids.get("<mask>")), []
    if "modern-bert" in name:
        return _present(vocabulary.ids.get("[MASK]")), []
    return [], []


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The chat templates of a file by name; the usual one is "default"."""
    key = "tokenizer.chat_template"
    found = {name.removeprefix(f"{key}."): metadata[name] for name in metadata if name.startswith(f"{key}.")}
    if key in metadata:
        found["default"] = metadata[key]
    return {name: source for name, source in found.items() if isinstance(source, str)}

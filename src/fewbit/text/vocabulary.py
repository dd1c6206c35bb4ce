"""The vocabulary in the metadata of a GGUF file, read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import TokenizerError
from .special import END_ROLES, NORMAL, UNUSED, end_tokens, mark_control

_UNSET = (-1, 2**32 - 1)  # how files write "no such token"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens, what kind each is, and which of them have a role."""

    model: str
    tokens: list[str]
    ids: dict[str, int]
    kinds: bytearray
    end_of_generation: frozenset[int]
    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    separator: int | None = None

    def of_kind(self, *kinds: int) -> list[int]:
        """The ids of all tokens of these kinds."""
        return np.flatnonzero(np.isin(np.frombuffer(self.kinds, np.uint8), kinds)).tolist()

    def padded(self, size: int) -> Vocabulary:
        """The vocabulary padded with unused tokens, which no text is encoded to."""
        padding = [f"[PAD{i}]" for i in range(len(self.tokens), size)]
        kinds = self.kinds + bytearray([UNUSED]) * len(padding)
        return replace(self, tokens=self.tokens + padding, kinds=kinds)


_ROLES = ("bos", "eos", "unknown", "separator")
_DEFAULTS: dict[str, tuple[int | None, ...]] = {  # where a file does not say
    "llama": (1, 2, 0, None),
    "bert": (101, None, 100, 102),
    "t5": (None, 1, 2, None),
}
# Which role each `tokenizer.ggml.*_token_id` gives. The separator is misspelled in GGUF itself.
_ROLE_WORDS = [("bos", "cls"), ("bos", "bos"), ("unknown", "unknown"), ("separator", "seperator")]
_ROLE_WORDS += [(role, role) for role in END_ROLES]


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary that the keys `tokenizer.ggml.*` describe.

    >>> vocabulary = read_vocabulary({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "</s>"],
    ...                               "tokenizer.ggml.token_type": [1, 1, 3], "tokenizer.ggml.eos_token_id": 2})
    >>> vocabulary.ids["b"], vocabulary.eos, vocabulary.end_of_generation
    (1, 2, frozenset({2}))
    """
    model = read_text(metadata, "tokenizer.ggml.model")
    tokens = read_texts(metadata, "tokenizer.ggml.tokens")
    if not tokens:
        raise TokenizerError("tokenizer.ggml.tokens is empty")
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    kinds = _read_kinds(metadata, len(tokens))
    mark_control(ids, kinds)
    roles = _read_roles(metadata, model, len(tokens))
    ends = end_tokens(ids, kinds) | {role for name in END_ROLES if (role := roles[name]) is not None}
    ends.update(read_ids(metadata, "tokenizer.fewbit.eos_token_ids", len(tokens)))
    return Vocabulary(model, tokens, ids, kinds, frozenset(ends), **{role: roles[role] for role in _ROLES})


def _read_kinds(metadata: Mapping[str, Any], count: int) -> bytearray:
    given = metadata.get("tokenizer.ggml.token_type")
    if given is None:
        return bytearray([NORMAL]) * count
    kinds = read_numbers(metadata, "tokenizer.ggml.token_type", count)
    return bytearray(np.clip(kinds, 0, 255).astype(np.uint8).tobytes())


def _read_roles(metadata: Mapping[str, Any], model: str, count: int) -> dict[str, int | None]:
    defaults = _DEFAULTS.get(model, (None,) * len(_ROLES))
    roles = dict.fromkeys((*_ROLES, *END_ROLES))
    roles |= {role: token for role, token in zip(_ROLES, defaults, strict=True) if token is not None and token < count}
    for role, word in _ROLE_WORDS:
        key = f"tokenizer.ggml.{word}_token_id"
        if key in metadata:
            roles[role] = _read_token(metadata[key], key, count)
    return roles


def _read_token(value: Any, key: str, count: int) -> int | None:
    if isinstance(value, (int, np.integer)):
        if value in _UNSET:
            return None
        if 0 <= value < count:
            return int(value)
    raise TokenizerError(f"{key} is {value!r}, but the vocabulary has the tokens 0 to {count - 1}")


def read_ids(metadata: Mapping[str, Any], key: str, count: int) -> list[int]:
    """A key that holds some tokens; none if it is not there."""
    given = np.asarray(metadata.get(key, ()))
    if given.size and (given.ndim != 1 or given.dtype.kind not in "iu" or not 0 <= given.min() <= given.max() < count):
        raise TokenizerError(f"{key} is a list of tokens from 0 to {count - 1}")
    return [int(token) for token in given]


def read_text(metadata: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """A key that holds a string."""
    value = metadata.get(key, default)
    if value is None:
        raise TokenizerError(f"the metadata has no {key}")
    if not isinstance(value, str):
        raise TokenizerError(f"{key} is a string, not {value!r}")
    return value


def read_flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    """A key that holds true or false."""
    value = metadata.get(key)
    if value is None:
        return default
    if not isinstance(value, (int, np.bool_, np.integer)) or value not in (0, 1):
        raise TokenizerError(f"{key} is true or false, not {value!r}")
    return bool(value)


def read_texts(metadata: Mapping[str, Any], key: str) -> list[str]:
    """A key that holds a list of strings."""
    values = metadata.get(key)
    if values is None:
        raise TokenizerError(f"the metadata has no {key}")
    if isinstance(values, (str, bytes)) or not isinstance(values, (Sequence, np.ndarray)):
        raise TokenizerError(f"{key} is a list of strings, not {type(values).__name__}")
    texts = values if type(values) is list else list(values)
    try:
        "".join(texts).encode()  # the fastest way to look at them all
    except (TypeError, UnicodeEncodeError) as error:
        raise TokenizerError(f"{key} is a list of strings: {error}") from None
    return texts


def read_numbers(metadata: Mapping[str, Any], key: str, count: int) -> np.ndarray[Any, Any]:
    """A key that holds a number for each token."""
    values = metadata.get(key)
    if values is None:
        raise TokenizerError(f"the metadata has no {key}")
    numbers = np.asarray(values)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iuf":
        raise TokenizerError(f"{key} is a list of numbers, not {type(values).__name__} of {numbers.dtype}")
    if numbers.size != count:
        raise TokenizerError(f"{key} has {numbers.size} entries for {count} tokens")
    if np.isnan(numbers).any():
        raise TokenizerError(f"{key} holds NaN")
    return numbers

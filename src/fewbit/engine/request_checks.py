"""What an engine refuses before it begins, with the figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ..arrays import Floats, Ints
from ..errors import DtypeError, RequestError
from ..validation import to_integer, to_size, to_tokens


def check_count(value: int, what: str, most: int | None = None, least: int = 1) -> int:
    """
    >>> check_count(65, "n", 64)
    Traceback (most recent call last):
        ...
    fewbit.errors.RequestError: n must be from 1 to 64, got 65
    """
    return to_size(value, what, least, most, RequestError)


def check_at_least_zero(value: int, what: str) -> int:
    return check_count(value, what, least=0)


def check_logprobs(logprobs: int, vocab: int, what: str = "logprobs") -> int:
    number = to_integer(logprobs, what)
    if not 0 <= number <= vocab:
        raise RequestError(f"{what} must be from 0 to {vocab}, the size of the vocabulary, got {number}")
    return number


def check_bias(bias: Mapping[int, float] | None, vocab: int) -> tuple[Ints, Floats] | None:
    """Token ids and what is added to their logits.

    >>> check_bias({3: -100.0}, vocab=8)
    (array([3], dtype=int32), array([-100.], dtype=float32))
    """
    if bias is None:
        return None
    if not isinstance(bias, Mapping):
        raise DtypeError(f"logit_bias must be a dict such as {{token: -1.5}}, not {type(bias).__name__}")
    if not bias:
        return None
    ids = [to_integer(token, "a token of logit_bias") for token in bias]
    for token in ids:
        if not 0 <= token < vocab:
            raise RequestError(f"logit_bias: tokens must be from 0 to {vocab - 1}, got {token}")
    try:
        values = np.array([float(value) for value in bias.values()], np.float32)
    except (TypeError, ValueError):
        raise RequestError("the values of logit_bias must be numbers") from None
    if np.isnan(values).any() or np.isposinf(values).any():
        raise RequestError("the values of logit_bias must be finite, or -inf for a token that must not occur")
    return np.array(ids, np.int32), values


def check_tokens(text: Iterable[int], vocab: int) -> list[int]:
    """Tokens that the model has."""
    tokens = to_tokens(text).tolist()
    if not tokens:
        raise RequestError("the text is empty: it has no tokens")
    if max(tokens) >= vocab:
        raise RequestError(f"tokens must be from 0 to {vocab - 1}, got {max(tokens)}")
    return tokens


def check_eos(eos_ids: Iterable[int], vocab: int, min_tokens: int) -> frozenset[int]:
    """Tokens that end an output. Where it must have some tokens, not all of the vocabulary."""
    found = frozenset(check_tokens(eos_ids, vocab))
    if min_tokens and len(found) >= vocab:
        raise RequestError("min_tokens cannot be kept: every token of the model ends the output")
    return found

"""What an engine refuses before it begins, with the figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ..arrays import Floats, Ints
from ..cache.validation import to_tokens
from ..errors import DtypeError, RequestError
from ..validation import to_integer


def check_count(value: int, what: str, most: int | None = None) -> int:
    """
    >>> check_count(65, "n", 64)
    Traceback (most recent call last):
        ...
    fewbit.errors.RequestError: n must be from 1 to 64, got 65
    """
    number = to_integer(value, what)
    if number < 1 or (most is not None and number > most):
        limits = "at least 1" if most is None else f"from 1 to {most}"
        raise RequestError(f"{what} must be {limits}, got {number}")
    return number


def check_at_least_zero(value: int, what: str) -> int:
    number = to_integer(value, what)
    if number < 0:
        raise RequestError(f"{what} must be at least 0, got {number}")
    return number


def check_logprobs(logprobs: int, vocab: int) -> int:
    number = to_integer(logprobs, "logprobs")
    if not 0 <= number <= vocab:
        raise RequestError(f"logprobs must be from 0 to {vocab}, the size of the vocabulary, got {number}")
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
            raise RequestError(f"logit_bias: there is no token {token}: the model has the tokens 0 to {vocab - 1}")
    try:
        values = np.array([float(value) for value in bias.values()], np.float32)
    except (TypeError, ValueError):
        raise RequestError("the values of logit_bias must be numbers") from None
    if np.isnan(values).any() or np.isposinf(values).any():
        raise RequestError("the values of logit_bias must be finite, or -inf for a token that must not occur")
    return np.array(ids, np.int32), values


def check_type(value: object, kind: type | tuple[type, ...], what: str) -> None:
    """
    >>> check_type(5, str, "namespace")
    Traceback (most recent call last):
        ...
    fewbit.errors.DtypeError: namespace must be str, not int
    """
    if not isinstance(value, kind):
        names = [one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,))]
        raise DtypeError(f"{what} must be {' or '.join(names)}, not {type(value).__name__}")


def check_tokens(text: Iterable[int], vocab: int) -> list[int]:
    """Tokens that the model has."""
    tokens = to_tokens(text).tolist()
    if not tokens:
        raise RequestError("the text is empty: it has no tokens")
    if max(tokens) >= vocab:
        raise RequestError(f"there is no token {max(tokens)}: the model has the tokens 0 to {vocab - 1}")
    return tokens

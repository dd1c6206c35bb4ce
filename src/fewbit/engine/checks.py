"""What an engine refuses before it begins, with the figures."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index

from ..cache.arguments import to_tokens
from ..errors import DtypeError, RequestError
from .contract import Runner


def check_number(value: int, what: str) -> int:
    try:
        return index(value)
    except TypeError:
        raise DtypeError(f"{what} is a whole number, not {value!r}") from None


def check_count(value: int, what: str, most: int | None = None) -> int:
    """
    >>> check_count(65, "n", 64)
    Traceback (most recent call last):
        ...
    fewbit.errors.RequestError: n is at least 1 and at most 64, 65 was given
    """
    number = check_number(value, what)
    if number < 1 or (most is not None and number > most):
        limit = "" if most is None else f" and at most {most}"
        raise RequestError(f"{what} is at least 1{limit}, {number} was given")
    return number


def check_seed(seed: int) -> int:
    number = check_number(seed, "seed")
    if number < 0:
        raise RequestError(f"seed is not negative, {number} was given")
    return number


def check_top(logprobs: int, vocab: int) -> int:
    number = check_number(logprobs, "logprobs")
    if not 0 <= number <= vocab:
        raise RequestError(f"logprobs is from 0 to {vocab}, the number of tokens that there are; {number} was given")
    return number


def check_prompt(prompt: Iterable[int], runner: Runner, limit: int) -> list[int]:
    """Tokens that the model has, and that leave room for an answer in a sequence of `limit` tokens."""
    tokens = check_tokens(prompt, runner)
    if len(tokens) >= limit:
        raise RequestError(f"a prompt of {len(tokens)} tokens leaves no room for an answer: {_room(runner, limit)}")
    return tokens


def check_text(text: Iterable[int], runner: Runner, limit: int) -> list[int]:
    """Tokens that the model has, and that fit into a sequence of `limit` tokens."""
    tokens = check_tokens(text, runner)
    if len(tokens) > limit:
        raise RequestError(f"a text of {len(tokens)} tokens is too long: {_room(runner, limit)}")
    return tokens


def check_tokens(text: Iterable[int], runner: Runner) -> list[int]:
    tokens = to_tokens(text).tolist()
    if not tokens:
        raise RequestError("the text is empty: it has no tokens")
    if max(tokens) >= runner.vocab:
        raise RequestError(f"there is no token {max(tokens)}: the model has the tokens 0 to {runner.vocab - 1}")
    return tokens


def _room(runner: Runner, limit: int) -> str:
    return f"the context holds {limit} tokens" if limit == runner.ctx else f"the cache holds {limit} tokens"

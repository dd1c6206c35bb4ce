"""Limits on the size, depth and compile time of schemas and grammars, which may come from strangers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from ...errors import RequestError
from .packages import grammar_extra

if TYPE_CHECKING:
    from llguidance import LLParserLimits

MAX_SCHEMA_BYTES = 2 << 20
MAX_GRAMMAR_BYTES = 1 << 18
MAX_REGEX_BYTES = 1 << 14
MAX_VALUES = 500_000  # in a schema
MAX_DEPTH = 120  # of a schema; the parser of llguidance goes a little deeper
MAX_OPTIONS = 10_000  # choices, and values of all enums of a schema
MAX_PROPERTIES = 1_000  # of one object: compile time grows with the square
MAX_SECONDS = 2.0  # a grammar within the limits above takes less than one on a machine that is not busy
THREADS = 4  # that compile; what is given up runs on until llguidance's own limits end it

T = TypeVar("T")


def check_bytes(text: str, what: str, limit: int) -> None:
    """Refuse a text that is too long.

    >>> check_bytes("abc", "the regex", 2)
    Traceback (most recent call last):
    fewbit.errors.RequestError: the regex has 3 bytes, the limit is 2
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise RequestError(f"{what} holds half a character, {text[error.start]!r} at {error.start}") from None
    if size > limit:
        raise RequestError(f"{what} has {size} bytes, the limit is {limit}")


@cache
def parser_limits() -> LLParserLimits:
    """What llguidance may spend on a grammar, and on one token."""
    with grammar_extra():
        from llguidance import LLParserLimits
    return LLParserLimits(
        initial_lexer_fuel=500_000, step_lexer_fuel=1_000_000, max_lexer_states=50_000, verbose_errors=False
    )


def bounded(compile_grammar: Callable[[], T]) -> T:
    """Run a function that compiles a grammar, in another thread. llguidance releases the GIL meanwhile."""
    future = _threads().submit(compile_grammar)
    try:
        return future.result(MAX_SECONDS)
    except FutureTimeout:
        future.cancel()
        raise RequestError(f"the grammar takes more than {MAX_SECONDS:g} s to compile; make it smaller") from None


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "fewbit-grammar")

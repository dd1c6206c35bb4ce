"""Regexes and formats of JSON schemas, matched as the grammar matches them: by llguidance, in linear time.

Regexes that it does not support, such as lookarounds, are matched by the package regex, which can be stopped.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...errors import RequestError
from .holding import is_supported, schema_grammar
from .limits import check_bytes, parser_limits
from .packages import grammar_extra

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_BACKTRACKING_BYTES = 1024  # of a regex that may take exponential time to compile or match
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")


def has_format(text: str, name: str) -> bool:
    """Whether a text has one of `FORMATS`.

    >>> has_format("2024-02-29", "date"), has_format("29.2.2024", "date")
    (True, False)
    """
    return _matches(_matcher("format", name), text)


def search(pattern: str, text: str, seconds: float) -> bool:
    """Whether a regex matches somewhere in a text.

    >>> search("^a+$", "aaa", 1), search("^(?!b)", "b", 1)
    (True, False)

    Raises:
        TimeoutError: It took longer than `seconds`.
    """
    if _is_supported(pattern):
        return _matches(_matcher("pattern", pattern), text)
    return _backtracking(pattern).search(text, timeout=max(seconds, 0.001)) is not None


def check_pattern(pattern: str) -> None:
    """Refuse a regex that nothing here can match.

    >>> check_pattern("(?!a")
    Traceback (most recent call last):
    fewbit.errors.RequestError: the pattern '(?!a' is not a valid regex: missing )
    """
    if not _is_supported(pattern):
        _backtracking(pattern)


@lru_cache(maxsize=256)
def _is_supported(pattern: str) -> bool:
    return is_supported(pattern)


@lru_cache(maxsize=256)
def _matcher(keyword: str, value: str) -> LLMatcher:
    """A matcher for JSON strings, byte by byte."""
    with grammar_extra():
        from llguidance import LLMatcher, LLTokenizer
    grammar = schema_grammar(json.dumps({"type": "string", keyword: value}))
    return LLMatcher(LLTokenizer("byte"), grammar, log_level=0, limits=parser_limits())


@lru_cache(maxsize=256)
def _backtracking(pattern: str) -> Any:
    check_bytes(pattern, f"the pattern {pattern!r:.40}, which llguidance does not support,", MAX_BACKTRACKING_BYTES)
    with grammar_extra():
        import regex
    try:
        return regex.compile(pattern)
    except RecursionError:
        raise RequestError(f"the pattern {pattern!r:.80} is nested too deeply") from None
    except regex.error as error:
        raise RequestError(f"the pattern {pattern!r:.80} is not a valid regex: {error.msg}") from None


def _matches(matcher: LLMatcher, text: str) -> bool:
    matcher = matcher.deep_copy()
    data = list(json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f").encode("utf-8", "surrogatepass"))
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()

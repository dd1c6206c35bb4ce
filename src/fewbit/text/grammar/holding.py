"""What of a JSON schema a grammar of llguidance holds, and what is left to a check of the finished text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...errors import RequestError
from .limits import bounded, parser_limits
from .packages import grammar_extra
from .schema import nodes_of, without_patterns

STYLE = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False, "lenient": True}

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_COUNT = re.compile(r" \(\d+ times\)$")


class HeldSchema(NamedTuple):
    """A schema for llguidance, and the names of the features that it does not hold."""

    source: str
    unheld: tuple[str, ...]


def styled(schema: Any) -> str:
    """A schema as llguidance is to read it: spaces as `json.dumps` writes them, and unheld features left out.

    It may stand after `%json` in a Lark grammar.

    >>> styled({"type": "null"})
    '{"type": "null", "x-guidance": {"item_separator": ", ", ... "lenient": true}}'
    """
    return json.dumps({**schema, "x-guidance": STYLE}, ensure_ascii=False)


def schema_grammar(styled_schema: str) -> str:
    """A grammar of llguidance for a schema."""
    return f'{{"grammars": [{{"json_schema": {styled_schema}}}]}}'


def unforced(source: str) -> str:
    """A grammar in which no token is forced, for vocabularies that cannot write every text.

    >>> unforced("start: /a/")
    '%llguidance {"no_forcing": true}\\nstart: /a/'
    """
    option = '%llguidance {"no_forcing": true}\n'
    if not source.startswith("{"):
        return option + source
    grammars = [{"lark_grammar": f"{option}start: @schema"}, {"name": "schema", **json.loads(source)["grammars"][0]}]
    return json.dumps({"grammars": grammars})


def hold(schema: dict[str, Any]) -> HeldSchema:
    """Find what of a schema can be held. Patterns that llguidance does not support are left out."""
    source, patterns = styled(schema), set[str]()
    failed, messages = _validated(source)
    if failed:
        patterns = {pattern for pattern in _patterns(schema) if not is_supported(pattern)}
        if patterns:
            source = styled(without_patterns(schema, patterns))
            failed, messages = _validated(source)
    if failed:
        raise RequestError(f"the JSON schema cannot be turned into a grammar: {one_sentence(messages[0])}")
    features = dict.fromkeys(feature for message in messages for feature in _features(message))
    return HeldSchema(source, (*features, *(f"pattern {pattern:.60}" for pattern in sorted(patterns))))


def is_supported(pattern: str) -> bool:
    """Whether llguidance has the syntax of a regex. It has no lookarounds and no backreferences.

    >>> is_supported("^a+$"), is_supported("^(?!b)")
    (True, False)
    """
    return not _validated(styled({"type": "string", "pattern": pattern}))[0]


def one_sentence(message: str) -> str:
    """The part of an error of llguidance that says what is wrong.

    >>> one_sentence("regex parse error:\\n    (a\\n    ^\\nerror: unclosed group\\n<non-verbose/>")
    'regex parse error: unclosed group'
    """
    lines = [line.strip() for line in message.replace("<non-verbose/>", "").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    head = lines[0] if lines else "unknown error"
    return f"{head.rstrip(':')}: {errors[0]}"[:300] if errors else head[:300]


def _validated(styled_schema: str) -> tuple[bool, list[str]]:
    """Whether a schema fails, and the error or the warnings."""
    with grammar_extra():
        from llguidance import LLMatcher
    grammar, limits = schema_grammar(styled_schema), parser_limits()
    return bounded(lambda: LLMatcher.validate_grammar_with_warnings(grammar, limits=limits))


def _patterns(schema: dict[str, Any]) -> set[str]:
    return {node.value for node in nodes_of(schema) if node.keyword == "pattern" and isinstance(node.value, str)}


def _features(warning: str) -> Iterator[str]:
    """The features that a warning of llguidance is about."""
    text = _COUNT.sub("", warning)
    if text.startswith("Unimplemented keys"):
        yield from (json.loads(f'"{name}"') for name in _QUOTED.findall(text))
    elif text.startswith("Unknown format: "):
        yield f"format {text.removeprefix('Unknown format: ')}"
    elif text.startswith("oneOf"):
        yield "oneOf"
    elif text.startswith("min/maxProperties"):
        yield "minProperties and maxProperties beside optional properties"
    else:
        yield one_sentence(text)

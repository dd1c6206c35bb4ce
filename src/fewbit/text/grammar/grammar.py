"""What an output must look like: a JSON schema, a regex, one of several texts, or a grammar in Lark or GBNF."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...errors import RequestError
from .gbnf import lark_of_gbnf
from .holding import HeldSchema, hold, schema_grammar, styled
from .limits import MAX_GRAMMAR_BYTES, MAX_OPTIONS, MAX_REGEX_BYTES, check_bytes
from .packages import grammar_extra
from .schema import read_schema

if TYPE_CHECKING:
    from .schema_validator import SchemaValidator

_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)


@dataclass(frozen=True)
class Grammar:
    """What an output must look like. `GrammarCompiler` makes constraints of it.

    Attributes:
        kind: "schema", "regex", "choice" or "lark".
        text: The schema as JSON text, the regex, the options as a JSON array, or the Lark grammar.

    >>> grammar = Grammar.schema({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})
    >>> grammar.unheld
    ('uniqueItems',)
    >>> grammar.check("[1, 2]")
    >>> grammar.check("[1, 1]")
    '$: [1, 1] has non-unique elements'
    """

    kind: str
    text: str

    @classmethod
    def schema(cls, schema: Mapping[str, Any] | bool | str, strict: bool = False) -> Grammar:
        """JSON text that a JSON schema allows.

        Args:
            schema: The schema, or its JSON text.
            strict: Refuse schemas with features that only a check of the finished text can hold (`unheld`).

        Raises:
            RequestError: The schema is invalid or over a limit, or `strict` and not all of it can be held.
        """
        grammar = cls("schema", read_schema(schema))
        if strict and grammar.unheld:
            raise RequestError(
                f"the schema uses {', '.join(grammar.unheld)}, which the grammar cannot hold while the text is "
                "written; leave it out, or do not ask for strict"
            )
        return grammar

    @classmethod
    def json(cls) -> Grammar:
        """Any JSON object."""
        return cls("schema", '{"type": "object"}')

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        r"""Text that a regex matches as a whole, in the syntax of Rust's regex crate: no lookarounds or backreferences.

        `\d` is a digit from 0 to 9; `\w` and `\s` are those of Unicode.

        >>> Grammar.regex(r"\d+(\.\d+)?").kind
        'regex'
        """
        _check_text(pattern, "a regex")
        check_bytes(pattern, "the regex", MAX_REGEX_BYTES)
        return cls("regex", pattern)

    @classmethod
    def choice(cls, options: Iterable[str]) -> Grammar:
        """One of several texts.

        >>> Grammar.choice(["yes", "no"]).text
        '["yes", "no"]'
        """
        listed = None if isinstance(options, str | bytes | Mapping) else list(options)
        if not listed or not all(isinstance(option, str) and option for option in listed):
            raise RequestError("a choice needs a list of at least one text, and none of them may be empty")
        if len(listed) > MAX_OPTIONS:
            raise RequestError(f"a choice has {len(listed)} options, the limit is {MAX_OPTIONS}")
        text = json.dumps(list(dict.fromkeys(listed)), ensure_ascii=False)
        check_bytes(text, "the choice", MAX_GRAMMAR_BYTES)
        return cls("choice", text)

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """A context-free grammar in llguidance's variant of Lark's syntax. It begins at the rule `start`."""
        _check_text(text, "a grammar")
        check_bytes(text, "the grammar", MAX_GRAMMAR_BYTES)
        if not text.strip() or text.lstrip().startswith("{"):
            raise RequestError("a Lark grammar needs a rule `start`, such as: start: /[a-z]+/")
        return cls("lark", text)

    @classmethod
    def gbnf(cls, text: str) -> Grammar:
        """A context-free grammar in llama.cpp's GBNF. It begins at the rule `root`.

        >>> print(Grammar.gbnf('root ::= "yes" | "no"').text)
        start: ROOT
        ROOT: "yes" | "no"
        """
        _check_text(text, "a grammar")
        check_bytes(text, "the grammar", MAX_GRAMMAR_BYTES)
        return cls("lark", lark_of_gbnf(text))

    @classmethod
    def parse(cls, text: str) -> Grammar:
        """A grammar in GBNF, if it has a rule with `::=`, or else in Lark."""
        _check_text(text, "a grammar")
        return cls.gbnf(text) if _GBNF_RULE.search(text) else cls.lark(text)

    @cached_property
    def source(self) -> str:
        """The grammar as llguidance reads it."""
        if self.kind == "schema":
            return schema_grammar(styled(json.loads(self.text)))
        if self.kind == "choice":
            return "start: " + "|".join(json.dumps(option, ensure_ascii=False) for option in json.loads(self.text))
        if self.kind == "regex":
            with grammar_extra():
                from llguidance import regex_to_lark
            return f"start: /{regex_to_lark(self.text, use_ascii='d')}/"
        return self.text

    @cached_property
    def relaxed_source(self) -> str:
        """`source`, or if it does not compile as it is, what can be held of it."""
        return schema_grammar(self._held.source) if self.kind == "schema" else self.source

    @property
    def unheld(self) -> tuple[str, ...]:
        """The features of a schema that are checked only when the text is finished, such as "uniqueItems"."""
        return self._held.unheld if self.kind == "schema" else ()

    def check(self, text: str) -> str | None:
        """Why a finished output breaks the schema, in a sentence; None if it holds.

        Other grammars hold while the text is written: None.
        """
        return self._validator.check(text) if self.kind == "schema" else None

    def check_schema(self) -> None:
        """Refuse a schema that is not one. Other grammars pass."""
        if self.kind == "schema":
            self._validator.check_schema()

    @cached_property
    def _held(self) -> HeldSchema:
        return hold(json.loads(self.text))

    @cached_property
    def _validator(self) -> SchemaValidator:
        from .schema_validator import SchemaValidator

        return SchemaValidator(json.loads(self.text))


def _check_text(text: str, what: str) -> None:
    if not isinstance(text, str) or not text:
        raise RequestError(f"{what} must be a text that is not empty, not {text!r:.40}")

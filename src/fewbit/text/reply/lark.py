"""Lark sources for llguidance, as the rules of calls are written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class Lark:
    """Rules of a grammar.

    Args:
        control: Ids of control tokens by text: in a syntax the token is meant, not its spelling.

    >>> lark = Lark({"<|call|>": 7})
    >>> lark.text("a", "b<|call|>")
    '"ab" <[7]>'
    """

    def __init__(self, control: Mapping[str, int] | None = None) -> None:
        self._control = dict(control or {})
        tokens = sorted(filter(None, self._control), key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, tokens))})") if tokens else None
        self._names: dict[str, str] = {}
        self._rules: dict[str, str] = {}

    def text(self, *parts: str) -> str:
        """A text as it must be written; "" matches nothing and may stand in a sequence."""
        whole = "".join(parts)
        pieces = self._pattern.split(whole) if self._pattern else [whole]
        return " ".join(self._piece(piece) for piece in pieces if piece)

    def rule(self, body: str) -> str:
        """The name of a rule with this body."""
        return self._add("", body)

    def any_of(self, options: Iterable[str]) -> str:
        return self.rule(" | ".join(dict.fromkeys(options)))

    def json(self, schema: Any) -> str:
        """JSON text that a schema allows."""
        return self.rule(f"%json {json.dumps(schema)}")

    def until(self, end: str) -> str:
        """Any text up to the first `end`, and `end`."""
        before, *rest = self._pattern.split(end) if self._pattern else [end]  # a token is no part of a regex
        if not rest:
            return self._add(f"[suffix={json.dumps(end, ensure_ascii=False)}]", "/(?s:.*)/")
        pattern = re.escape(before).replace("/", "[/]").replace("\\\n", "\\n")
        return self.rule(f"/(?s:.*){pattern}/ {self.text(*rest)}")

    def members(self, members: list[tuple[str, bool]], comma: str = ", ") -> str:
        """Members in their order, with commas between; the flags say which must be there."""
        first, rest = '""', ""  # those that follow no member, and those that follow one
        for body, is_required in reversed(members):
            first = self.rule(f"{body} {rest}" if is_required else f"{body} {rest} | {first}")
            after = f"{self.text(comma)} {body}"
            rest = self.rule(f"{after if is_required else f'({after})?'} {rest}")
        return first

    def named(self, name: str, body: Callable[[str], str]) -> str:
        """The name of a rule whose body may use that name."""
        self._rules.setdefault(name, f"{name}: {body(name)}")
        return name

    def source(self, start: str) -> str:
        """The whole grammar."""
        return "\n".join([f"start: {start}", *self._rules.values()]) + "\n"

    def _add(self, attributes: str, body: str) -> str:
        key = attributes + body
        if key not in self._names:
            self._names[key] = f"r{len(self._names)}"
            self._rules[key] = f"{self._names[key]}{attributes}: {body}"
        return self._names[key]

    def _piece(self, text: str) -> str:
        token = self._control.get(text)
        return json.dumps(text, ensure_ascii=False) if token is None else f"<[{token}]>"

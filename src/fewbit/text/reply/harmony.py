"""Harmony, the form of gpt-oss: messages in channels, of which calls are one kind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .cursor import Cursor, Malformed, Reading
from .lark import Lark
from .output import Output
from .values import JSON, read_value

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
FINAL = "<|channel|>final<|message|>"  # begins an answer
RECIPIENT = " to="  # begins a reply that is a call: the prompt ends within the header
ENDS = ("<|end|>", "<|return|>", "<|call|>")
_MAX_HEADER = 512  # characters
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


@dataclass(frozen=True, slots=True)
class HarmonyCalls:
    """`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{..}<|call|>`."""

    openings = (CHANNEL, START, MESSAGE, *ENDS)
    literals = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
    bare = ""
    has_channels = True

    def read(self, cursor: Cursor, output: Output, marker: str) -> Reading[None]:
        """Read messages: the header of each after a marker, and what it holds."""
        while marker not in ("", *ENDS):
            header: list[str] = [marker]
            found = marker == MESSAGE or (yield from cursor.until((MESSAGE,), header.append, _MAX_HEADER))
            text = "".join(header)
            recipient, channels = _RECIPIENT.search(text), _CHANNEL.findall(text)
            if not found and recipient is None and marker != RECIPIENT:  # cut off before it holds anything
                return
            if not found:
                raise Malformed(MESSAGE)
            if recipient is not None and recipient[1] != "assistant":
                yield from self._call(cursor, output, recipient[1])
                return
            output.end_calls()
            output.thought.seam()
            output.answer.seam()
            prose = output.thought if channels[-1:] == ["analysis"] else output.answer
            marker = yield from cursor.until((*ENDS, START, CHANNEL), prose.write)
            output.begin_calls(marker)

    def grammar(self, lark: Lark, tools: dict[str, Any], is_parallel: bool) -> str:
        return lark.any_of(self._rule(lark, name, schema) for name, schema in tools.items())

    def lazy_grammar(self, lark: Lark, tools: dict[str, Any]) -> tuple[str, str]:
        """What begins a call and nothing else, and a rule for what follows: channels hold thoughts and answers too."""
        head = f"{CHANNEL}commentary to="
        rules = (f"{lark.text(f'functions.{name} ', CONSTRAIN, 'json', MESSAGE)} {lark.json(schema)}"
                 for name, schema in tools.items())  # fmt: skip
        return head, lark.any_of(map(lark.rule, rules))

    def _rule(self, lark: Lark, name: str, schema: Any) -> str:
        head = lark.text(f"commentary to=functions.{name} ", CONSTRAIN, "json", MESSAGE)
        return lark.rule(f"{head} {lark.json(schema)}")

    def _call(self, cursor: Cursor, output: Output, recipient: str) -> Reading[None]:
        output.start_call(recipient.removeprefix("functions."))
        yield from cursor.skip_space()
        if (yield from cursor.peek()) != "{":
            raise Malformed("arguments")
        yield from read_value(cursor, JSON, output.arguments)
        output.end_call()
        yield from cursor.skip_space()
        for end in ENDS:
            if (yield from cursor.take(end)):
                return

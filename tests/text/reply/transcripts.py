"""Replies in the form of each family, and what they consist of."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fewbit.text.reply import FORMATS, ReplyFormat

Call = tuple[str, dict[str, Any]]


def _tool(name: str, required: list[str], **members: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": members, "required": required}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}


STRING, INTEGER, NUMBER, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
TOOLS = [
    _tool("weather", ["city"], city=STRING, days=INTEGER, unit={"type": "string", "enum": ["C", "F"]}),
    _tool("add", ["x", "y"], x=NUMBER, y=NUMBER),
    _tool("ping", []),
    _tool(
        "note", ["text"], text=STRING, tags={"type": "array", "items": STRING}, done=BOOLEAN, ratio=NUMBER,
        meta={"type": "object",
              "properties": {"a": {"type": "array", "items": INTEGER}, "b": {"type": ["string", "null"]}}},
    ),
]  # fmt: skip

ZURICH: Call = ("weather", {"city": "Zürich"})
ADD: Call = ("add", {"x": 1, "y": -2.5})
NESTED: Call = ("note", {"text": "x", "tags": ["a", "b"], "done": True, "ratio": 0.5, "meta": {"a": [1, 2], "b": None}})
SPELLED: Call = ("note", {"text": 'say "hi" \\ 日本 🎉\nand {go} [on], it\'s <b>fine</b>'})
PING: Call = ("ping", {})


@dataclass(frozen=True)
class Family:
    """How a family writes a call, and several calls."""

    format: ReplyFormat
    call: Callable[[str, dict[str, Any]], str]
    begin: str = ""
    between: str = ""
    end: str = ""
    has_prose: bool = True  # text may stand before calls and after them

    def write(self, *calls: Call) -> str:
        return self.begin + self.between.join(self.call(*call) for call in calls) + self.end

    def think(self, text: str) -> str:
        if self.format.thought is None:
            return f"<|channel|>analysis<|message|>{text}<|end|><|start|>assistant"
        return f"{self.format.thought.begin}\n{text}\n{self.format.thought.end}\n\n"

    def say(self, text: str) -> str:
        return text if self.format.thought else f"<|channel|>final<|message|>{text}<|end|><|start|>assistant"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _object(key: str) -> Callable[[str, dict[str, Any]], str]:
    return lambda name, arguments: _json({"name": name, key: arguments})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _tags(head: str, argument: str, end: str) -> Callable[[str, dict[str, Any]], str]:
    def write(name: str, arguments: dict[str, Any]) -> str:
        parts = [
            argument.format(key=key, value=_text(value), kind=_json(isinstance(value, str)))
            for key, value in arguments.items()
        ]
        return head.format(name=name) + "".join(parts) + end

    return write


def _literal(value: Any) -> str:
    """As Python writes it, with double quotes."""
    if isinstance(value, str):
        return _json(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    return f"[{', '.join(map(_literal, value))}]" if isinstance(value, list) else repr(value)


def _python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={_literal(value)}' for key, value in arguments.items())})"


def _gemma(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma(item)}" for key, item in value.items()) + "}"
    return f"[{','.join(map(_gemma, value))}]" if isinstance(value, list) else _json(value)


BAR, SPACE = "\uff5c", "\u2581"


def deepseek(name: str) -> str:
    return f"<{BAR}{name.replace(' ', SPACE)}{BAR}>"


def _deepseek(before: str, between: str, fence: str) -> Callable[[str, dict[str, Any]], str]:
    begin, end = deepseek("tool call begin"), deepseek("tool call end")
    return lambda name, arguments: f"{begin}{before}{name}{between}{_json(arguments)}{fence}{end}"


def _dsml(section: str) -> tuple[Callable[[str, dict[str, Any]], str], str, str, str]:
    tag = f"{BAR}DSML{BAR}"
    argument = f'<{tag}parameter name="{{key}}" string="{{kind}}">{{value}}</{tag}parameter>\n'
    call = _tags(f'<{tag}invoke name="{{name}}">\n', argument, f"</{tag}invoke>")
    return call, f"<{tag}{section}>\n", "\n", f"\n</{tag}{section}>"


_QWEN = _tags("<function={name}>\n", "<parameter={key}>\n{value}\n</parameter>\n", "</function>")
_SEED = _tags("<function={name}>\n", "<parameter={key}>{value}</parameter>\n", "</function>")
_INVOKE = _tags('<invoke name="{name}">\n', '<parameter name="{key}">{value}</parameter>\n', "</invoke>")
_WRITERS: dict[str, tuple[Any, ...]] = {
    "Hermes": (_object("arguments"), "<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"),
    "Llama 3": (_object("parameters"), "<|python_tag|>", "; ", ""),
    "Granite 3": (_object("arguments"), "<|tool_call|>[", ", ", "]"),
    "Phi-4-mini": (_object("arguments"), "functools[", ", ", "]"),
    "Nemotron": (_object("arguments"), "<TOOLCALL>[", ", ", "]</TOOLCALL>"),
    "Mistral": (_object("arguments"), "[TOOL_CALLS] [", ", ", "]"),
    "Mistral with names": (lambda name, arguments: f"{name}[ARGS]{_json(arguments)}", "[TOOL_CALLS]", "[TOOL_CALLS]"),
    "DeepSeek V3": (_deepseek(f"function{deepseek('tool sep')}", "\n```json\n", "\n```"), deepseek("tool calls begin"),
                    "\n", deepseek("tool calls end")),
    "DeepSeek V3.1": (_deepseek("", deepseek("tool sep"), ""), deepseek("tool calls begin"), "",
                      deepseek("tool calls end")),
    "Kimi K2": (lambda name, arguments: f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"
                f"{_json(arguments)}<|tool_call_end|>", "<|tool_calls_section_begin|>", "",
                "<|tool_calls_section_end|>"),
    "GLM 4.5": (_tags("<tool_call>{name}\n", "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
                      "</tool_call>"), "", "\n"),
    "GLM 4.7": (_tags("<tool_call>{name}", "<arg_key>{key}</arg_key><arg_value>{value}</arg_value>", "</tool_call>"),),
    "Qwen3-Coder": (_QWEN, "<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"),
    "Seed-OSS": (_SEED, "<seed:tool_call>\n", "\n</seed:tool_call>\n<seed:tool_call>\n", "\n</seed:tool_call>"),
    "MiniMax M2": (_INVOKE, "<minimax:tool_call>\n", "\n", "\n</minimax:tool_call>"),
    "DeepSeek V3.2": _dsml("function_calls"),
    "DeepSeek V4": _dsml("tool_calls"),
    "Llama 4": (_python, "<|python_start|>[", ", ", "]<|python_end|>"),
    "LFM2": (_python, "<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
    "OLMo 3": (_python, "<function_calls>\n", "\n", "\n</function_calls>"),
    "Gemma 4": (lambda name, arguments: f"call:{name}{_gemma(arguments)}", "<|tool_call>", "<tool_call|><|tool_call>",
                "<tool_call|>"),
    "Harmony": (lambda name, arguments: f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
                f"{_json(arguments)}<|call|>", "", "<|start|>assistant"),
}  # fmt: skip
FAMILIES = {format.name: Family(format, *_WRITERS[format.name]) for format in FORMATS}


@dataclass(frozen=True)
class Transcript:
    """A reply, and what it consists of. `answer` is None where the text of a call must be in it."""

    text: str
    calls: tuple[Call, ...] = ()
    answer: str | None = ""
    thought: str = ""


def transcripts(family: Family) -> dict[str, Transcript]:
    """The replies that every family can write."""
    write, say = family.write, family.say
    unknown: Call = ("launch", {"city": "Rome"})
    return {
        "one call": Transcript(write(ZURICH), (ZURICH,)),
        "several calls": Transcript(write(ZURICH, ADD, PING), (ZURICH, ADD, PING)),
        "the same call twice": Transcript(write(ADD, ADD), (ADD, ADD)),
        "numbers": Transcript(write(ADD), (ADD,)),
        "nested": Transcript(write(NESTED), (NESTED,)),
        "text that looks like syntax": Transcript(write(SPELLED), (SPELLED,)),
        "empty arguments": Transcript(write(PING), (PING,)),
        "text before": Transcript(say("Let me see.\n\n") + write(ADD), (ADD,), "Let me see."),
        "text after": Transcript(write(ADD) + "\n" + say("Done."), (ADD,), "Done."),
        "text on both sides": Transcript(say("Now. ") + write(ADD) + say("\nDone. "), (ADD,), None),
        "thought before": Transcript(family.think("1 - 2.5?") + write(ADD), (ADD,), thought="1 - 2.5?"),
        "thought and answer": Transcript(family.think("Hm.") + say("No."), (), "No.", "Hm."),
        "whitespace around": Transcript("\n" + write(ADD) + "\n", (ADD,)),
        "answer alone": Transcript(say("1 < 2, [3] and {4} <tool"), (), "1 < 2, [3] and {4} <tool"),
        "unknown tool": Transcript(write(unknown), (), None),
        "unknown tool after a call": Transcript(write(ADD, unknown), (ADD,), None),
        "cut off": Transcript(write(SPELLED)[: -len(family.end) - 40], (), None),
        "nothing": Transcript("", (), ""),
    }

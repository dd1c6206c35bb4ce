"""How models write thoughts and tool calls: one record for each family.

To add one: a `ReplyFormat` below, with a kind of calls of the modules beside this one, and a line in `_TELLING` with
what its chat templates hold and no other's. Then transcripts in `tests/text/reply/transcripts.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from .cursor import Cursor, Reading
from .gemma_calls import GemmaCalls
from .harmony import HarmonyCalls
from .json_calls import JsonCalls
from .lark import Lark
from .named_calls import NamedCalls
from .output import Output
from .python_calls import PythonCalls
from .tag_calls import TagCalls


class CallSyntax(Protocol):
    """How calls are written: it reads them, and makes the grammar that holds them."""

    @property
    def openings(self) -> tuple[str, ...]:
        """What begins calls."""

    @property
    def bare(self) -> str:
        """Characters that may begin calls at the start of an answer, where a model leaves the beginning out."""

    @property
    def has_channels(self) -> bool:
        """Whether thoughts and answers stand in messages of the same kind as calls."""

    @property
    def literals(self) -> tuple[str, ...]:
        """All texts of the syntax that may be control tokens."""

    def read(self, cursor: Cursor, output: Output, marker: str) -> Reading[None]:
        """Read calls after one of `openings`, or calls without it."""

    def grammar(self, lark: Lark, tools: dict[str, Any], is_parallel: bool) -> str:
        """A rule for what follows the first of `openings`."""


@dataclass(frozen=True, slots=True)
class ThoughtTags:
    """What begins and ends a thought.

    Args:
        begin: What begins it.
        end: What ends it.
        is_anywhere: Thoughts may follow a part of the answer. Else the same text there is a part of the answer.
    """

    begin: str
    end: str
    is_anywhere: bool = False


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """How a family of models writes replies.

    Args:
        name: Its name, for people.
        calls: How it writes tool calls.
        thought: What is around a thought; None if `calls` has channels.
        is_known: The chat template tells the form of calls; otherwise it is a guess.
        thinks: The chat template tells of thoughts.
        calls_in_thoughts: The model may call tools without ending its thought.
    """

    name: str
    calls: CallSyntax
    thought: ThoughtTags | None = ThoughtTags("<think>", "</think>")
    is_known: bool = True
    thinks: bool = False
    calls_in_thoughts: bool = False

    def visible_tokens(self, control_texts: Iterable[str]) -> frozenset[str]:
        """The control tokens that are part of the form: they must reach the parser as text."""
        tags = () if self.thought is None else (self.thought.begin, self.thought.end)
        literals = (*self.calls.literals, *tags)
        return frozenset(text for text in control_texts if text and any(text in literal for literal in literals))

    def opens_thought(self, prompt: str, answer: str | None = None) -> bool:
        """Whether a reply begins inside a thought: the prompt ends with what begins one.

        Args:
            prompt: The prompt.
            answer: The end of the prompt that is the answer's own beginning, if it is continued.

        >>> HERMES.opens_thought("<|im_start|>assistant\\n<think>\\n"), HERMES.opens_thought("<think>\\n</think>\\n")
        (True, False)
        """
        if self.thought is None:
            return False
        if answer is not None and (self.thought.begin in answer or self.thought.end in answer):
            return answer.rfind(self.thought.begin) > answer.rfind(self.thought.end)
        return prompt.rstrip().endswith(self.thought.begin)

    def ends_thought(self, prompt: str) -> bool:
        """Whether a prompt ends with what ends a thought: the model is not to think."""
        return self.thought is not None and prompt.rstrip().endswith(self.thought.end)


_BAR, _SPACE = "\uff5c", "\u2581"  # as DeepSeek's tokens write them


def _token(name: str) -> str:
    """The text of a token of DeepSeek."""
    return f"<{_BAR}{name.replace(' ', _SPACE)}{_BAR}>"


_SEPARATOR = _token("tool sep")

HERMES = ReplyFormat(  # with what Apriel and GigaChat write
    "Hermes",
    JsonCalls(
        "<tool_call>", "</tool_call>", aliases=("<tool_calls>", "<|function_call|>"), aliases_end=("</tool_calls>",)
    ),
)
LLAMA3 = ReplyFormat("Llama 3", JsonCalls("<|python_tag|>", key="parameters", aliases=('{"name"', '{"type"')))
GRANITE3 = ReplyFormat("Granite 3", JsonCalls("<|tool_call|>", form="list", aliases=("<tool_call>",)))
PHI4 = ReplyFormat(
    "Phi-4-mini", JsonCalls("functools", "", "arguments", "list", ("<|tool_call|>",), ("<|/tool_call|>",))
)
NEMOTRON = ReplyFormat("Nemotron", JsonCalls("<TOOLCALL>", "</TOOLCALL>", form="list"))
MISTRAL = ReplyFormat("Mistral", JsonCalls("[TOOL_CALLS]", form="list"))
MISTRAL_NAMED = ReplyFormat(
    "Mistral with names",
    NamedCalls(
        "[TOOL_CALLS]",
        re.compile(r"(?P<name>[^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*\w*)?\s*(?:\[ARGS\])?"),
        between="[ARGS]",
        tokens=("[CALL_ID]", "[ARGS]"),
    ),
)
DEEPSEEK_V3 = ReplyFormat(
    "DeepSeek V3",
    NamedCalls(
        _token("tool call begin"),
        re.compile(rf"(?:function{_SEPARATOR})?(?P<name>[^\s<]+?)\s*(?:{_SEPARATOR})?\s*(?:```json)?"),
        before=f"function{_SEPARATOR}",
        between="\n```json\n",
        fence="```",
        end=_token("tool call end"),
        section=(_token("tool calls begin"), _token("tool calls end")),
        tokens=(_SEPARATOR,),
    ),
)
DEEPSEEK_V31 = replace(
    DEEPSEEK_V3,
    name="DeepSeek V3.1",
    calls=replace(DEEPSEEK_V3.calls, before="", between=_SEPARATOR, fence=""),  # type: ignore[type-var]
)
KIMI_K2 = ReplyFormat(
    "Kimi K2",
    NamedCalls(
        "<|tool_call_begin|>",
        re.compile(r"(?:functions\.)?(?P<name>[^\s<:]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>"),
        before="functions.",
        between=":0<|tool_call_argument_begin|>",
        end="<|tool_call_end|>",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
    calls_in_thoughts=True,
)
GLM4 = ReplyFormat(
    "GLM 4.5",
    TagCalls("", "<tool_call>", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"),
)
GLM47 = ReplyFormat("GLM 4.7", replace(GLM4.calls, space=""))  # type: ignore[type-var]
QWEN_XML = ReplyFormat(
    "Qwen3-Coder",
    TagCalls("<tool_call>", "<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", "</tool_call>",
             is_trimmed=True),
    calls_in_thoughts=True,
)  # fmt: skip
SEED = ReplyFormat(
    "Seed-OSS",
    TagCalls("<seed:tool_call>", "<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>",
             "</seed:tool_call>"),
    ThoughtTags("<seed:think>", "</seed:think>"),
)  # fmt: skip
MINIMAX = ReplyFormat(
    "MiniMax M2",
    TagCalls("<minimax:tool_call>", '<invoke name="', '">', '<parameter name="', '"', ">", "</parameter>", "</invoke>",
             "</minimax:tool_call>"),
)  # fmt: skip
_DSML = f"{_BAR}DSML{_BAR}"
DEEPSEEK_V32 = ReplyFormat(
    "DeepSeek V3.2",
    TagCalls(f"<{_DSML}function_calls>", f'<{_DSML}invoke name="', '">', f'<{_DSML}parameter name="', '"', ">",
             f"</{_DSML}parameter>", f"</{_DSML}invoke>", f"</{_DSML}function_calls>", says_string=True),
    calls_in_thoughts=True,
)  # fmt: skip
DEEPSEEK_V4 = replace(
    DEEPSEEK_V32,
    name="DeepSeek V4",
    calls=replace(DEEPSEEK_V32.calls, begin=f"<{_DSML}tool_calls>", end=f"</{_DSML}tool_calls>"),  # type: ignore[type-var]
)
LLAMA4 = ReplyFormat("Llama 4", PythonCalls(aliases=("<|python_start|>",), end="<|python_end|>"))
LFM2 = ReplyFormat("LFM2", PythonCalls("<|tool_call_start|>", "<|tool_call_end|>"))
OLMO3 = ReplyFormat("OLMo 3", PythonCalls("<function_calls>", "</function_calls>", has_list=False))
GEMMA4 = ReplyFormat("Gemma 4", GemmaCalls(), ThoughtTags("<|channel>thought", "<channel|>", is_anywhere=True))
HARMONY = ReplyFormat("Harmony", HarmonyCalls(), None)
UNKNOWN = replace(HERMES, name="Hermes (assumed)", is_known=False)

FORMATS = (
    HERMES, LLAMA3, GRANITE3, PHI4, NEMOTRON, MISTRAL, MISTRAL_NAMED, DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2, GLM4, GLM47,
    QWEN_XML, SEED, MINIMAX, DEEPSEEK_V32, DEEPSEEK_V4, LLAMA4, LFM2, OLMO3, GEMMA4, HARMONY,
)  # fmt: skip

_TELLING: tuple[tuple[ReplyFormat, tuple[str, ...]], ...] = (  # the first whose texts are all there
    (HARMONY, ("<|channel|>", "<|message|>")),
    (GEMMA4, ("<|tool_call>", "<|channel>")),
    (DEEPSEEK_V4, (_DSML, "tool_calls>")),
    (DEEPSEEK_V32, (_DSML,)),
    (DEEPSEEK_V3, (_token("tool calls begin"), "```json")),
    (DEEPSEEK_V31, (_token("tool calls begin"),)),
    (KIMI_K2, ("<|tool_calls_section_begin|>",)),
    (MISTRAL_NAMED, ("[TOOL_CALLS]", "[ARGS]")),
    (MISTRAL, ("[TOOL_CALLS]",)),
    (GLM4, ("<arg_key>", "}</arg_key>\n")),
    (GLM47, ("<arg_key>",)),
    (SEED, ("<seed:tool_call>",)),
    (MINIMAX, ("<minimax:tool_call>",)),
    (QWEN_XML, ("<function=", "<parameter=")),
    (LFM2, ("<|tool_call_start|>",)),
    (LFM2, ("<|tool_list_start|>",)),
    (LFM2, ("List of tools: [", "<|im_start|>")),
    (OLMO3, ("<function_calls>",)),
    (NEMOTRON, ("<TOOLCALL>",)),
    (PHI4, ("functools[",)),
    (PHI4, ("<|tool|>", "<|/tool|>")),
    (GRANITE3, ("<|tool_call|>",)),
    (LLAMA4, ("func_name1(",)),
    (LLAMA4, ("<|python_start|>",)),
    (HERMES, ("<tool_call>",)),
    (LLAMA3, ("<|python_tag|>",)),
    (LLAMA3, ('"parameters"', "_header|>")),
    (LLAMA3, ('"parameters"', "<|start_header_id|>")),
    (LLAMA4, ("<|header_start|>",)),
)
_THOUGHTS = (
    ThoughtTags("[THINK]", "[/THINK]", is_anywhere=True),
    ThoughtTags("<|START_THINKING|>", "<|END_THINKING|>", is_anywhere=True),
    ThoughtTags("<|inner_prefix|>", "<|inner_suffix|>", is_anywhere=True),
    ThoughtTags("<mm:think>", "</mm:think>"),
)


def find_format(template: str | None, has_token: Callable[[str], bool] = lambda _: False) -> ReplyFormat:
    """The form of replies that a chat template tells of. If it tells none, Hermes is assumed.

    Args:
        template: Source of the template, if there is one.
        has_token: Whether a text is a token of the vocabulary.
    """
    source = (template or "").replace("\\n", "\n")
    known = (found for found, texts in _TELLING if all(text in source for text in texts))
    found = next(known, LFM2 if has_token("<|tool_call_start|>") else UNKNOWN)
    if found.thought is None or found.thought.begin in source:
        return replace(found, thinks=True)
    tags = next((tags for tags in _THOUGHTS if tags.begin in source), None)
    return found if tags is None else replace(found, thought=tags, thinks=True)

"""What a model's reply consists of: reasoning, answer and tool calls, read while they are written."""

from .events import AnswerText, CallArguments, CallDropped, CallStart, Event, ThoughtText, joined
from .formats import FORMATS, HERMES, ReplyFormat, ThoughtTags, find_format
from .grammar import CallGrammar, call_grammar
from .harmony import FINAL
from .parser import ReplyParser
from .schemas import tool_schemas

__all__ = [
    "FINAL",
    "FORMATS",
    "HERMES",
    "AnswerText",
    "CallArguments",
    "CallDropped",
    "CallGrammar",
    "CallStart",
    "Event",
    "ReplyFormat",
    "ReplyParser",
    "ThoughtTags",
    "ThoughtText",
    "call_grammar",
    "find_format",
    "joined",
    "tool_schemas",
]

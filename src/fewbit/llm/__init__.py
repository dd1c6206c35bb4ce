"""`LLM`: text in, text out, by a tokenizer and an engine."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .completion import Completion, TokenLogprob, ToolCall
    from .fold import TextDelta
    from .llm import LLM
    from .prompts import Prompt
    from .sampling_options import ChatOptions, Options, PromptOptions
    from .stream import AsyncStream, Stream

__all__ = [
    "LLM",
    "AsyncStream",
    "ChatOptions",
    "Completion",
    "Options",
    "Prompt",
    "PromptOptions",
    "Stream",
    "TextDelta",
    "TokenLogprob",
    "ToolCall",
]


def __getattr__(name: str) -> Any:
    """Loaded when first needed: a command that talks to a server has completions, and no engine."""
    if name not in __all__:
        raise AttributeError(f"module 'fewbit.llm' has no attribute {name!r}")
    home = "completion" if name in ("Completion", "TokenLogprob", "ToolCall") else "llm"
    return getattr(import_module(f".{home}", __name__), name)

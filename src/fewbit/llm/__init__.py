"""`LLM`: text in, text out, by a tokenizer and an engine.

| module | what is there |
|---|---|
| `llm` | the class `LLM` |
| `sampling_options` | the options of a call, and their checks |
| `chat` | messages to prompts |
| `fold` | tokens of the engine to text |
| `stream` | text while it is written |
| `completion` | the result of a call |
| `embed`, `pooling` | embeddings |
| `score`, `logprobs` | log-probabilities |
| `progress` | the progress of a batch |
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .completion import Completion, TokenLogprob
    from .llm import LLM
    from .sampling_options import ChatOptions, Options, Prompt, PromptOptions
    from .stream import AsyncStream, Stream
    from .text_deltas import TextDelta

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
]


def __getattr__(name: str) -> Any:
    """Loaded when first needed: a command that talks to a server has completions, and no engine."""
    if name not in __all__:
        raise AttributeError(f"module 'fewbit.llm' has no attribute {name!r}")
    homes = {"Completion": "completion", "TextDelta": "text_deltas", "TokenLogprob": "completion"}
    return getattr(import_module(f".{homes.get(name, 'llm')}", __name__), name)

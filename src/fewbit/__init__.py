"""Run language models with their weights kept in few bits.

>>> import numpy as np, fewbit as fb
>>> w = fb.quantize(np.random.default_rng(0).standard_normal((8, 256), np.float32), "q4_k")
>>> fb.linear(np.ones(256, np.float32), w).shape
(8,)
"""

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    ArgumentError,
    DataError,
    DeviceError,
    DtypeError,
    ExtraError,
    FetchError,
    FewbitError,
    FileChanged,
    FileError,
    FormatError,
    LayoutError,
    LogitsError,
    MissingError,
    OutOfMemory,
    OutOfPages,
    PathError,
    PositionError,
    QueueFull,
    RequestError,
    ShapeError,
    TemplateError,
    TokenizerError,
    TooLong,
    ToolsIgnored,
    UnknownId,
)
from .formats import Format
from .formats import all_formats as formats
from .formats import get as format
from .tensor import BACKENDS, QuantTensor

if TYPE_CHECKING:
    from .cache.kv import KVCache
    from .files.gguf import read_gguf, write_gguf
    from .llm import LLM, AsyncStream, ChatOptions, Completion, Options, PromptOptions, Stream, TokenLogprob
    from .ops.cpu import Activations, linear, linear_gated, linear_many, quantize, quantize_activations, repack
    from .ops.sampling import SamplingParams
    from .quantizing import QuantizedModel, quantize_model
    from .text.template import ChatTemplate
    from .text.tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Activations",
    "ArgumentError",
    "AsyncStream",
    "ChatOptions",
    "ChatTemplate",
    "Completion",
    "DataError",
    "DeviceError",
    "DtypeError",
    "ExtraError",
    "FetchError",
    "FewbitError",
    "FileChanged",
    "FileError",
    "Format",
    "FormatError",
    "KVCache",
    "LayoutError",
    "LogitsError",
    "MissingError",
    "Options",
    "OutOfMemory",
    "OutOfPages",
    "PathError",
    "PositionError",
    "PromptOptions",
    "QuantTensor",
    "QuantizedModel",
    "QueueFull",
    "RequestError",
    "SamplingParams",
    "ShapeError",
    "Stream",
    "TemplateError",
    "TokenLogprob",
    "Tokenizer",
    "TokenizerError",
    "TooLong",
    "ToolsIgnored",
    "UnknownId",
    "format",
    "formats",
    "linear",
    "linear_gated",
    "linear_many",
    "quantize",
    "quantize_activations",
    "quantize_model",
    "read_gguf",
    "repack",
    "write_gguf",
]

# Where names are found that are not loaded at once: `import fewbit` takes little time, and the emitter that the native
# module is built from must do without it.
_HOMES = {
    "AsyncStream": "llm",
    "ChatOptions": "llm",
    "ChatTemplate": "text.template",
    "Completion": "llm",
    "KVCache": "cache.kv",
    "LLM": "llm",
    "Options": "llm",
    "PromptOptions": "llm",
    "QuantizedModel": "quantizing",
    "SamplingParams": "ops.sampling",
    "Stream": "llm",
    "TokenLogprob": "llm",
    "Tokenizer": "text.tokenizer",
    "quantize_model": "quantizing",
    "read_gguf": "files.gguf",
    "write_gguf": "files.gguf",
}


BACKENDS.update({name: partial(import_module, f".ops.{name}", __name__) for name in ("cpu", "cuda")})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fewbit' has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES.get(name, 'ops.cpu')}", __name__), name)


def __dir__() -> list[str]:
    """The public names, those that are not loaded yet too."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})

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
    ImageError,
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
    from .evaluation import Calibration, ChoiceScores, Divergence, Evaluation, calibrate, evaluate, evaluate_choices
    from .evaluation.results import TokenScores
    from .files.gguf import read_gguf, write_gguf
    from .files.hessian import Hessians, read_hessians
    from .files.imatrix import ImportanceMatrix, read_imatrix, write_imatrix
    from .llm import LLM, AsyncStream, ChatOptions, Completion, Options, PromptOptions, Stream, TokenLogprob
    from .ops.cpu import (
        Activations,
        linear,
        linear_backward,
        linear_gated,
        linear_many,
        quantize,
        quantize_activations,
        repack,
    )
    from .ops.sampling import SamplingParams
    from .quantizing import QuantizedModel, merge_adapter, quantize_model
    from .reporting import Report, report
    from .text.template import ChatTemplate
    from .text.tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Activations",
    "ArgumentError",
    "AsyncStream",
    "Calibration",
    "ChatOptions",
    "ChatTemplate",
    "ChoiceScores",
    "Completion",
    "DataError",
    "DeviceError",
    "Divergence",
    "DtypeError",
    "Evaluation",
    "ExtraError",
    "FetchError",
    "FewbitError",
    "FileChanged",
    "FileError",
    "Format",
    "FormatError",
    "Hessians",
    "ImageError",
    "ImportanceMatrix",
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
    "Report",
    "RequestError",
    "SamplingParams",
    "ShapeError",
    "Stream",
    "TemplateError",
    "TokenLogprob",
    "TokenScores",
    "Tokenizer",
    "TokenizerError",
    "TooLong",
    "ToolsIgnored",
    "UnknownId",
    "calibrate",
    "evaluate",
    "evaluate_choices",
    "format",
    "formats",
    "linear",
    "linear_backward",
    "linear_gated",
    "linear_many",
    "merge_adapter",
    "quantize",
    "quantize_activations",
    "quantize_model",
    "read_gguf",
    "read_hessians",
    "read_imatrix",
    "repack",
    "report",
    "write_gguf",
    "write_imatrix",
]

# Where names are found that are not loaded at once: `import fewbit` takes little time, and the emitter that the native
# module is built from must do without it.
_HOMES = {
    "LLM": "llm",
    "AsyncStream": "llm",
    "Calibration": "evaluation",
    "ChatOptions": "llm",
    "ChatTemplate": "text.template",
    "ChoiceScores": "evaluation",
    "Completion": "llm",
    "Divergence": "evaluation",
    "Evaluation": "evaluation",
    "Hessians": "files.hessian",
    "ImportanceMatrix": "files.imatrix",
    "KVCache": "cache.kv",
    "Options": "llm",
    "PromptOptions": "llm",
    "QuantizedModel": "quantizing",
    "Report": "reporting",
    "SamplingParams": "ops.sampling",
    "Stream": "llm",
    "TokenLogprob": "llm",
    "TokenScores": "evaluation.results",
    "Tokenizer": "text.tokenizer",
    "merge_adapter": "quantizing",
    "quantize_model": "quantizing",
    "calibrate": "evaluation",
    "evaluate": "evaluation",
    "evaluate_choices": "evaluation",
    "read_gguf": "files.gguf",
    "read_hessians": "files.hessian",
    "read_imatrix": "files.imatrix",
    "report": "reporting",
    "write_gguf": "files.gguf",
    "write_imatrix": "files.imatrix",
}


BACKENDS.update({name: partial(import_module, f".ops.{name}", __name__) for name in ("cpu", "cuda", "webgpu")})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fewbit' has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES.get(name, 'ops.cpu')}", __name__), name)


def __dir__() -> list[str]:
    """The public names, those that are not loaded yet too."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})

"""Run language models with their weights kept in few bits.

>>> import numpy as np, fewbit as fb
>>> w = fb.quantize(np.random.default_rng(0).standard_normal((8, 256), np.float32), "q4_k")
>>> fb.linear(np.ones(256, np.float32), w).shape
(8,)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import DataError, DtypeError, FewbitError, FormatError, LayoutError, ShapeError
from .formats import Format
from .formats import all_formats as formats
from .formats import get as format

if TYPE_CHECKING:
    from .cache.kv import KVCache
    from .files.gguf import read_gguf, write_gguf
    from .llm import LLM
    from .ops.cpu import Activations, linear, linear_gated, linear_many, quantize, quantize_activations, repack
    from .tensor import QuantTensor
    from .text.template import ChatTemplate
    from .text.tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Activations",
    "ChatTemplate",
    "DataError",
    "DtypeError",
    "FewbitError",
    "Format",
    "FormatError",
    "KVCache",
    "LayoutError",
    "QuantTensor",
    "ShapeError",
    "Tokenizer",
    "format",
    "formats",
    "linear",
    "linear_gated",
    "linear_many",
    "quantize",
    "quantize_activations",
    "read_gguf",
    "repack",
    "write_gguf",
]

# Where names are found that are not loaded at once: `import fewbit` takes little time, and the emitter that the native
# module is built from must do without it.
_HOMES = {
    "ChatTemplate": "text.template",
    "KVCache": "cache.kv",
    "LLM": "llm",
    "Tokenizer": "text.tokenizer",
    "read_gguf": "files.gguf",
    "write_gguf": "files.gguf",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fewbit' has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES.get(name, 'ops.cpu')}", __name__), name)

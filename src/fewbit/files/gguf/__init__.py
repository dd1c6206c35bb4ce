"""GGUF files: read them over a memory map, write them, sum them up."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .header import TensorInfo
from .reader import GGUF, read_gguf
from .summary import summary
from .values import StringArray

if TYPE_CHECKING:
    from .writer import Deferred, write_gguf

__all__ = ["GGUF", "Deferred", "StringArray", "TensorInfo", "read_gguf", "summary", "write_gguf"]


def __getattr__(name: str) -> Any:
    if name in ("Deferred", "write_gguf"):  # not needed to read
        return getattr(import_module(".writer", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

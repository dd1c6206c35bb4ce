"""GGUF files: read them over a memory map, write them, sum them up."""

from .header import TensorInfo
from .reader import GGUF, read_gguf
from .summary import summary
from .values import StringArray
from .writer import Deferred, write_gguf

__all__ = ["GGUF", "Deferred", "StringArray", "TensorInfo", "read_gguf", "summary", "write_gguf"]

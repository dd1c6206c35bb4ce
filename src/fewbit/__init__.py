"""Run language models with their weights kept in few bits.

>>> import numpy as np, fewbit as fb
>>> w = fb.quantize(np.random.default_rng(0).standard_normal((8, 256), np.float32), "q4_k")
>>> fb.linear(np.ones(256, np.float32), w).shape
(8,)
"""

from typing import TYPE_CHECKING, Any

from .errors import DataError, DtypeError, FewbitError, FormatError, LayoutError, ShapeError
from .formats import Format
from .formats import all_formats as formats
from .formats import get as format

if TYPE_CHECKING:
    from .ops.cpu import Activations, linear, linear_gated, linear_many, quantize, quantize_activations
    from .tensor import QuantTensor

__version__ = "0.1.0"

__all__ = [
    "Activations",
    "DataError",
    "DtypeError",
    "FewbitError",
    "Format",
    "FormatError",
    "LayoutError",
    "QuantTensor",
    "ShapeError",
    "format",
    "formats",
    "linear",
    "linear_gated",
    "linear_many",
    "quantize",
    "quantize_activations",
]


def __getattr__(name: str) -> Any:
    """The rest comes with the native module, which the emitter that it is built from must do without."""
    if name not in __all__:
        raise AttributeError(f"module 'fewbit' has no attribute {name!r}")
    from .ops import cpu

    return getattr(cpu, name)

"""Quantizing models: which format each tensor gets, and the GGUF file that is written."""

from .loaded import quantized
from .merging import merge_adapter
from .mixes import MIXES, Mix, known_formats, read_mix
from .model import QuantizedModel, quantize_model
from .plan import TensorPlan

__all__ = [
    "MIXES",
    "Mix",
    "QuantizedModel",
    "TensorPlan",
    "known_formats",
    "merge_adapter",
    "quantize_model",
    "quantized",
    "read_mix",
]

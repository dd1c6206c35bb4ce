"""Quantizing models: which format each tensor gets, and the GGUF file that is written."""

from .loaded import quantized
from .mixes import MIXES, Mix, known_formats, read_mix
from .model import QuantizedModel, quantize_model
from .plan import TensorPlan

__all__ = ["MIXES", "Mix", "QuantizedModel", "TensorPlan", "known_formats", "quantize_model", "quantized", "read_mix"]

"""Native code for the CPU: the only package that imports the native module."""

import os

from ... import _native
from ...tensor import QuantTensor
from .attention import attend, keeps_tiles, kv_write
from .backward import linear_backward
from .machine import (
    checked_threads,
    default_threads,
    describe_activations,
    forced_isa,
    inputs_of,
    isa,
    isas,
    kernel,
    kernel_ranges,
    known_isas,
    multiply_rate,
    number,
    packed,
    read_seconds,
    use_isa,
)
from .matrices import (
    Activations,
    decode,
    encode,
    linear,
    linear_gated,
    linear_many,
    quantize,
    quantize_activations,
    repack,
)
from .sampler_chain import sample_chain
from .sampling import log_probabilities, sample, top_tokens

Adapter = _native.Adapter  # see adapters.py
Plan = _native.Plan  # see plan.py
ThreadCollective = _native.ThreadCollective  # see ops/collective.py

__all__ = [
    "Activations",
    "Adapter",
    "Plan",
    "QuantTensor",
    "ThreadCollective",
    "attend",
    "checked_threads",
    "decode",
    "default_threads",
    "describe_activations",
    "encode",
    "forced_isa",
    "inputs_of",
    "isa",
    "isas",
    "keeps_tiles",
    "kernel",
    "kernel_ranges",
    "known_isas",
    "kv_write",
    "linear",
    "linear_backward",
    "linear_gated",
    "linear_many",
    "log_probabilities",
    "multiply_rate",
    "number",
    "packed",
    "quantize",
    "quantize_activations",
    "read_seconds",
    "repack",
    "sample",
    "sample_chain",
    "top_tokens",
    "use_isa",
]  # fmt: skip

if os.environ.get("FEWBIT_ISA"):
    use_isa(os.environ["FEWBIT_ISA"])

"""Programs as JSON: shaders, buffers and dispatches, for runtimes that know WebGPU and no model.

    {"kernels": {ID: {"name", "wgsl", "bindings": ["read-only-storage" or "storage", ...]}},
     "buffers": [{"name", "bytes", "parts": [...]}, ...],
     "programs": {NAME: {"tokens", "logits", "result": {...}, "dispatches": [
         {"kernel": ID, "buffers": [numbers], "parameters": base64, "grid": [[name, per, times], ...]}]}},
     "step": {"buffer": number, "counts": [names], "arrays": [names]},
     "sampler": {"dispatch": {...}, "samples": number, "results": number, "fields": [[name, type], ...]}}

A buffer without parts is written by kernels. A part is {"at": byte, "tensor": its name, "offset", "bytes", "row",
"stride"}, bytes of the model's file in rows that lie `stride` bytes apart in the buffer, or {"at", "base64"}. A
size of a grid is the number of that name divided by `per` and rounded up, times `times`; "one" is 1. A step's integers
begin with the counts, then come the places of the arrays, then the arrays (`inputs.py`). "tokens" of a program says for
how many: up to that, or 0 for more. A sampler is a dispatch behind a program's: its samples are words, first the fields
of each (`sampling.py`), then the arrays that they point at, and its results are a token and a status for each.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from ctypes import string_at
from typing import Any

import numpy as np

from ...errors import ArgumentError
from ...tensor import QuantTensor
from .device import Dispatch, Memory, Size, pack_parameters
from .inputs import StepLayout
from .model_weights import ModelWeights
from .plan import Program
from .sampling import FIELDS
from .wgsl import COUNTS, Kernel

NOT_IN_FILE = "only weights as they lie in a file can be exported; load it without changing their format"
MAX_TABLE = 1 << 20  # bytes of a matrix that the model computes


def export(
    programs: Mapping[str, Program], weights: ModelWeights, step: Memory, layout: StepLayout,
    tensors: Mapping[str, QuantTensor], sampler: Dispatch | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Programs of a model as plain data that `json` writes.

    Args:
        programs: Programs by name.
        weights: What they read.
        step: The buffer of a step's integers.
        layout: Its layout.
        tensors: The tensors of the model's file, by name.
        sampler: What chooses tokens from the logits (`sample_rows`).
    """
    exporter = _Exporter(weights, tensors)
    written = {name: exporter.program(program) for name, program in programs.items()}
    numbers = {"buffer": exporter.number(step), "counts": list(COUNTS), "arrays": list(layout.names)}
    chooses = {} if sampler is None else {"sampler": exporter.sampler(sampler)}
    return {"kernels": exporter.kernels, "buffers": exporter.buffers, "programs": written, "step": numbers, **chooses}


class _Exporter:
    def __init__(self, weights: ModelWeights, tensors: Mapping[str, QuantTensor]) -> None:
        self.weights = weights
        self.kernels: dict[str, Any] = {}
        self.buffers: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}
        self._places = sorted((w.stored.ctypes.data, w.stored.nbytes, name) for name, w in tensors.items())

    def program(self, program: Program) -> dict[str, Any]:
        result = program.result
        return {
            "tokens": program.tokens,
            "logits": program.logits,
            "result": {"buffer": self.number(result.memory), "offset": result.offset, "stride": result.stride,
                       "width": result.width},
            "dispatches": [self._dispatch(one) for one in program.dispatches],
        }  # fmt: skip

    def sampler(self, one: Dispatch) -> dict[str, Any]:
        _, samples, _, results = one.buffers
        return {
            "dispatch": self._dispatch(one), "samples": self.number(samples), "results": self.number(results),
            "fields": [list(field) for field in FIELDS.items()],
        }  # fmt: skip

    def number(self, memory: Memory) -> int:
        """The number of a buffer."""
        if id(memory) not in self._numbers:
            self._numbers[id(memory)] = len(self.buffers)
            parts = [self._part(at, source) for at, source in self.weights.sources.get(id(memory), [])]
            if memory.name == "weights" and not parts:
                raise ArgumentError(NOT_IN_FILE)
            self.buffers.append({"name": memory.name, "bytes": memory.nbytes, "parts": parts})
        return self._numbers[id(memory)]

    def _dispatch(self, one: Dispatch) -> dict[str, Any]:
        self.kernels.setdefault(one.kernel.digest, _kernel(one.kernel))
        return {
            "kernel": one.kernel.digest,
            "buffers": [self.number(memory) for memory in one.buffers],
            "parameters": b64encode(pack_parameters(one.kernel, one.values)).decode(),
            "grid": [_size(size) for size in one.grid],
        }

    def _part(self, at: int, source: Any) -> dict[str, Any]:
        if not isinstance(source, tuple):
            return {"at": at, "base64": b64encode(source.tobytes()).decode()}
        address, nbytes, row, stride = source
        for first, size, name in self._places:
            if first <= address and address + nbytes <= first + size:
                return {
                    "at": at, "tensor": name, "offset": address - first, "bytes": nbytes, "row": row, "stride": stride
                }  # fmt: skip
        if nbytes > MAX_TABLE:
            raise ArgumentError(NOT_IN_FILE)
        table = np.frombuffer(string_at(address, nbytes), np.uint8).reshape(-1, row)
        return {"at": at, "base64": b64encode(np.pad(table, ((0, 0), (0, stride - row))).tobytes()).decode()}


def _kernel(kernel: Kernel) -> dict[str, Any]:
    kinds = ["read-only-storage" if one.access == "read" else "storage" for one in kernel.bindings]
    return {"name": kernel.name, "wgsl": kernel.portable_source, "bindings": kinds}


def _size(size: Size) -> list[Any]:
    name, number, *times = size
    return ["one", 1, number] if name == "one" else [name, number, times[0] if times else 1]

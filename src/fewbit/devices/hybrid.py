"""A model on two devices: the first layers run on the CPU, the last ones on a GPU that is too small for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from ..arrays import Bytes, Floats
from ..cache.layout import Layout
from ..cache.store import KVStore
from ..ops.cut import cut, layers_of, weights_of
from ..ops.graph import Graph
from ..ops.low_rank import AdapterRows, Terms
from ..ops.specs import LayerSpec
from ..tensor import QuantTensor
from . import Device
from .batch import Batch, Executor, Handle
from .cpu import CpuExecutor
from .fitting import choose_layout


class LastLayers(Executor, Protocol):
    """An executor of the last layers of a model: of a device that `takes_rows`."""

    def launch(self, batch: Batch, given: Floats | None = None) -> Handle:
        """Begin a step with rows that the first layers made."""
        ...


class HybridStore:
    """K, V and states of some layers in host memory, of the others on the GPU. Pages have the same numbers on both."""

    def __init__(self, layout: Layout, host: KVStore, device: KVStore, on_device: frozenset[int]) -> None:
        self.layout, self.pages, self.host, self.device = layout, host.pages, host, device
        self._on_device = on_device

    @property
    def nbytes(self) -> int:
        return self.host.nbytes + self.device.nbytes

    def copy(self, group: int, pairs: Iterable[tuple[int, int]]) -> None:
        pairs = list(pairs)
        self.host.copy(group, pairs)
        self.device.copy(group, pairs)

    def read(self, layer: int, page: int, count: int) -> list[Bytes]:
        return self._store(layer).read(layer, page, count)

    def write(self, layer: int, page: int, parts: Sequence[Bytes], first: int = 0) -> None:
        self._store(layer).write(layer, page, parts, first)

    def _store(self, layer: int) -> KVStore:
        return self.device if layer in self._on_device else self.host


class HybridDevice(Device):
    """The last `layers` layers of a graph run on one device, with all that follows them, and the others on another."""

    memory_kind = "GPU memory"

    def __init__(self, first: Device, last: Device, graph: Graph, layers: int, repack: bool | None = None) -> None:
        self.name = f"{first.name} and {last.name}"
        self.max_batched_tokens = min(first.max_batched_tokens, last.max_batched_tokens)
        self.threads = first.threads
        self.numerics = f"{layers} layers on {last.numerics}, {first.numerics}"
        self._first, self._last, self._layers, self._repack = first, last, layers, repack
        before, after = cut(graph, layers)
        self._last_layers = frozenset(layers_of(after.nodes))
        shared = weights_of(after)
        self._weights = {address: w.nbytes for address, w in weights_of(before).items() if address not in shared}

    def memory_bytes(self, file_bytes: int, layout: str) -> int:
        return self._last.memory_bytes(file_bytes, layout)

    def pack(self, layout: str, nbytes: int) -> Callable[[QuantTensor], QuantTensor] | None:
        """Only weights that the first device alone uses, in its layout if its memory is large enough."""
        first_bytes = sum(self._weights.values())
        layout = choose_layout(self._first, first_bytes, self._repack)
        packed = self._first.pack(layout, first_bytes + 256 * len(self._weights))
        if packed is None:
            return None
        return lambda w: packed(w) if w.stored.ctypes.data in self._weights else w

    def make_store(self, layout: Layout, pages: Sequence[int]) -> HybridStore:
        last = self._last_layers & set(layout.group_of)
        host = self._first.make_store(part_of(layout, set(layout.group_of) - last), pages)
        return HybridStore(layout, host, self._last.make_store(part_of(layout, set(last)), pages), last)

    def make_executor(self, graph: Graph, store: HybridStore, vocab: int) -> HybridExecutor:
        """Cuts a graph that was recorded again, with packed weights, at the same place."""
        before, after = cut(graph, self._layers)
        first: Any = self._first.make_executor(before, store.host, vocab)
        last: Any = self._last.make_executor(after, store.device, vocab)
        return HybridExecutor(first, last)


class HybridExecutor:
    """The CPU runs its part of a step first, and hands its rows to the GPU."""

    runs_ahead = False  # the CPU must know all tokens

    def __init__(self, cpu: CpuExecutor, gpu: LastLayers) -> None:
        self.cpu, self.gpu = cpu, gpu
        self.vocab = gpu.vocab
        self.max_batched_tokens = min(cpu.max_batched_tokens, gpu.max_batched_tokens)
        self.max_logits = gpu.max_logits

    def launch(self, batch: Batch) -> Handle:
        every = np.arange(len(batch.tokens), dtype=np.int32)
        first = replace(batch, logits_indices=every, output="hidden", samples=[], adapters=_part(batch, 0, True))
        rows = self.cpu.launch(first).values()
        return self.gpu.launch(replace(batch, adapters=_part(batch, 1)), given=rows)

    def place_adapter(self, terms: Terms) -> tuple[Any, Any]:
        return self.cpu.place_adapter(terms), self.gpu.place_adapter(terms)


def _part(batch: Batch, number: int, every_row: bool = False) -> list[AdapterRows]:
    """Adapters as one of the two devices has them. `every_row`: all rows are wanted, not those of logits alone."""
    parts = [replace(one, adapter=one.adapter[number]) for one in batch.adapters]
    if every_row:
        parts = [replace(one, logits_rows=one.rows, logits_weights=one.weights) for one in parts]
    return parts


def part_of(layout: Layout, layers: set[int]) -> Layout:
    """The layout of some layers alone, in the groups of all."""
    specs: tuple[LayerSpec, ...] = tuple(spec if n in layers else None for n, spec in enumerate(layout.specs))
    part = replace(layout, specs=specs)
    group_of = {layer: group for layer, group in layout.group_of.items() if layer in layers}
    own = (replace(group, layers=tuple(n for n in group.layers if n in layers)) for group in layout.groups)
    groups = tuple(map(part._with_sizes, own))
    part.__dict__.update(groups=groups, group_of=group_of)  # where cached properties are kept
    return part

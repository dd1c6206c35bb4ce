"""A GPU that is too small for a model: its last layers run there, the first ones on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..arrays import Bytes
from ..cache.layout import Layout
from ..cache.store import HostStore, KVStore
from ..ops.cut import cut, layers_of, weights_of
from ..ops.graph import Graph
from ..ops.specs import LayerSpec
from ..tensor import QuantTensor
from .batch import Batch
from .cpu import CpuDevice, CpuExecutor
from .cuda import CudaDevice, CudaExecutor, CudaHandle


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
        return self._of(layer).read(layer, page, count)

    def write(self, layer: int, page: int, parts: Sequence[Bytes], first: int = 0) -> None:
        self._of(layer).write(layer, page, parts, first)

    def _of(self, layer: int) -> KVStore:
        return self.device if layer in self._on_device else self.host


class HybridDevice(CudaDevice):
    """The last `gpu_layers` layers of a graph are on the GPU, with all that follows them."""

    def __init__(self, gpu: CudaDevice, cpu: CpuDevice, graph: Graph, gpu_layers: int) -> None:
        super().__init__(gpu.device, gpu.options)
        cpu.max_batched_tokens = self.max_batched_tokens
        self._cpu, self._layers = cpu, gpu_layers
        first, rest = cut(graph, gpu_layers)
        self._on_device = frozenset(layers_of(rest.nodes))
        own = weights_of(rest)
        self._on_host = {address: w.nbytes for address, w in weights_of(first).items() if address not in own}
        self.numerics = f"{gpu_layers} layers on {gpu.numerics}, {cpu.numerics}"

    def pack(self, layout: str, nbytes: int) -> Callable[[QuantTensor], QuantTensor] | None:
        """The CPU's own weights as it wants them, if memory is large enough; those of the GPU are sent as they are."""
        host_bytes, wanted = sum(self._on_host.values()), self._cpu.layout
        if host_bytes > self._cpu.memory_bytes(host_bytes, wanted) * 3 // 4:
            return None
        packed = self._cpu.pack(wanted, host_bytes + 256 * len(self._on_host))
        if packed is None:
            return None
        return lambda w: packed(w) if w.stored.ctypes.data in self._on_host else w

    def make_store(self, layout: Layout, pages: Sequence[int]) -> HybridStore:  # type: ignore[override]
        own = {layer for layer in layout.group_of if layer in self._on_device}
        host = self._cpu.make_store(part_of(layout, set(layout.group_of) - own), pages)
        device: Any = super().make_store(part_of(layout, own), pages)
        return HybridStore(layout, host, device, frozenset(own))

    def make_executor(self, graph: Graph, store: HybridStore, vocab: int) -> HybridExecutor:  # type: ignore[override]
        """Of a graph that was recorded anew, with weights as devices want them: it is cut at the same place."""
        first, rest = cut(graph, self._layers)
        assert isinstance(store.host, HostStore)
        return HybridExecutor(
            self._cpu.make_executor(first, store.host, vocab),
            super().make_executor(rest, store.device, vocab),  # type: ignore[arg-type]
        )


class HybridExecutor:
    """The CPU runs its part of a step first, and hands its rows to the GPU."""

    runs_ahead = False  # the CPU must know all tokens

    def __init__(self, cpu: CpuExecutor, gpu: CudaExecutor) -> None:
        self.cpu, self.gpu = cpu, gpu
        self.vocab, self.adapters = gpu.vocab, gpu.adapters
        self.max_batched_tokens = min(cpu.max_batched_tokens, gpu.max_batched_tokens)
        self.max_logits = gpu.max_logits

    def launch(self, batch: Batch) -> CudaHandle:
        every = np.arange(len(batch.tokens), dtype=np.int32)
        rows = self.cpu.launch(replace(batch, logits_indices=every, output="hidden", samples=[])).values()
        return self.gpu.launch(batch, given=rows)


def part_of(layout: Layout, layers: set[int]) -> Layout:
    """The layout of some layers alone, in the groups of all."""
    specs: tuple[LayerSpec, ...] = tuple(spec if n in layers else None for n, spec in enumerate(layout.specs))
    part = replace(layout, specs=specs)
    group_of = {layer: group for layer, group in layout.group_of.items() if layer in layers}
    own = (replace(group, layers=tuple(n for n in group.layers if n in layers)) for group in layout.groups)
    groups = tuple(map(part._with_sizes, own))
    part.__dict__.update(groups=groups, group_of=group_of)  # where cached properties are kept
    return part

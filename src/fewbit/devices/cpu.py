"""The CPU: native plans, one call a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..arrays import Arena
from ..cache.layout import Layout
from ..cache.store import HostStore
from ..errors import RequestError
from ..ops import cpu
from ..ops.cpu.plan import build
from ..ops.graph import Graph
from ..ops.passes import hidden, select_logits
from ..ops.specs import AttentionSpec
from ..ops.validation import chosen_activations
from ..tensor import QuantTensor
from . import MAX_BATCHED_TOKENS, DeviceOptions
from .batch import Batch
from .host import HostHandle


def make(options: DeviceOptions) -> CpuDevice:
    return CpuDevice(options)


class CpuDevice:
    name = "cpu"
    layouts = ("interleaved16", "rows")

    def __init__(self, options: DeviceOptions) -> None:
        self.activations = chosen_activations(options.activations)
        self.threads = cpu.checked_threads(options.threads)
        self.max_batched_tokens = options.max_batched_tokens
        self.layout = "rows" if self.activations == "exact" else "interleaved16"  # exact products read rows

    def pack(self, layout: str, nbytes: int) -> Callable[[QuantTensor], QuantTensor] | None:
        if layout == "rows":
            return None
        arena = Arena(nbytes)
        return lambda w: cpu.repack(w, self.threads, arena)

    def make_store(self, layout: Layout, pages: Sequence[int]) -> HostStore:
        return HostStore(layout, pages, lambda spec: tiles_fit(layout, spec))

    def make_executor(self, graph: Graph, store: HostStore, vocab: int) -> CpuExecutor:
        return CpuExecutor(graph, store, vocab, self.activations, self.threads, self.max_batched_tokens)


def tiles_fit(layout: Layout, spec: AttentionSpec) -> bool:
    """Whether K and V of a layer lie best as the matrix tiles of this machine want them."""
    return cpu.keeps_tiles(layout.k, layout.v, layout.page_tokens, spec.k_dim, spec.v_dim)


class CpuExecutor:
    """Runs a model's steps at once, when they are launched."""

    def __init__(
        self,
        graph: Graph,
        store: HostStore,
        vocab: int,
        activations: str | None,
        threads: int,
        max_batched_tokens: int = MAX_BATCHED_TOKENS,
    ) -> None:
        self.vocab = vocab
        self.max_batched_tokens = self.max_logits = max_batched_tokens
        self.adapters: frozenset[str] = frozenset()
        self.activations, self.threads = activations, threads
        self.graph, self.store = graph, store
        self.plans = {"logits": build(select_logits(graph), store)}
        self._rows = {"logits": np.empty((self.max_logits, vocab), np.float32)}

    def launch(self, batch: Batch) -> HostHandle:
        plan = self.plans.get(batch.output) or self._make_hidden()
        view, rows = batch.view, self._rows[batch.output][: len(batch.logits_indices)]
        try:
            plan.run(
                batch.tokens, view.groups, view.lengths, view.q_starts, batch.logits_indices, rows, self.activations,
                self.threads,
            )  # fmt: skip
        except ValueError as error:
            raise RequestError(str(error)) from None
        return HostHandle(batch, rows, cpu, self.threads)

    def _make_hidden(self) -> cpu.Plan:
        graph = hidden(self.graph)
        self._rows["hidden"] = np.empty((self.max_logits, graph.result.width), np.float32)
        self.plans["hidden"] = build(select_logits(graph), self.store)
        return self.plans["hidden"]

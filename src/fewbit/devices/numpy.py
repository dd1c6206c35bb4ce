"""NumPy: what every other device is compared with, slow and obvious. Weights are decoded once and kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

import numpy as np

from ..arrays import Floats
from ..cache.layout import Layout
from ..cache.store import HostStore
from ..cache.view import View
from ..errors import RequestError
from ..load_options import LoadOptions
from ..ops import attention, reference_sampling
from ..ops import numpy as ops
from ..ops.collective import ThreadGroup
from ..ops.graph import Graph
from ..ops.low_rank import Terms, add_terms
from ..ops.memory import host_memory
from ..ops.passes import select_logits, with_output
from ..ops.specs import AttentionParams
from . import MAX_BATCHED_TOKENS, Device
from .batch import Batch
from .host import HostHandle


def make(options: LoadOptions) -> NumpyDevice:
    if options.threads is not None:
        raise RequestError("device 'numpy' has no threads to set; leave threads out")
    if options.activations not in (None, "exact"):
        raise RequestError("device 'numpy' takes activations as they are; leave activations out")
    if options.batch_invariant:
        raise RequestError("device 'numpy' is not batch-invariant: its sums change with the batch; leave it out")
    return NumpyDevice(options.max_batched_tokens or MAX_BATCHED_TOKENS)


class NumpyDevice(Device):
    name = "numpy"
    decodes = True
    takes_rows = takes_images = True

    def __init__(self, max_batched_tokens: int = MAX_BATCHED_TOKENS) -> None:
        self.max_batched_tokens = max_batched_tokens

    def memory_bytes(self, file_bytes: int, layout: str) -> int:
        return host_memory(file_bytes, layout)

    def make_store(self, layout: Layout, pages: Sequence[int]) -> HostStore:
        return HostStore(layout, pages)

    def make_executor(self, graph: Graph, store: HostStore, vocab: int) -> NumpyExecutor:
        return NumpyExecutor(graph, store, vocab, self.max_batched_tokens)

    def make_group(self, devices: Sequence[Device]) -> ThreadGroup:
        return ThreadGroup(len(devices))


class NumpyExecutor:
    """Walks the graph of a model, operation by operation."""

    def __init__(
        self, graph: Graph, store: HostStore, vocab: int, max_batched_tokens: int = MAX_BATCHED_TOKENS
    ) -> None:
        self.vocab = vocab
        self.max_batched_tokens = self.max_logits = max_batched_tokens
        self.runs_ahead = False
        self.graph = graph
        self._graphs: dict[str, Graph] = {}  # by what they give
        self._store = store
        self._weights = ops.DecodedWeights()

    def place_adapter(self, terms: Terms) -> Terms:
        return terms

    def launch(self, batch: Batch, given: Floats | None = None) -> HostHandle:
        view = batch.view
        if len(batch.tokens) and not 0 <= batch.tokens.min() <= batch.tokens.max() < self.vocab:
            raise RequestError(f"there is no such token: the model has the tokens 0 to {self.vocab - 1}")
        positions = view.positions().astype(np.int32)
        step = ops.NumpyStep(
            batch.tokens, positions, batch.logits_indices, _Paged(self._store, view), view.sequences, given,
            self._weights, batch.adapters, batch.inserted, batch.axes, batch.spans,
        )  # fmt: skip
        if batch.output not in self._graphs:
            self._graphs[batch.output] = select_logits(with_output(self.graph, batch.output))
        graph = self._graphs[batch.output]
        if batch.adapters:
            graph = add_terms(graph, {key for one in batch.adapters for key in one.adapter})
        rows = np.asarray(ops.run(graph, step), np.float32)
        return HostHandle(batch, rows, reference_sampling)


class _Paged:
    """K and V of a step's sequences, in the pages of a store."""

    def __init__(self, store: HostStore, view: View) -> None:
        self._store, self._view = store, view

    def append(self, layer: int, sequences: Sequence[int], k: Floats, v: Floats) -> None:
        kv, slots = self._store.kv(layer), self._view.slots(self._store.group_of(layer))
        attention.kv_write(kv.k_format, kv.k, k, slots, kv.rotate)
        attention.kv_write(kv.v_format, kv.v, v, slots, is_value=True)

    def attend(self, layer: int, sequences: Sequence[int], q: Floats, params: AttentionParams) -> Floats:
        tables = self._view.page_tables(self._store.group_of(layer))
        out = np.empty((*q.shape[:2], self._store.layout.attention(layer).v_dim), np.float32)
        return attention.attend(q, self._store.kv(layer), tables, params, out=out)

    def states(self, layer: int, offset: int, shape: tuple[int, ...]) -> Iterator[tuple[slice, Floats]]:
        view, slots = self._view, self._store.states(layer)
        part = slice(offset, offset + 4 * prod(shape))
        for s, (start, end) in enumerate(pairwise(view.q_starts.tolist())):
            state = slots[view.reads[s], part].view(np.float32).reshape(shape).copy()
            yield slice(start, end), state
            slots[view.writes[s], part] = state.reshape(-1).view(np.uint8)

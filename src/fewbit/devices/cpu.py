"""The CPU: native plans, one call a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ..arrays import Arena, Floats, Ints
from ..cache.layout import Layout
from ..cache.store import HostStore
from ..errors import RequestError
from ..load_options import LoadOptions
from ..ops import cpu
from ..ops.arguments import ACTIVATIONS
from ..ops.cpu.adapters import native_adapter
from ..ops.cpu.numa import Placement, ThreadBinding
from ..ops.cpu.plan import build
from ..ops.graph import Graph
from ..ops.inserts import inserted_parts
from ..ops.low_rank import ProductKey, Terms, product_keys
from ..ops.memory import host_memory
from ..ops.passes import select_logits, with_output
from ..ops.sampling_arrays import MAX_INT
from ..ops.specs import AttentionSpec
from ..tensor import QuantTensor
from . import MAX_BATCHED_TOKENS, Device
from .batch import Batch
from .host import HostHandle


def make(options: LoadOptions) -> CpuDevice:
    if options.activations not in (None, *ACTIVATIONS):
        raise RequestError(
            "device 'cpu' takes activations in int8, int16 or f32 (exact), not f16; leave activations out"
        )
    return CpuDevice(options)


class CpuDevice(Device):
    name = "cpu"
    activation_types = ACTIVATIONS
    layouts = ("interleaved16", "rows")
    takes_rows = takes_images = places_threads = True

    def __init__(self, options: LoadOptions) -> None:
        self.activations = options.activations
        self.placement = Placement(options.numa, options.pin_threads)
        self.threads = cpu.checked_threads(options.threads or self.placement.threads)
        self.max_batched_tokens = options.max_batched_tokens or MAX_BATCHED_TOKENS
        self.batch_invariant = options.batch_invariant
        self.numerics = cpu.isa()
        self.layout = "rows" if self.activations == "exact" else "interleaved16"  # exact products read rows

    def memory_bytes(self, file_bytes: int, layout: str) -> int:
        return host_memory(file_bytes, layout)

    def pack(self, layout: str, nbytes: int) -> Callable[[QuantTensor], QuantTensor] | None:
        if layout == "rows":
            return None
        arena, is_placed = Arena(nbytes, self.placement.place), self.placement.place is not None

        def pack(w: QuantTensor) -> QuantTensor:
            packed = cpu.repack(w, self.threads, arena)
            return copied(w, arena) if packed is w and is_placed else packed

        return pack

    def make_store(self, layout: Layout, pages: Sequence[int]) -> HostStore:
        return HostStore(layout, pages, lambda spec: tiles_fit(layout, spec), self.placement.place)

    def make_executor(self, graph: Graph, store: HostStore, vocab: int) -> CpuExecutor:
        threads = cpu.checked_threads(self.threads)
        binding = self.placement.bind()
        return CpuExecutor(
            graph, store, vocab, self.activations, threads, self.max_batched_tokens, self.batch_invariant, binding
        )

    def make_group(self, devices: Sequence[Device]) -> cpu.ThreadCollective:
        return cpu.ThreadCollective(len(devices))


def copied(w: QuantTensor, arena: Arena) -> QuantTensor:
    """A matrix in memory of an arena."""
    out = arena.take(w.nbytes)
    out[:] = w.stored
    return QuantTensor(out, w.shape, w.format, w.layout)


def tiles_fit(layout: Layout, spec: AttentionSpec) -> bool:
    """Whether K and V of a layer lie best as the matrix tiles of this machine want them."""
    return cpu.keeps_tiles(layout.k, layout.v, layout.page_tokens, spec.k_dim, spec.v_dim)


def max_candidates(batch: Batch) -> Ints | None:
    """How many of the largest logits are sampled from, for each token that has logits. None: all logits are read."""
    if not batch.samples or any(row.needs_values for row in batch.rows):
        return None
    counts = np.zeros(len(batch.logits_indices), np.int32)
    for index, one in batch.samples:
        count = one.params.max_candidates
        if one.seen is not None or one.bias is not None or one.mask is not None or not count:
            return None
        counts[index] = max(counts[index], min(count, MAX_INT))
    return counts


class CpuStep:
    """A step of a plan, run whole or in slices."""

    def __init__(self, run: Callable[..., bool], rows: Floats) -> None:
        self._run, self._rows, self._has_begun = run, rows, False

    def run(self, seconds: float | None) -> bool:
        """Go on for about so long; None: to the end. Whether it is done."""
        try:
            is_done = self._run(seconds=seconds, resumes=self._has_begun)
        except ValueError as error:
            raise RequestError(str(error)) from None
        self._has_begun = True
        return is_done

    def values(self) -> Floats:
        return self._rows


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
        batch_invariant: bool = False,
        binding: ThreadBinding | None = None,
    ) -> None:
        self._binding = binding  # of the threads; it ends with the executor
        self.vocab = vocab
        self.max_batched_tokens = self.max_logits = max_batched_tokens
        self.runs_ahead = False
        self.activations, self.threads = activations, threads
        self.graph, self.store, self.batch_invariant = graph, store, batch_invariant
        self.plans: dict[str, cpu.Plan] = {}  # by what they give
        self._rows: dict[str, Floats] = {}
        self._adapted: dict[str, cpu.Plan] = {}  # with what adapters add
        self._products = {key: number for number, key in enumerate(product_keys(graph))}
        self._changed: set[ProductKey] = set()  # products that some adapter changes
        self._parts = inserted_parts(graph)
        self._plan("logits" if graph.has_head else "hidden")

    def launch(self, batch: Batch, given: Floats | None = None) -> HostHandle:
        step = self.slices(batch, given)
        step.run(None)
        return HostHandle(batch, step.values(), cpu, self.threads)

    def slices(self, batch: Batch, given: Floats | None = None) -> CpuStep:
        plan = self._adapted_plan(batch.output) if batch.adapters else self._plan(batch.output)
        view, rows = batch.view, self._rows[batch.output][: len(batch.logits_indices)]
        run = partial(
            plan.run, batch.tokens, view.groups, view.lengths, view.q_starts, batch.logits_indices, rows,
            self.activations, self.threads, view.reads, view.writes, max_candidates(batch), given,
            [(one.adapter, one.rows, one.weights, one.logits_rows, one.logits_weights) for one in batch.adapters],
            [(one.part, one.tokens, one.rows) for one in batch.inserted if one.part in self._parts],
            batch.axes, batch.spans,
        )  # fmt: skip
        return CpuStep(run, rows)

    @property
    def expert_bytes(self) -> int:
        """Bytes of the experts that all steps so far have read."""
        return sum(plan.expert_bytes() for plan in (*self.plans.values(), *self._adapted.values()))

    def place_adapter(self, terms: Terms) -> cpu.Adapter:
        own = {key: term for key, term in terms.items() if key in self._products}
        if not self._changed.issuperset(own):
            self._changed |= own.keys()
            self._adapted.clear()
        return native_adapter(own, self._products)

    def close(self) -> None:
        """Let threads run anywhere again, unless another model holds them."""
        if self._binding is not None:
            self._binding.release()

    def _adapted_plan(self, output: str) -> cpu.Plan:
        """The plan of steps in which some row has an adapter. The others run the same plan as without adapters."""
        if output not in self._adapted:
            self._plan(output)  # its rows are those of this one
            products = {key: self._products[key] for key in self._changed}
            self._adapted[output] = build(
                select_logits(with_output(self.graph, output)), self.store, batch_invariant=self.batch_invariant,
                threads=self.threads, products=products,
            )  # fmt: skip
        return self._adapted[output]

    def _plan(self, output: str) -> cpu.Plan:
        if output not in self.plans:
            graph = with_output(self.graph, output)
            self._rows[output] = np.empty((self.max_logits, graph.result.width), np.float32)
            self.plans[output] = build(
                select_logits(graph), self.store, batch_invariant=self.batch_invariant, threads=self.threads
            )
        return self.plans[output]

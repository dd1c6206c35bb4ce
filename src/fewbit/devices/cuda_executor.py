"""Runs a model's steps on an NVIDIA GPU: a step is a list of kernels; steps of decoding are captured and replayed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Floats
from ..errors import RequestError
from ..ops.cuda.adapters import GpuAdapter, GpuAdapters, mix_of
from ..ops.cuda.attention import FEW_TOKENS
from ..ops.cuda.extras import StepExtras, packed_rows, uses_of
from ..ops.cuda.inputs import InputLayout, Int32s, exact_layout, find_runs
from ..ops.cuda.padding import BATCHES, LENGTHS, padded_batch, prompt_layout
from ..ops.cuda.pages import DeviceStore
from ..ops.cuda.plan import HOSTED, build
from ..ops.cuda.plan_segments import Plan, PlanOptions
from ..ops.cuda.sampling import GpuSampler, Packed, pack_samples
from ..ops.cuda.session import CapturedGraph
from ..ops.cuda.values import Collector, Launcher
from ..ops.cuda.weights import Weights
from ..ops.graph import Graph
from ..ops.low_rank import Terms, product_keys
from ..ops.passes import select_logits, with_output
from .batch import Batch, has_late_masks, resolve_masks
from .cuda_handles import CudaHandle, CudaStep, StagingMemory, fetch_rows

MAX_LOGITS = 256  # rows: a vocabulary of 128,000 tokens takes 131 MB of them
MAX_DRAFTED = 64  # tokens of a step with drafts that is captured: each of them reads the K and V of its sequence
STAGES = 4  # steps whose inputs may be on their way
PROMPT = 512  # tokens
SHORT = 512  # tokens of the longest sequence: kernels do not depend on it


class BucketKey(NamedTuple):
    """Steps of decoding that one graph serves."""

    size: int
    longest: int  # tokens of a sequence
    mix: int  # places for adapters of each token
    is_drafted: bool  # some rows have several new tokens
    num_axes: int


@dataclass
class Bucket:
    """Steps of decoding of one size."""

    layout: InputLayout
    is_warm: bool = False  # one of them was run: kernels are compiled, and scratch memory is there
    graphs: dict[bool, CapturedGraph] = field(default_factory=dict)  # with the kernels of sampling, and without
    held: list[Any] = field(default_factory=list)


class CudaExecutor:
    """Runs a model's steps on a GPU, in the order in which they were launched. The host goes on meanwhile."""

    runs_ahead = True

    def __init__(self, graph: Graph, store: DeviceStore, vocab: int, weights: Weights, options: PlanOptions) -> None:
        self.vocab = vocab
        self.max_batched_tokens, self.max_logits = options.max_tokens, options.max_logits
        self.graph, self.store, self.weights, self.options = graph, store, weights, options
        self.device = weights.device
        self.sampler = GpuSampler(self.device, min(options.max_logits, MAX_LOGITS), vocab) if graph.has_head else None
        self.plans: dict[str, Plan] = {}
        self.adapters = GpuAdapters(self.device, product_keys(graph))
        self._adapted: dict[str, Plan] = {}  # with what adapters add
        self.buckets: dict[BucketKey, Bucket] = {}
        self._stages: list[StagingMemory] = []
        self._turn = 0
        self._inputs: Any = None  # device memory, grows
        self._inserted: Any = None  # rows from outside, likewise
        self._extras = uses_of(graph, options.ctx)
        self._samples = self.device.allocate(self.sampler.max_packed_bytes) if self.sampler else None
        groups = (node.attributes["group"] for node in graph.nodes if node.operation in HOSTED)
        self._captures = not options.host_experts.layers and all(group.can_be_captured for group in groups)
        self._plan("logits" if graph.has_head else "hidden")
        other = self.max_batched_tokens if sees_images(graph) else 1  # many patches attend in larger blocks
        self.prepare([(other, 1), (min(PROMPT, self.max_batched_tokens), 1)])

    def prepare(self, steps: Sequence[tuple[int, int]]) -> None:
        """Compile the kernels of steps of so many tokens of so many sequences, all at once, if that was never done."""
        groups = len(self.store.layout.groups)
        counts = [[-(-tokens // sequences)] * sequences for tokens, sequences in steps]
        layouts = [step_layout(each, groups) for each in counts]
        if sees_images(self.graph):  # all rows come out
            layouts = [replace(layout, logits=layout.tokens) for layout in layouts]
        self.prepare_layouts(layouts)

    def prepare_layouts(self, layouts: Iterable[InputLayout]) -> None:
        """The same of steps with any layouts."""
        plan = self.plans["logits" if self.graph.has_head else "hidden"]
        collector = Collector(self.device, self.device.stream)
        for layout in layouts:
            plan.launch(collector, layout.inputs(0, 0))
            if self.sampler:
                self.sampler.launch(collector, plan.result, 0, layout.logits)
        self.device.compile(list(collector.entries))

    def launch(self, batch: Batch, given: Floats | None = None) -> CudaHandle:
        """`given`: rows that another device made, for a plan that begins with them."""
        mix = mix_of(batch.adapters, len(batch.tokens))
        plan = self._adapted_plan(batch.output) if mix else self._plan(batch.output)
        stage = self._next_stage()
        extras = self._extras.of(batch)
        bucket, layout = self._layout(batch, mix, extras)
        slots = layout.logits if bucket else len(batch.samples)
        is_late = has_late_masks(batch)
        packed = None if is_late else self._pack_samples(batch, slots, stage)
        inputs = self._send(batch, layout, stage, extras)
        self._give(plan, given)
        self._run(plan, bucket, layout, inputs, packed)
        if is_late:
            stage.event = self.device.mark()  # what follows may fail
            packed = self._pack_samples(batch, slots, stage)
            self._sample(Launcher(self.device, self.device.stream), plan, packed)
        return self._finish(batch, plan, packed, stage)

    def slices(self, batch: Batch, given: Floats | None = None) -> CudaStep:
        """A step of an encoder, whose launches the GPU gets some at a time: the streams of others go on meanwhile."""
        plan, stage, extras = self._plan(batch.output), self._next_stage(), self._extras.of(batch)
        layout = self._prompt_layout(batch, 0, extras)
        inputs = self._send(batch, layout, stage, extras)
        self._give(plan, given)
        rows = int(self._inserted.handle) if self._inserted is not None else 0
        stage.event = self.device.mark()
        return CudaStep(self.device, plan, layout.inputs(inputs, 0, rows), len(batch.logits_indices))

    def resize(self, store: DeviceStore, max_tokens: int) -> None:
        """Take steps of more tokens, of a graph without logits, and a store for them. Weights stay where they are."""
        self.plans.clear()  # their rows are given back
        self._adapted.clear()
        self.buckets = {}
        ctx = max((pages * store.layout.page_tokens for pages in store.pages), default=1)
        self.store, self.max_batched_tokens, self.max_logits = store, max_tokens, max_tokens
        self.options = replace(self.options, max_tokens=max_tokens, max_logits=max_tokens, ctx=ctx)
        self._extras = uses_of(self.graph, ctx)
        self._plan("hidden")

    def _give(self, plan: Plan, rows: Floats | None) -> None:
        if rows is not None and plan.given is not None:
            wide = np.zeros((len(rows), plan.given.stride), np.float32)
            wide[:, : plan.given.width] = rows
            self.device.upload(wide, plan.given.pointer)

    def _run(self, plan: Plan, bucket: Bucket | None, layout: InputLayout, inputs: int, packed: Packed | None) -> None:
        """Launch the kernels of a step, as one graph if there is one; those of sampling too, if samples are packed."""
        if bucket is None or not bucket.is_warm or not self._captures:
            self._launch(plan, layout, inputs, packed, [])
            if bucket is not None:
                bucket.is_warm = True
            return
        graph = bucket.graphs.get(packed is not None)
        graph = graph or self.device.capture(lambda: self._launch(plan, layout, inputs, packed, bucket.held))
        if graph is None:
            self._launch(plan, layout, inputs, packed, [])
        else:
            bucket.graphs[packed is not None] = graph
            graph.launch()

    def _launch(self, plan: Plan, layout: InputLayout, inputs: int, packed: Packed | None, held: list[Any]) -> None:
        run = Launcher(self.device, self.device.stream, held)
        previous = self.sampler.tokens if self.sampler else 0
        rows = int(self._inserted.handle) if self._inserted is not None else 0
        plan.launch(run, layout.inputs(inputs, previous, rows))
        self._sample(run, plan, packed)

    def _sample(self, run: Launcher, plan: Plan, packed: Packed | None) -> None:
        if packed is not None and self.sampler is not None and self._samples is not None:
            self.sampler.launch(run, plan.result, int(self._samples.handle), packed.slots)

    def _plan(self, output: str) -> Plan:
        if output not in self.plans:
            graph = select_logits(with_output(self.graph, output))
            self.plans[output] = build(graph, self.store, self.weights, self.options)
            self.weights.close()
        return self.plans[output]

    def place_adapter(self, terms: Terms) -> GpuAdapter:
        before = len(self.adapters.products), self.adapters.max_rank
        placed = self.adapters.place(terms)
        if before != (len(self.adapters.products), self.adapters.max_rank):
            self._adapted.clear()
            self.buckets = {key: bucket for key, bucket in self.buckets.items() if not key.mix}
        return placed

    def _adapted_plan(self, output: str) -> Plan:
        """The plan of steps in which some row has an adapter. The others run the same plan as without adapters."""
        if output not in self._adapted:
            graph = select_logits(with_output(self.graph, output))
            self._adapted[output] = build(graph, self.store, self.weights, self.options, self.adapters)
            self.weights.close()
        return self._adapted[output]

    def _layout(self, batch: Batch, mix: int, extras: StepExtras) -> tuple[Bucket | None, InputLayout]:
        """Steps of decoding, drafts included, are padded to a size that comes again and again."""
        view, n = batch.view, len(batch.tokens)
        most_new, most = int(np.diff(view.q_starts).max(initial=1)), int(view.lengths.max(initial=1))
        is_plain = not extras.inserted and extras.spans is None
        is_decoding = is_plain and batch.output == "logits" and bool(batch.samples) and most_new <= FEW_TOKENS
        largest = min(BATCHES[-1] if most_new == 1 else MAX_DRAFTED, self.max_logits)
        if not is_decoding or max(n, len(batch.samples)) > largest or most > LENGTHS[-1]:
            return None, self._prompt_layout(batch, mix, extras)
        size = min(padded_batch(max(n, len(batch.samples))), self.max_logits)
        longest = next(m for m in LENGTHS if m >= most)
        key = BucketKey(size, longest, mix, most_new > 1, extras.num_axes)
        if key not in self.buckets:
            pages = size * -(-longest // view.page_tokens)
            most_new = FEW_TOKENS if key.is_drafted else 1
            sizes = size, size, size, (pages,) * len(view.tables), most_new, longest
            layout = InputLayout(*sizes, mix=mix, num_axes=extras.num_axes)
            self.buckets[key] = Bucket(layout)
        bucket = self.buckets[key]
        return bucket, bucket.layout

    def _prompt_layout(self, batch: Batch, mix: int, extras: StepExtras) -> InputLayout:
        """Other steps are padded where all rows are tokens of a prompt or of an output."""
        n, logits = len(batch.tokens), len(batch.logits_indices)
        is_plain = batch.output == "logits" and self.graph.has_head and self.graph.is_causal and not mix
        if not is_plain or not extras.is_empty or self.plans["logits"].given is not None:
            return exact_layout(n, batch.view, logits, mix, extras)
        return prompt_layout(batch.view, logits, self.max_batched_tokens, self.max_logits)

    # Memory that a step's inputs and results go through

    def _next_stage(self) -> StagingMemory:
        if len(self._stages) < STAGES:
            sizes = (0, self.sampler.max_packed_bytes, self.sampler.nbytes) if self.sampler else (0, 0, 0)
            self._stages.append(StagingMemory(*(self.device.pinned(size) for size in sizes)))
        self._turn = (self._turn + 1) % len(self._stages)
        stage = self._stages[self._turn]
        stage.wait()
        return stage

    def _send(self, batch: Batch, layout: InputLayout, stage: StagingMemory, extras: StepExtras) -> int:
        if extras.inserted:
            self._insert(packed_rows(extras.inserted))
        nbytes = 4 * layout.total
        if len(stage.inputs) < nbytes:
            stage.inputs = self.device.pinned(2 * nbytes)
        if self._inputs is None or self._inputs.size < nbytes:
            self._inputs = self.device.allocate(max(2 * nbytes, 1 << 20))
            self.buckets = {}  # their graphs read the old one
        inputs: Int32s = stage.inputs[:nbytes].view(np.int32)
        used = layout.pack(inputs, batch.tokens, batch.view, batch.logits_indices, batch.adapters, extras)
        self.device.send(inputs[:used], int(self._inputs.handle))
        return int(self._inputs.handle)

    def _insert(self, rows: Floats) -> None:
        """Send rows from outside, behind all steps that read others."""
        if self._inserted is None or self._inserted.size < rows.nbytes:
            self._inserted = self.device.allocate(rows.nbytes)
        self.device.upload(rows, int(self._inserted.handle))

    def _pack_samples(self, batch: Batch, slots: int, stage: StagingMemory) -> Packed | None:
        if not batch.samples or self.sampler is None or self._samples is None:
            return None
        samples, errors = resolve_masks(batch.samples)
        packed = pack_samples(samples, self.vocab, slots)
        packed.errors.update(errors)
        if not self.sampler.fits(packed):
            raise RequestError("the penalties and biases of a step are too long for the GPU; send fewer requests")
        data = stage.samples[: packed.data.nbytes]
        data[:] = packed.data.view(np.uint8)
        self.device.send(data, int(self._samples.handle))
        return packed

    def _finish(self, batch: Batch, plan: Plan, packed: Packed | None, stage: StagingMemory) -> CudaHandle:
        needs_values = any(row.needs_values for row in batch.rows)  # tokens alone are sampled on the GPU
        values = fetch_rows(self.device, plan.result, len(batch.logits_indices)) if needs_values else None
        if packed is not None and self.sampler is not None:
            self.device.fetch(self.sampler.results, stage.results)
        stage.event = self.device.mark()
        return CudaHandle(self.device, batch, plan.result, packed, stage, values)


def sees_images(graph: Graph) -> bool:
    """Whether a graph is an image encoder, which takes many rows at once."""
    has_given = any(node.operation == "given" for node in graph.nodes)
    looks_back = any(node.operation == "attend" and node.attributes["causal"] for node in graph.nodes)
    return has_given and not graph.has_head and not looks_back


def step_layout(counts: Sequence[int], groups: int) -> InputLayout:
    """A step of so many new tokens of each sequence, which wants the logits of the last ones."""
    runs = find_runs(counts)
    return InputLayout(sum(counts), len(counts), len(counts), (1,) * groups, max(counts), SHORT, runs)

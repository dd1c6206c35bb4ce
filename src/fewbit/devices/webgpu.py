"""GPUs through WebGPU: a step is a list of kernels, prepared once for its size and submitted at once."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..arrays import Floats, Ints
from ..cache.layout import Layout
from ..cache.store import KVStore
from ..errors import DeviceError, RequestError
from ..load_options import LoadOptions
from ..ops.graph import Graph
from ..ops.low_rank import Terms
from ..ops.memory import available_memory
from ..ops.passes import select_logits, with_output
from ..ops.webgpu.device import Gpu, Prepared, open_gpu
from ..ops.webgpu.inputs import StepLayout
from ..ops.webgpu.model_weights import ModelWeights
from ..ops.webgpu.multiply import RowsAt, token_class
from ..ops.webgpu.pages import PageStore
from ..ops.webgpu.plan import Builder, PlanOptions, Program
from ..ops.webgpu.sampling import PackedSamples, pack_samples, sample_rows, sampled_tokens
from . import MAX_BATCHED_TOKENS, Device
from .batch import Batch, Results, has_late_masks, resolve_masks
from .host import HostHandle, Sampled, decode
from .sending import report_sending

MAX_LOGITS = 64  # rows of a step
MEMORY = "FEWBIT_WEBGPU_MEMORY"  # bytes of a GPU, which WebGPU does not tell
DISCRETE_BYTES = 4 << 30  # that a discrete GPU is taken to have, where nothing says more


def make(options: LoadOptions) -> WebGpuDevice:
    if options.threads is not None and options.gpu_layers is None:  # the layers on the CPU have threads
        raise RequestError("device 'webgpu' has no threads to set; leave threads out")
    if options.activations not in (None, *WebGpuDevice.activation_types):
        raise RequestError("device 'webgpu' takes activations in f32 (exact), f16 or int8; leave activations out")
    if options.batch_invariant:
        raise RequestError("device 'webgpu' is not batch-invariant: its sums change with the batch; leave it out")
    number = options.device.partition(":")[2]
    return WebGpuDevice(open_gpu(int(number) if number else None), options)


class WebGpuDevice(Device):
    """An adapter for one model. Models of a process share the adapter's compiled kernels and its queue."""

    memory_kind = "GPU memory"
    alternative = 'device="cpu"'
    copies_weights = True
    takes_rows = extends_cpu = True
    activation_types = ("exact", "f16", "int8")
    reserve_bytes = 128 << 20

    def __init__(self, gpu: Gpu, options: LoadOptions) -> None:
        self.gpu, self.options = gpu, options
        self.name = options.device
        self.max_batched_tokens = options.max_batched_tokens or MAX_BATCHED_TOKENS
        self.numerics = f"webgpu {gpu.info.backend}"
        if options.activations == "f16" and not gpu.has_f16:
            raise DeviceError(f"{gpu.info.name} has no f16 arithmetic (shader-f16); leave activations out")

    def memory_bytes(self, file_bytes: int, layout: str) -> int:
        if self.gpu.allocated_bytes:  # perhaps by a model that failed: its last frames refer to each other
            for _ in range(2):  # the first pass ends its thread, the second one finds what its frames held
                gc.collect()
        return max(0, adapter_memory(self.gpu) - self.gpu.allocated_bytes)

    def make_store(self, layout: Layout, pages: Sequence[int]) -> KVStore:
        return PageStore(self.gpu, layout, pages)

    def make_executor(self, graph: Graph, store: Any, vocab: int) -> WebGpuExecutor:
        longest = max((pages * store.layout.page_tokens for pages in store.pages), default=1)
        rows = self.gpu.binding_bytes // (4 * max(vocab, 1) + 64)
        causal = graph.has_head and graph.is_causal  # encoders give all rows
        most = max(1, min(MAX_LOGITS, rows)) if causal else self.max_batched_tokens
        sizes = PlanOptions(
            max_tokens=self.max_batched_tokens, max_logits=min(self.max_batched_tokens, most),
            ctx=self.options.ctx or longest, activations=self.options.activations or "exact",
        )  # fmt: skip
        return WebGpuExecutor(graph, store, vocab, ModelWeights(self.gpu, report_sending(self.options, graph)), sizes)


def adapter_memory(gpu: Gpu) -> int:
    """Bytes that models may take: the host's for software and integrated adapters, else what the system tells."""
    given = os.environ.get(MEMORY, "")
    if given:
        if not given.isdecimal():
            raise RequestError(f"{MEMORY} must be a number of bytes, not {given!r}")
        return int(given)
    if gpu.info.kind != "DiscreteGPU":
        return available_memory() * 3 // 4 + gpu.allocated_bytes
    sizes = [int(path.read_text()) for path in Path("/sys/class/drm").glob("card*/device/mem_info_vram_total")]
    return max(sizes, default=DISCRETE_BYTES)


class WebGpuExecutor:
    """Runs a model's steps, one submission each."""

    runs_ahead = False

    def __init__(self, graph: Graph, store: PageStore, vocab: int, weights: ModelWeights, options: PlanOptions) -> None:
        self.vocab = vocab
        self.max_batched_tokens, self.max_logits = options.max_tokens, options.max_logits
        self.graph, self.store, self.weights, self.options = graph, store, weights, options
        self.gpu = weights.gpu
        self.layout = StepLayout(sum(1 for group in store.layout.groups if not group.is_recurrent))
        self._step = self.gpu.allocate(1 << 16, "step")
        self._builders: dict[str, Builder] = {}
        self._programs: dict[tuple[str, int, int], tuple[Program, list[Prepared]]] = {}
        self._sampler: Sampler | None = None
        self._staging: Any = None
        self._staging_bytes = 0
        self.builder("logits" if graph.has_head else "hidden")

    def builder(self, output: str) -> Builder:
        """What makes the programs of an output, "logits" or "hidden"."""
        if output not in self._builders:
            graph = select_logits(with_output(self.graph, output))
            self._builders[output] = Builder(graph, self.store, self.weights, self._step, self.layout, self.options)
            if output == "logits":
                self._sampler = Sampler(self.gpu, self.options.max_logits, self.vocab, self._builders[output])
        return self._builders[output]

    def program(self, output: str, tokens: int, logits: int) -> tuple[Program, list[Prepared]]:
        """The kernels for so many tokens and logits."""
        key = output, token_class(tokens), token_class(logits)
        if key not in self._programs:
            program = self.builder(output).program(*key[1:])
            self._programs[key] = program, self.gpu.prepare(program.dispatches)
        return self._programs[key]

    def place_adapter(self, terms: Terms) -> NoReturn:
        raise RequestError(
            "device 'webgpu' runs no adapters; `fewbit merge` writes a model that has one in its weights"
        )

    def launch(self, batch: Batch, given: Floats | None = None) -> WebGpuHandle:
        """`given`: rows that another device made, for a graph that begins with them."""
        if len(batch.tokens) and not 0 <= batch.tokens.min() <= batch.tokens.max() < self.vocab:
            raise RequestError(f"there is no such token: the model has the tokens 0 to {self.vocab - 1}")
        with self.gpu.lock:
            builder, logits = self.builder(batch.output), len(batch.logits_indices)
            counts = {
                "tokens": len(batch.tokens), "logits": logits, "sequences": len(batch.view.lengths),
                "samples": len(batch.samples),
            }  # fmt: skip
            self._send_step(self.layout.pack(batch.tokens, batch.view, batch.logits_indices, counts))
            program, prepared = self.program(batch.output, len(batch.tokens), logits)
            if given is not None and builder.given_rows is not None:
                self._send_given(given, builder.given_rows)
            return self._submit(batch, program, prepared, counts)

    def _send_given(self, rows: Floats, target: RowsAt) -> None:
        wide = np.zeros((len(rows), target.stride), np.float32)
        wide[:, : target.width] = rows
        self.gpu.upload(wide, target.memory, 4 * target.offset)

    def _send_step(self, numbers: Ints) -> None:
        if self._step.nbytes < numbers.nbytes:
            self._step.free()
            self._step = self.gpu.allocate(2 * numbers.nbytes, "step")
            self._builders, self._programs = {}, {}  # they read the old one
        self.gpu.upload(numbers, self._step)

    def _submit(
        self, batch: Batch, program: Program, prepared: list[Prepared], counts: Mapping[str, int]
    ) -> WebGpuHandle:
        """The kernels of a step, those that sample, and copies of what the host reads."""
        fits = self._sampler is not None and len(batch.samples) <= self._sampler.max_samples
        is_late = has_late_masks(batch) or not fits
        packed, work = None, list(prepared)
        if batch.samples and not is_late and self._sampler is not None:
            packed = pack_samples(batch.samples, self.vocab)
            work += self._sampler.prepare(packed)
        needs_values = any(row.needs_values for row in batch.rows) or (bool(batch.samples) and packed is None)
        rows, token_bytes = counts["logits"] if needs_values else 0, 8 * len(batch.samples) if packed else 0
        row_bytes = 4 * rows * program.result.stride
        staging, copies = self._stage(token_bytes + row_bytes), []
        if packed is not None and self._sampler is not None:
            copies.append((self._sampler.results, 0, staging, 0, token_bytes))
        if row_bytes:
            copies.append((program.result.memory, 4 * program.result.offset, staging, token_bytes, row_bytes))
        self.gpu.submit(work, dict(counts), copies)
        return WebGpuHandle(self, batch, program.result, packed, token_bytes, rows)

    def _stage(self, nbytes: int) -> Any:
        if self._staging is None or self._staging_bytes < nbytes:
            self._staging_bytes = max(2 * nbytes, 4096)
            self._staging = self.gpu.staging(self._staging_bytes)
        return self._staging

    def received(self, nbytes: int) -> Any:
        """What the last step's copies brought: the one round trip of a step."""
        return self.gpu.read(self._staging, nbytes)


class Sampler:
    """Memory and bindings of sampling."""

    def __init__(self, gpu: Gpu, max_samples: int, vocab: int, builder: Builder) -> None:
        self.gpu, self.max_samples, self.vocab = gpu, max_samples, vocab
        self.logits = builder.rows[builder.graph.result]
        self.results = gpu.allocate(8 * max_samples, "sampled tokens")
        self._own = gpu.allocate(4 * max_samples * vocab, "logits of samples")
        self._params = gpu.allocate(1 << 14, "samples")
        self._prepared: list[Prepared] = []

    def prepare(self, packed: PackedSamples) -> list[Prepared]:
        if self._params.nbytes < packed.data.nbytes:
            self._params.free()
            self._params, self._prepared = self.gpu.allocate(2 * packed.data.nbytes, "samples"), []
        self.gpu.upload(packed.data, self._params)
        if not self._prepared:
            work = sample_rows(self.logits, self.vocab, self._params, self._own, self.results)
            self._prepared = self.gpu.prepare([work])
        return self._prepared


class WebGpuHandle:
    """A step that was submitted."""

    __slots__ = ("_batch", "_executor", "_packed", "_read", "_result", "_rows", "_token_bytes", "_values")

    def __init__(
        self, executor: WebGpuExecutor, batch: Batch, result: RowsAt, packed: PackedSamples | None, token_bytes: int,
        rows: int,
    ) -> None:  # fmt: skip
        self._executor, self._batch, self._result, self._packed = executor, batch, result, packed
        self._token_bytes, self._rows, self._read = token_bytes, rows, False
        self._values: Floats | None = None

    def values(self) -> Floats:
        """The logits or hidden states; they are read by themselves if the step did not want them."""
        if self._values is None and self._rows:
            self._receive()
        if self._values is None:
            count, result = len(self._batch.logits_indices), self._result
            raw = self._executor.gpu.download(result.memory, 4 * count * result.stride, 4 * result.offset)
            self._values = self._shaped(raw, count)
        return self._values

    def fetch(self) -> Results:
        from ..ops import cpu

        if self._packed is None:
            if not self._batch.samples and not self._rows:
                return decode(self._batch, None, [], cpu)
            return HostHandle(self._batch, self.values(), cpu).fetch()
        tokens = self._receive()
        samples, _ = resolve_masks(self._batch.samples)
        found = sampled_tokens(tokens.reshape(-1, 2), self._packed.errors)
        sampled: list[Sampled] = []
        for (index, one), token in zip(samples, found, strict=True):
            if isinstance(token, Exception):
                sampled.append(token)
                continue
            logprob = 0.0
            if one.num_logprobs is not None and self._values is not None:
                logprob = float(cpu.log_probabilities(self._values[index : index + 1], [token])[0])
            sampled.append((token, logprob))
        return decode(self._batch, self._values, sampled, cpu)

    def _receive(self) -> Ints:
        """Tokens and statuses of samples; logits, if they were copied, are kept."""
        row_bytes = 4 * self._rows * self._result.stride
        raw = self._executor.received(self._token_bytes + row_bytes)
        if self._rows:
            self._values = self._shaped(raw[self._token_bytes :], self._rows)
        return np.asarray(raw[: self._token_bytes].view(np.int32))

    def _shaped(self, raw: Any, count: int) -> Floats:
        rows = raw.view(np.float32).reshape(count, self._result.stride)
        return np.ascontiguousarray(rows[:, : self._result.width])

"""NVIDIA GPUs as devices: their memory, and what makes stores, executors and groups on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..cache.layout import Layout
from ..cache.store import KVStore
from ..errors import RequestError
from ..load_options import LoadOptions
from ..ops.cuda import gpu
from ..ops.cuda.collective import CudaGroup, LocalGroup
from ..ops.cuda.host_experts import HostExperts, HostRows
from ..ops.cuda.nccl import NcclGroup
from ..ops.cuda.pages import DeviceStore
from ..ops.cuda.plan import check
from ..ops.cuda.plan_segments import PlanOptions
from ..ops.cuda.planned import PlannedGpu
from ..ops.cuda.session import Session
from ..ops.cuda.weights import Weights
from ..ops.graph import Graph
from . import Device
from .cpu_experts import make_experts
from .cuda_executor import MAX_LOGITS, CudaExecutor, sees_images
from .cuda_kernels import USUAL, usual_kernels
from .sending import num_bytes, report_sending

MAX_BATCHED_TOKENS = 4096
SMALL_BYTES = 1 << 30  # of weights: smaller models suffer most from int8, and wait for kernels to start, not for bytes


def make(options: LoadOptions) -> CudaDevice:
    on_cpu = options.gpu_layers is not None or options.cpu_experts is not None  # which has threads
    if options.threads is not None and not on_cpu:
        raise RequestError("device 'cuda' has no threads to set; leave threads out")
    if options.activations not in (None, *CudaDevice.activation_types):
        raise RequestError("device 'cuda' takes one token in int8 or int16, several in f16; leave activations out")
    if (options.max_seqs or 0) > MAX_LOGITS:
        raise RequestError(
            f"device 'cuda' runs at most {MAX_LOGITS} outputs in a step, got max_seqs={options.max_seqs}"
        )
    return CudaDevice(gpu(int(options.device.partition(":")[2] or 0)).session(), options)


class CudaDevice(Device):
    """A GPU for one model, with a session of its own: several models on a card do not share a stream or memory."""

    memory_kind = "GPU memory"
    alternative = 'device="cpu"'
    takes_rows = takes_images = extends_cpu = leaves_experts = True
    keeps_f32 = False
    activation_types = ("int8", "int16")
    reserve_bytes = 512 << 20  # for kernels, cuBLAS, tables
    max_seqs = MAX_LOGITS

    def __init__(self, device: Session, options: LoadOptions) -> None:
        self.device, self.options = device, options
        self.name = options.device
        self.max_batched_tokens = options.max_batched_tokens or MAX_BATCHED_TOKENS
        self.numerics = device.arch
        self.copies_weights = not options.cpu_experts  # in a layout of its own

    def memory_bytes(self, file_bytes: int, layout: str) -> int:
        return self.device.free_bytes()

    def make_store(self, layout: Layout, pages: Sequence[int]) -> KVStore:
        store: Any = DeviceStore(self.device, layout, pages)
        return store  # type: ignore[no-any-return]

    def make_executor(self, graph: Graph, store: DeviceStore, vocab: int) -> CudaExecutor:
        longest = max((pages * store.layout.page_tokens for pages in store.pages), default=1)
        options = self.plan_options(graph, self.options.ctx or longest)
        self._compile_ahead(graph, store.layout, vocab, options)
        return CudaExecutor(graph, store, vocab, Weights(self.device, report_sending(self.options, graph)), options)

    def check(self, graph: Graph) -> None:
        check(graph, self.device)

    def plan_options(self, graph: Graph, ctx: int) -> PlanOptions:
        """How steps of a graph are planned, for sequences of `ctx` tokens."""
        most = MAX_LOGITS if graph.has_head and graph.is_causal else self.max_batched_tokens  # encoders give all rows
        activations = self.options.activations or ("int16" if num_bytes(graph) < SMALL_BYTES else "int8")
        return PlanOptions(
            max_tokens=self.max_batched_tokens,
            max_logits=min(self.max_batched_tokens, most),
            ctx=ctx,
            int16=activations == "int16",
            batch_invariant=self.options.batch_invariant,
            precise=sees_images(graph),
            host_experts=HostExperts(HostRows(self.device), make_experts(graph, self.options)),
        )

    def _compile_ahead(self, graph: Graph, layout: Layout, vocab: int, options: PlanOptions) -> None:
        """Compile the kernels of usual steps while weights are sent, and on after that; the first ones come first."""
        gpu = self.device.gpu
        if gpu.compiles_ahead:
            card = PlannedGpu(gpu.arch, gpu.device.properties)
            gpu.compile_ahead(usual_kernels(graph, layout, vocab, options, card, USUAL))

    def make_group(self, devices: Sequence[Device]) -> CudaGroup:
        sessions = [device.device for device in devices if isinstance(device, CudaDevice)]
        ordinals = {session.ordinal for session in sessions}
        if len({session.arch for session in sessions}) > 1:
            raise RequestError("the GPUs of tensor_parallel must be of one kind: each makes the same rows")
        if len(ordinals) == 1:
            return LocalGroup(sessions)
        if len(ordinals) < len(sessions):
            raise RequestError("tensor_parallel takes as many GPUs as parts, or one GPU for all of them")
        return NcclGroup(sessions)

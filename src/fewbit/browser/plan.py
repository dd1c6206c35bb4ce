"""The plan of a model for a browser: programs for a token and for a prompt, and what a sequence needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..cache.groups import PAGE_TOKENS
from ..cache.layout import make_layout
from ..errors import OutOfMemory, RequestError
from ..files.model import ModelFile
from ..models import LoadedModel, load_model
from ..ops.inserts import drop_rows
from ..ops.memory import readable
from ..ops.passes import select_logits, with_output
from ..ops.webgpu.export import export
from ..ops.webgpu.inputs import StepLayout
from ..ops.webgpu.model_weights import ModelWeights
from ..ops.webgpu.pages import PageStore
from ..ops.webgpu.plan import Builder, PlanOptions
from ..ops.webgpu.planned import LEAST_BYTES, MOST_BYTES, PlannedGpu
from ..ops.webgpu.sampling import WORDS, sample_rows
from ..validation import to_size
from .described import refuse_encoders
from .rules import tokenizer_rules

STEP_TOKENS = 128  # of a prompt that run at once
STATE_SLOTS = 3  # of recurrent layers: the empty state, that of the sequence, and one before it
DEFAULT_CTX, MAX_CTX = 4096, 1 << 17
MAX_HEAD = 1 << 10  # values of a head: tables of angles are as wide
_LIMITS = ("binding_bytes", "buffer_bytes")
PROGRAMS = {"token": (1, 1), "prompt": (0, 1)}  # classes of tokens and logits


@dataclass(frozen=True)
class AdapterLimits:
    """What the browser's adapter can do.

    Attributes:
        binding_bytes: maxStorageBufferBindingSize.
        buffer_bytes: maxBufferSize.
        subgroups: Whether it has the feature "subgroups".
    """

    binding_bytes: int = 128 << 20
    buffer_bytes: int = 256 << 20
    subgroups: bool = False


def make_plan(
    file: ModelFile, limits: AdapterLimits | None = None, ctx: int | None = None, kv: str = "f16"
) -> dict[str, Any]:
    """What a browser needs to run a model, as plain data for JSON. Models that see are planned for text alone.

    Args:
        file: The model's file; only its header and its vectors are read.
        limits: What the browser's adapter can do. Defaults to what every adapter can.
        ctx: Maximum sequence length in tokens. Defaults to 4096 or the model's own, whichever is smaller.
        kv: KV-cache format.
    """
    limits = limits or AdapterLimits()
    binding, whole = (min(to_size(getattr(limits, name), name, LEAST_BYTES), MOST_BYTES) for name in _LIMITS)
    gpu = PlannedGpu(binding, whole, subgroups=limits.subgroups)
    refuse_encoders(file.architecture)
    model = load_model(file, ctx=ctx)
    _check(model)
    length = min(model.config.ctx, MAX_CTX, DEFAULT_CTX if ctx is None else to_size(ctx, "ctx", least=1))
    pages = -(-length // PAGE_TOKENS)
    graph = drop_rows(model.graph)
    layout = make_layout(graph.specs, kv)
    store = PageStore(gpu, layout, [STATE_SLOTS if group.is_recurrent else pages for group in layout.groups])
    groups = sum(1 for group in layout.groups if not group.is_recurrent)
    steps, weights = StepLayout(groups), ModelWeights(gpu)
    step = gpu.allocate(4 * (64 + groups * (STEP_TOKENS + pages + 2) + 5 * STEP_TOKENS), "step")
    options = PlanOptions(max_tokens=STEP_TOKENS, max_logits=1, ctx=length)
    builder = Builder(select_logits(with_output(graph, "logits")), store, weights, step, steps, options)
    programs = {name: builder.program(*classes) for name, classes in PROGRAMS.items()}
    logits, vocab = programs["token"].result, model.config.vocab
    samples = gpu.allocate(4 * (WORDS + 2 * min(length, vocab)), "samples")  # and ids and counts of tokens seen
    own, results = gpu.allocate(4 * vocab, "logits of samples"), gpu.allocate(8, "sampled tokens")
    sampler = sample_rows(logits, vocab, samples, own, results)
    exported = export(programs, weights, step, steps, file.tensors, sampler)
    _check_bindings(exported["buffers"], gpu)
    return {
        **exported,
        "model": {"architecture": file.architecture, "vocab": vocab, "ctx": length,
                  "step_tokens": STEP_TOKENS},
        "cache": {"page_tokens": PAGE_TOKENS, "pages": pages, "groups": groups,
                  "slots": STATE_SLOTS if groups < len(layout.groups) else 0},
        "tokenizer": tokenizer_rules(file.tokenizer()),
    }  # fmt: skip


def _check(model: LoadedModel) -> None:
    if model.is_encoder:
        raise RequestError("the browser runs models that write text; this one is an encoder")
    if max(model.config.k_dim, model.config.v_dim) > MAX_HEAD:
        raise RequestError(f"the browser runs models with heads of at most {MAX_HEAD} values")


def _check_bindings(buffers: Sequence[Mapping[str, Any]], gpu: PlannedGpu) -> None:
    for one in buffers:
        if one["bytes"] > gpu.binding_bytes:
            raise OutOfMemory(
                f"{gpu.info.name} lets kernels see {readable(gpu.binding_bytes)} of a buffer; the buffer "
                f"{one['name']!r} has {readable(one['bytes'])}: take a smaller model or ctx"
            )

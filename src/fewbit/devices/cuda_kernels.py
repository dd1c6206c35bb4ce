"""The kernels of a model's usual steps on a GPU, found before its weights are sent: they are compiled meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from typing import Any

from ..cache.layout import Layout, make_layout
from ..load_options import LoadOptions, kv_formats
from ..models import LoadedModel
from ..ops.cuda import gpu
from ..ops.cuda.compile import compile_ahead
from ..ops.cuda.kernels import Entry
from ..ops.cuda.kernels_attention import copy_pages
from ..ops.cuda.pages import DeviceStore
from ..ops.cuda.panel_check import try_panels
from ..ops.cuda.plan import HOSTED
from ..ops.cuda.plan_segments import PlanOptions
from ..ops.cuda.planned import PlannedGpu, card_of, planned_weights
from ..ops.graph import Graph
from .cuda_executor import PROMPT, SHORT, CudaExecutor, step_layout

# New tokens of each sequence of a step, beside those that an executor prepares: short prompts first.
USUAL = (
    *((tokens,) for tokens in (32, 8, 64, 16, 48)),
    *((1,) * count for count in (2, 4, 8, 16, 32, 64, 128, 256, 24, 40, 48, 56, 96, 192)),
    *((*(1,) * count, PROMPT) for count in (1, 8, 32, 64)),
)


def usual_kernels(
    graph: Graph, layout: Layout, vocab: int, options: PlanOptions, card: PlannedGpu, steps: Iterable[Sequence[int]]
) -> list[Entry]:
    """The kernels that load a graph's weights, and those of its first answer and of further steps, in that order.

    Args:
        graph: The graph.
        layout: What its layers keep.
        vocab: Tokens of the vocabulary.
        options: How the steps are planned.
        card: The card.
        steps: New tokens of each sequence of further steps; those that are too large are left out.
    """
    if any(node.operation in HOSTED for node in graph.nodes):
        return []  # other cards take part
    session = card.session()
    store: Any = DeviceStore(session, layout, [1] * len(layout.groups))
    executor = CudaExecutor(graph, store, vocab, planned_weights(session), replace(options, ctx=1))
    fitting = [counts for counts in steps if sum(counts) <= options.max_tokens and len(counts) <= options.max_logits]
    if not options.batch_invariant:
        try_panels(session)
    if graph.has_head:
        executor.prepare_layouts(step_layout(counts, len(layout.groups)) for counts in fitting)
    session.compile([copy_pages()])  # of sequences that share pages
    return list(session.entries)


def model_kernels(model: LoadedModel, card: PlannedGpu, options: LoadOptions | None = None) -> list[Entry]:
    """The kernels of a model's usual steps on a card that need not be there."""
    from .cuda import CudaDevice  # which imports this module

    device = CudaDevice(card.session(), options or LoadOptions(device="cuda"))
    layout = make_layout(model.specs, *kv_formats(device.options.kv))
    plan_options = device.plan_options(model.graph, SHORT)
    return usual_kernels(model.graph, layout, model.config.vocab, plan_options, card, USUAL)


def find_card(arch: str | None = None) -> PlannedGpu:
    """A card of an architecture such as "sm_90", or the first one of this machine."""
    if arch is not None:
        return PlannedGpu(arch, card_of(arch))
    found = gpu()
    return PlannedGpu(found.arch, found.device.properties)


def compile_kernels(kernels: Sequence[Entry], arch: str, progress: Callable[[int, int], None]) -> None:
    """Compile kernels into the cache folder, with the number of those that are there and of all."""
    futures = compile_ahead([entry.source for entry in kernels], arch)
    done = len(kernels) - len(futures)
    progress(done, len(kernels))
    for future in as_completed(futures):
        future.result()
        done += 1
        progress(done, len(kernels))

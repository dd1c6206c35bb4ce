"""Experts that stay on the CPU while all layers run on a GPU: which ones, and the plans that compute them.

They are most of a large mixture's weights, and a token needs few of them. Their scores are made on the GPU, in f32.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..arrays import Floats
from ..cache.layout import make_layout
from ..errors import RequestError
from ..load_options import LoadOptions
from ..ops import cpu
from ..ops.cpu.plan import build
from ..ops.graph import Graph, Node
from ..ops.passes import select_logits
from ..tensor import QuantTensor
from .cpu import CpuDevice
from .fitting import MemoryPlan, choose_layout

MATRICES = ("gate", "up", "down")


def expert_nodes(graph: Graph, count: int | None = None) -> list[Node]:
    """The first experts of a graph, or all."""
    return [node for node in graph.nodes if node.operation == "experts"][:count]


def place_experts(plan: MemoryPlan, graph: Graph, options: LoadOptions, tokens: int) -> MemoryPlan:
    """The plan of a GPU without the experts that stay on the CPU: so many, or as few as make the rest fit.

    Args:
        plan: What the GPU would need for all of the graph.
        graph: The graph of the model.
        options: What the user chose.
        tokens: Tokens of the KV cache that must fit.
    """
    total = len(expert_nodes(graph))
    if options.cpu_experts is not None:
        if options.cpu_experts and not total:
            raise RequestError(f"cpu_experts={options.cpu_experts}: {plan.model} has no experts; leave it out")
        return _without(plan, graph, min(options.cpu_experts, total))
    if options.gpu_layers is not None or plan.fits(tokens):
        return plan
    plans = (_without(plan, graph, count) for count in range(1, total + 1))
    fitting = next((one for one in plans if one.fits(tokens)), None)
    if fitting is None:
        return plan
    warnings.warn(
        f"the GPU's memory is short: the experts of {fitting.cpu_experts} of {total} layers run on the CPU; a smaller "
        "kv or ctx leaves room for more, and cpu_experts says how many there are",
        stacklevel=5,
    )
    return fitting


def _without(plan: MemoryPlan, graph: Graph, count: int) -> MemoryPlan:
    nbytes = sum(w.nbytes for node in expert_nodes(graph, count) for w in _matrices(node))
    return replace(plan, file_bytes=plan.file_bytes - nbytes, cpu_experts=count)


def _matrices(node: Node) -> list[QuantTensor]:
    return [node.attributes[name] for name in MATRICES if node.attributes[name] is not None]


def make_experts(graph: Graph, options: LoadOptions) -> dict[int, CpuExperts]:
    """What computes the experts that stay on the CPU, by the `id` of their matrices `up`."""
    nodes = expert_nodes(graph, options.cpu_experts or 0)
    if not nodes:
        return {}
    device = CpuDevice(replace(options, device="cpu"))
    weights = {id(w): w for node in nodes for w in _matrices(node)}
    nbytes = sum(w.nbytes for w in weights.values())
    pack = device.pack(choose_layout(device, nbytes, options.repack), nbytes + 256 * len(weights))
    packed = weights if pack is None else {key: pack(w) for key, w in weights.items()}
    return {id(node.attributes["up"]): CpuExperts(_graph(node, packed), device) for node in nodes}


def _graph(node: Node, packed: Mapping[int, QuantTensor]) -> Graph:
    """The operation alone: it is given its rows, with the scores behind them."""
    x, scores, out = (replace(value, logits_only=False) for value in (*node.inputs, *node.outputs))
    both = replace(x, width=x.width + scores.width)
    own = {name: packed[id(node.attributes[name])] for name in MATRICES if node.attributes[name] is not None}
    nodes = (
        Node("given", (), (both,), {}),
        Node("columns", (both,), (x,), {"start": 0, "width": x.width, "heads": 1}),
        Node("columns", (both,), (scores,), {"start": x.width, "width": scores.width, "heads": 1}),
        Node("experts", (x, scores), (out,), {**node.attributes, **own}),
    )
    return Graph(nodes, out, (), has_head=False)


class CpuExperts:
    """The experts of one layer, as a native plan of their own.

    Args:
        graph: Their graph.
        device: The CPU, with its threads and activations.
    """

    def __init__(self, graph: Graph, device: CpuDevice) -> None:
        self._device, self._threads = device, cpu.checked_threads(device.threads)
        self._binding = device.placement.bind()  # of the threads; it ends with the plan
        store = device.make_store(make_layout(()), ())
        self._plan = build(select_logits(graph), store, batch_invariant=device.batch_invariant)

    def __call__(self, given: Floats, out: Floats) -> None:
        """What the experts make of rows that have the scores behind them."""
        count = len(given)
        tokens, rows = np.zeros(count, np.int32), np.arange(count, dtype=np.int32)
        lengths, starts = np.array([count], np.int64), np.array([0, count], np.int64)
        self._plan.run(tokens, [], lengths, starts, rows, out, self._device.activations, self._threads, given=given)

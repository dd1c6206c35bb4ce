"""How many layers each stage of a model gets: what the busiest one reads in a step is as little as can be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import RequestError
from ..ops.cut import cut, factors_of, layers_of, weights_of
from ..ops.graph import Graph
from .fitting import MemoryPlan
from .splitting import part_plan

Cost = tuple[int, int]  # stages that are too small, and the bytes that the busiest one reads


@dataclass(frozen=True, slots=True)
class Place:
    """Where a graph can be cut: what the layers after it read and keep, in bytes."""

    read_bytes: int  # weights that a step reads
    held_bytes: int  # all weights
    cache_bytes: int


def divide(plans: Sequence[MemoryPlan], graph: Graph, tokens: int) -> list[MemoryPlan]:
    """What each stage needs for its layers.

    Args:
        plans: What each stage would need for all layers, in the order of the layers.
        graph: The graph of the model.
        tokens: Tokens of the KV cache that must fit.
    """
    places = _find_places(plans[0], graph, tokens)
    if len(places) <= len(plans):
        most = (
            f"at most into {len(places) - 1}" if len(places) > 2 else "its layers share what they keep, or it has one"
        )
        raise RequestError(f"the model cannot be cut into {len(plans)} stages: {most}")
    ends, layers, parts = _best_ends(plans, places), max(places), []
    rest = graph
    for plan, first, end in zip(plans, [0, *ends], ends, strict=False):
        part = rest
        if end < layers:
            part, rest = cut(rest, layers - end)
        parts.append(part_plan(plan, part))
        assert parts[-1].layers == end - first
    return parts


def _find_places(plan: MemoryPlan, graph: Graph, tokens: int) -> dict[int, Place]:
    """All places where a graph can be cut, by the number of layers before them; its begin and its end too."""
    layers = len(layers_of(graph.nodes))
    places = {0: _place(plan, graph, tokens)}
    for first in range(1, layers):
        try:
            places[first] = _place(plan, cut(graph, layers - first)[1], tokens)
        except RequestError:  # not here
            continue
    return places | {layers: Place(0, 0, 0)}


def _place(plan: MemoryPlan, graph: Graph, tokens: int) -> Place:
    read, held = (sum(w.nbytes for w in weights.values()) for weights in (factors_of(graph), weights_of(graph)))
    return Place(read, held, part_plan(plan, graph).cache_bytes(tokens))


def _best_ends(plans: Sequence[MemoryPlan], places: dict[int, Place]) -> list[int]:
    """The end of each stage."""
    best: dict[int, tuple[Cost, list[int]]] = {0: ((0, 0), [])}
    for stage, plan in enumerate(plans):
        reached: dict[int, tuple[Cost, list[int]]] = {}
        for first, end in _spans(best, places, is_last=stage == len(plans) - 1):
            (short, most), ends = best[first]
            is_short, read = _cost(plan, places[first], places[end])
            cost = short + is_short, max(most, read)
            if end not in reached or cost < reached[end][0]:
                reached[end] = cost, [*ends, end]
        best = reached
    return best[max(places)][1]


def _spans(begins: Iterable[int], places: dict[int, Place], is_last: bool) -> Iterator[tuple[int, int]]:
    """From where the stages before may end to where a stage may; only the last one ends with the model."""
    total = max(places)
    for first in begins:
        yield from ((first, end) for end in places if end > first and (end == total) == is_last)


def _cost(plan: MemoryPlan, begin: Place, end: Place) -> tuple[bool, int]:
    """Whether a stage between two places is too large, and the bytes that it reads."""
    held = (begin.held_bytes - end.held_bytes) * plan.weight_bytes // max(1, plan.file_bytes)
    is_short = held + begin.cache_bytes - end.cache_bytes + plan.step_bytes > plan.memory_bytes
    return is_short, begin.read_bytes - end.read_bytes

"""How many layers a GPU takes: as many as were asked for, or as fit into its memory. The others run on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ..cache.groups import MAX_PAGES
from ..errors import RequestError
from ..ops.cut import cut, layers_of, weights_of
from ..ops.graph import Graph
from ..validation import to_size
from . import Device, DeviceOptions, find_best, get
from .fitting import Needs


def check_layers(device: Any, gpu_layers: int | None) -> tuple[Any, int | None]:
    """The device, and how many layers it takes; None: nobody said. Without any, all runs on the CPU.

    >>> check_layers("cuda", 0), check_layers("cpu", None)
    (('cpu', None), ('cpu', None))
    """
    if gpu_layers is None:
        return device, None
    count = to_size(gpu_layers, "gpu_layers", error=RequestError)
    name = find_best() if device == "auto" else device
    if not isinstance(name, str) or name.partition(":")[0] != "cuda":
        raise RequestError(f"gpu_layers is for device 'cuda', not for {name!r}; leave it out")
    return (name, count) if count else ("cpu", None)


def split(
    needs: Needs, graph: Graph, given: int | None, tokens: int, cache_bytes: int | None = None
) -> tuple[int | None, Needs]:
    """How many layers a GPU takes beside a cache of so many tokens, None for all of them, and what they need there.

    `cache_bytes`: of the cache of all layers, on the GPU and beside it, in place of `tokens`.
    """
    total = len(layers_of(graph.nodes))
    fits = _fits(needs, tokens, cache_bytes)
    if given is not None and given < total:
        chosen = of_layers(needs, graph, given)
        return given, chosen if fits(chosen) else _proposing(chosen, _most_layers(needs, graph, given, fits))
    if fits(needs):
        return None, needs
    most = _most_layers(needs, graph, total, fits)
    if given is not None:
        return None, _proposing(needs, most)
    if most is None:
        return None, _smallest(needs, graph)
    layers, chosen = most
    warnings.warn(
        f"the GPU's memory is short: {layers} of {total} layers run there, the others on the CPU; "
        "a smaller kv or ctx leaves room for more, and gpu_layers says how many there are",
        stacklevel=3,
    )
    return layers, chosen


def of_layers(needs: Needs, graph: Graph, layers: int) -> Needs:
    """What the last layers of a model need of a GPU's memory, out of what the whole model needs."""
    from .hybrid import part_of

    _, rest = cut(graph, layers)
    own = layers_of(rest.nodes) & set(needs.layout.group_of)
    nbytes = sum(w.nbytes for w in weights_of(rest).values())
    return replace(needs, layout=part_of(needs.layout, own), file_bytes=nbytes)


def make_hybrid(device: Device, options: DeviceOptions, graph: Graph, layers: int) -> Device:
    from .cpu import CpuDevice
    from .cuda import CudaDevice
    from .hybrid import HybridDevice

    cpu = get("cpu", options)
    assert isinstance(device, CudaDevice)
    assert isinstance(cpu, CpuDevice)
    return HybridDevice(device, cpu, graph, layers)


def _fits(whole: Needs, tokens: int, cache_bytes: int | None) -> Callable[[Needs], bool]:
    if cache_bytes is not None:
        tokens = max(1, whole.tokens_in(cache_bytes, MAX_PAGES * whole.layout.page_tokens))
    return lambda needs: needs.fits(tokens)


def _cuts(needs: Needs, graph: Graph, below: int) -> Iterator[tuple[int, Needs]]:
    """Fewer layers than `below`, most first."""
    for layers in reversed(range(1, below)):
        try:
            yield layers, of_layers(needs, graph, layers)
        except RequestError:  # it cannot be cut there
            continue


def _most_layers(needs: Needs, graph: Graph, below: int, fits: Callable[[Needs], bool]) -> tuple[int, Needs] | None:
    return next((found for found in _cuts(needs, graph, below) if fits(found[1])), None)


def _proposing(needs: Needs, most: tuple[int, Needs] | None) -> Needs:
    return needs if most is None else replace(needs, elsewhere=f"gpu_layers={most[0]}")


def _smallest(needs: Needs, graph: Graph) -> Needs:
    """What the fewest layers need: not even they fit."""
    *_, last = [(0, needs), *_cuts(needs, graph, len(layers_of(graph.nodes)))]
    layers, least = last
    return replace(least, name=f"one layer of {needs.name}" if layers == 1 else needs.name)

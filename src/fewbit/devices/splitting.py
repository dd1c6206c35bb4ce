"""Which device runs which layers.

A GPU runs the last ones, as many as an option says or as fit, and the CPU the others. Or the layers are divided over
stages (`dividing.py`): several devices of this machine, as in device="cuda:0,cuda:1", or processes of a cluster. Or
several devices share each layer (`tensor_parallel.py`).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..cache.groups import MAX_PAGES
from ..errors import ExtraError, RequestError
from ..load_options import LoadOptions
from ..ops.cut import cut, layers_of, weights_of
from ..ops.graph import Graph
from . import Device, find_best, get
from .fitting import MemoryPlan, tokens_in

Placed = tuple[str, Device]  # a device, and its name


def find_devices(options: LoadOptions, path: Path = Path()) -> list[Placed]:
    """The devices that may run layers of the model of a file, in the order of its layers.

    >>> [place for place, _ in find_devices(LoadOptions(device="cuda", gpu_layers=0))]
    ['cpu']
    >>> [place for place, _ in find_devices(LoadOptions(device="cpu,cpu"))]
    ['cpu', 'cpu']
    """
    if is_ranked(options) or is_staged(options) or options.gpu_layers is not None:
        _refuse_experts(options)
    if is_ranked(options):
        return _find_ranks(options)
    if is_staged(options):
        return _find_stages(options, path)
    place = find_best() if options.device == "auto" else options.device
    if options.gpu_layers == 0:
        place, options = "cpu", replace(options, device="cpu", gpu_layers=None)
    device = get(place, options)
    if options.cpu_experts is not None and not device.leaves_experts:
        raise RequestError(f"cpu_experts is for device 'cuda', not for {place!r}; leave it out")
    if device.extends_cpu:
        return [("cpu", get("cpu", _for_host(options))), (place, device)]
    if options.gpu_layers is not None:
        raise RequestError(f"gpu_layers is for devices 'cuda' and 'webgpu', not for {place!r}; leave it out")
    return [(place, device)]


def _refuse_experts(options: LoadOptions) -> None:
    if options.cpu_experts is not None:
        raise RequestError("with cpu_experts all layers are on one GPU; leave it out, or the other devices")


def is_ranked(options: LoadOptions) -> bool:
    """Whether several devices share each layer."""
    return (options.tensor_parallel or 1) > 1


def is_staged(options: LoadOptions) -> bool:
    """Whether the layers are divided over several equals."""
    return not is_ranked(options) and ("," in str(options.device) or (options.stages or 1) > 1)


def _find_ranks(options: LoadOptions) -> list[Placed]:
    count = options.tensor_parallel or 1
    if options.gpu_layers is not None or (options.stages or 1) > 1:
        raise RequestError("tensor_parallel divides every layer over devices of this machine; leave gpu_layers and "
                           "stages out")  # fmt: skip
    given = find_best() if options.device == "auto" else options.device
    places = [place.strip() for place in given.split(",")]
    if len(places) == 1:
        places = [f"cuda:{number}" for number in range(count)] if given == "cuda" else places * count
    if len(places) != count or (given != "cuda" and "," not in given and ":" in given):
        raise RequestError(f"tensor_parallel={count} needs {count} devices, named as in device=\"cuda:0,cuda:1\", got "
                           f"{options.device!r}")  # fmt: skip
    if len(kinds := {place.partition(":")[0] for place in places}) > 1:
        raise RequestError(f"the devices of tensor_parallel must be of one kind, not {' and '.join(sorted(kinds))}")
    return [(place, get(place, options)) for place in places]


def _find_stages(options: LoadOptions, path: Path) -> list[Placed]:
    places = [place.strip() for place in options.device.split(",")]
    if options.gpu_layers is not None:
        raise RequestError("gpu_layers is for one GPU beside the CPU; with several devices leave it out")
    devices = [(place, get(place, options)) for place in places]
    if (options.stages or 1) > 1:
        if len(devices) > 1:
            raise RequestError("stages are processes with one device each; give stages, or several devices")
        devices += _open_stages(options, path)
    for place, device in devices:
        if not device.takes_rows:
            raise RequestError(f"device {place!r} cannot run a part of the layers of a model")
    return devices


def _open_stages(options: LoadOptions, path: Path) -> list[Placed]:
    """Those in other processes."""
    if find_spec("ray") is None:
        raise ExtraError("stages need Ray: pip install 'fewbit[cluster]'")
    cluster: Any = import_module("fewbit.cluster.stages")
    found: list[Placed] = cluster.open_stages(path, options, (options.stages or 1) - 1)
    return found


def share_memory(plans: Sequence[MemoryPlan]) -> list[MemoryPlan]:
    """Plans of devices that may be the same one, each with its share of the memory."""
    counts = Counter(plan.place for plan in plans)
    return [replace(plan, memory_bytes=plan.memory_bytes // counts[plan.place]) for plan in plans]


def _for_plan(plan: MemoryPlan, options: LoadOptions) -> LoadOptions:
    """Options of a device, with what was decided."""
    own = _for_place(plan.place, options)
    return replace(own, cpu_experts=plan.cpu_experts) if plan.cpu_experts else own


def _for_place(place: str, options: LoadOptions) -> LoadOptions:
    """Options of one of several devices."""
    own = replace(options, device=place)
    return _for_host(own) if place == "cpu" and options.device != "cpu" else own


def _for_host(options: LoadOptions) -> LoadOptions:
    """Options of the layers that stay on the CPU: it has no products in f16."""
    return replace(options, activations="exact") if options.activations == "f16" else options


def split(
    plans: Sequence[MemoryPlan], graph: Graph, layers: int | None, tokens: int, cache_bytes: int | None = None
) -> list[MemoryPlan]:
    """What each device needs for its share of the layers. Devices that get none are left out.

    The last device gets the last layers, as many as fit beside its part of the KV cache; the others share the rest.

    Args:
        plans: What each device would need for all layers, in the order of the layers.
        graph: The graph of the model.
        layers: Number of layers of the last device, where an option says how many.
        tokens: Tokens of the KV cache that must fit.
        cache_bytes: Size of the KV cache of all layers, in place of `tokens`.
    """
    *earlier, last = plans
    if not earlier:
        return [last]
    tokens = needed_tokens(last, tokens, cache_bytes)
    chosen = _last_layers(last, graph, layers, tokens)
    if chosen.layers == last.layers:
        return [chosen]
    first, _ = cut(graph, chosen.layers)
    return [*split([part_plan(plan, first) for plan in earlier], first, None, tokens), chosen]


def needed_tokens(plan: MemoryPlan, tokens: int, cache_bytes: int | None) -> int:
    """Tokens of the KV cache that must fit: so many, or those in `cache_bytes`."""
    if cache_bytes is None:
        return tokens
    return max(1, tokens_in([plan], cache_bytes, MAX_PAGES * plan.kv_layout.page_tokens))


def part_plan(plan: MemoryPlan, graph: Graph) -> MemoryPlan:
    """What a device needs for a part of the graph, out of what it needs for all layers."""
    from .stages import part_of

    layers = layers_of(graph.nodes)
    nbytes = sum(w.nbytes for w in weights_of(graph).values())
    kv_layout = part_of(plan.kv_layout, layers & set(plan.kv_layout.group_of))
    decoded_bytes = plan.decoded_bytes * nbytes // max(1, plan.file_bytes)
    return replace(plan, layers=len(layers), kv_layout=kv_layout, file_bytes=nbytes, decoded_bytes=decoded_bytes)


def join(plans: Sequence[MemoryPlan], graph: Graph, options: LoadOptions) -> Device:
    """One device out of those that share the layers of a graph, made anew with final options."""
    if (options.pin_threads or options.numa != "off") and not any(
        plan.device.places_threads or plan.cpu_experts for plan in plans
    ):
        raise RequestError(
            "pin_threads and numa are for what runs on the CPU, and the whole model runs on "
            f"{options.device!r}; leave them out"
        )
    devices = [
        plan.device.configure(
            plan.place, replace(_for_place(plan.place, options), cpu_experts=plan.cpu_experts or None)
        )
        for plan in plans
    ]
    if is_ranked(options):
        from .tensor_parallel import TensorParallelDevice

        return TensorParallelDevice(devices, graph, options.repack)
    if len(devices) == 1:
        return devices[0]
    from .stages import StagedDevice

    return StagedDevice(devices, graph, [plan.layers for plan in plans], options.repack, is_staged(options))


def _last_layers(plan: MemoryPlan, graph: Graph, layers: int | None, tokens: int) -> MemoryPlan:
    """The plan for the last layers of a graph: so many, or as many as fit."""
    wanted = plan if layers is None or layers >= plan.layers else part_plan(plan, cut(graph, layers)[1])
    if wanted.fits(tokens):
        return wanted
    least = wanted
    for part in _smaller_parts(plan, graph, wanted.layers):
        if part.fits(tokens):
            if layers is not None:
                return replace(wanted, alternative=f"gpu_layers={part.layers}")
            warnings.warn(
                f"the GPU's memory is short: {part.layers} of {plan.layers} layers run there, the others on the CPU; "
                "a smaller kv or ctx leaves room for more, and gpu_layers says how many there are",
                stacklevel=5,
            )
            return part
        least = part
    if layers is not None:
        return wanted
    name = f"one layer of {plan.model}" if least.layers == 1 else plan.model
    return replace(least, model=name, layers=plan.layers)  # for the error: not even these fit


def _smaller_parts(plan: MemoryPlan, graph: Graph, below: int) -> Iterator[MemoryPlan]:
    """Plans for fewer layers than `below`, largest first."""
    for layers in reversed(range(1, below)):
        try:
            yield part_plan(plan, cut(graph, layers)[1])
        except RequestError:  # it cannot be cut there
            continue

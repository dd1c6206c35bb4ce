"""A model whose layers are divided over several stages: devices of this machine, or other processes.

The first stage runs where the engine is. A step goes from stage to stage as rows; the last one samples. If the stages
are equals, the engine keeps a step in flight for each (`depth`), so that all of them work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..arrays import Bytes, Floats
from ..cache.layout import Layout
from ..cache.store import KVStore
from ..errors import FewbitError, RequestError
from ..ops import reference_sampling
from ..ops.cut import cut_all, factors_of, layers_of
from ..ops.graph import Graph
from ..ops.low_rank import AdapterRows, Terms
from ..ops.specs import LayerSpec
from ..tensor import QuantTensor
from . import Device
from .batch import Batch, Results, RowResult, resolve_masks
from .fitting import choose_layout
from .host import HostHandle
from .stage import (
    CopyPages,
    InlineStage,
    LocalStage,
    Pending,
    ReadPage,
    Stage,
    StageRunner,
    Step,
    WritePage,
    inner_batch,
)


class StagedStore:
    """K, V and states of the layers of each stage, with the stage. Pages have the same numbers everywhere.

    It tells the stages what to do once they run; before that, it is only memory.
    """

    def __init__(self, layout: Layout, stores: Sequence[KVStore]) -> None:
        self.layout, self.pages, self.stores = layout, stores[0].pages, stores
        self.stages: Sequence[Stage] = ()
        self._owner = {layer: number for number, store in enumerate(stores) for layer in store.layout.group_of}

    @property
    def nbytes(self) -> int:
        return sum(store.nbytes for store in self.stores)

    def copy(self, group: int, pairs: Iterable[tuple[int, int]]) -> None:
        task = CopyPages(group, list(pairs))
        for stage in self.stages:
            stage.submit(task)

    def read(self, layer: int, page: int, count: int) -> list[Bytes]:
        parts: list[Bytes] = self._stage(layer).submit(ReadPage(layer, page, count)).result()
        return parts

    def write(self, layer: int, page: int, parts: Sequence[Bytes], first: int = 0) -> None:
        self._stage(layer).submit(WritePage(layer, page, parts, first)).result()

    def _stage(self, layer: int) -> Stage:
        return self.stages[self._owner[layer]]


class StagedDevice(Device):
    """Devices that share the layers of a graph, in their order: `counts` says how many layers each has.

    Args:
        devices: The devices.
        graph: The graph of the model.
        counts: Number of layers of each device.
        repack: As in `LoadOptions`.
        overlaps: Whether the devices are equals, so that a step is kept in flight for each.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        graph: Graph,
        counts: Sequence[int],
        repack: bool | None = None,
        overlaps: bool = True,
    ) -> None:
        first, *_, last = devices
        self.devices, self.counts, self._repack = devices, counts, repack
        self.name = " and ".join(device.name for device in devices)
        self.max_batched_tokens = min(device.max_batched_tokens for device in devices)
        self.threads = first.threads
        shares = (f"{count} layers on {device.numerics}" for device, count in zip(devices, counts, strict=True))
        self.numerics = ", ".join(shares)
        self.depth = len(devices) if overlaps else 1
        self._last = last
        parts = cut_all(graph, counts)
        self._layers = [layers_of(part.nodes) for part in parts]
        self._factors = [factors_of(part) for part in parts]

    def memory_bytes(self, file_bytes: int, layout: str) -> int:
        return self._last.memory_bytes(file_bytes, layout)

    def pack(self, layout: str, nbytes: int) -> Callable[[QuantTensor], QuantTensor] | None:
        """Each weight in the layout of its stage, if the memory of that is large enough."""
        packers = dict[int, Callable[[QuantTensor], QuantTensor]]()  # by the address of a weight
        for device, factors in zip(self.devices, self._factors, strict=True):
            nbytes = sum(w.nbytes for w in factors.values())
            layout = choose_layout(device, nbytes, self._repack if len(device.layouts) > 1 else None)
            pack = device.pack(layout, nbytes + 256 * len(factors))
            packers |= dict.fromkeys(factors, pack) if pack else {}

        def packed(w: QuantTensor) -> QuantTensor:
            pack = packers.get(w.stored.ctypes.data)
            return w if pack is None else pack(w)

        return packed

    def make_store(self, layout: Layout, pages: Sequence[int]) -> StagedStore:
        kept = set(layout.group_of)
        parts = (part_of(layout, layers & kept) for layers in self._layers)
        return StagedStore(layout, [d.make_store(part, pages) for d, part in zip(self.devices, parts, strict=True)])

    def make_executor(self, graph: Graph, store: StagedStore, vocab: int) -> StagedExecutor:
        """Cuts a graph that was recorded again, with packed weights, at the same places."""
        stages: list[Stage] = []
        numbered = enumerate(zip(self.devices, cut_all(graph, self.counts), store.stores, strict=True), start=1)
        executors = []
        for number, (device, part, own) in numbered:
            executor: Any = device.make_executor(part, own, vocab)
            executors.append(executor)
            stages.append(_stage(executor, own, number, len(self.devices)))
        store.stages = stages
        return StagedExecutor(stages, executors, vocab, self.depth)


def _stage(executor: Any, store: KVStore, number: int, total: int) -> Stage:
    """The stage of an executor, or the executor itself if it is a stage in another process."""
    if hasattr(executor, "submit"):
        stage: Stage = executor
        return stage
    runner = StageRunner(executor, store, is_last=number == total)
    return InlineStage(runner) if number == 1 else LocalStage(runner, f"fewbit-stage-{number}")


class StagedExecutor:
    """Sends steps through the stages. `depth` steps may be on their way, in which no sequence samples twice."""

    runs_ahead = False  # the first stage must know all tokens

    def __init__(self, stages: Sequence[Stage], executors: Sequence[Any], vocab: int, depth: int) -> None:
        self.stages, self.vocab, self.depth = stages, vocab, depth
        self.executors = executors
        self.max_batched_tokens = min(executor.max_batched_tokens for executor in executors)
        self.max_logits: int = executors[-1].max_logits

    def place_adapter(self, terms: Terms) -> list[Any]:
        """The terms as each stage has them."""
        if not all(hasattr(executor, "place_adapter") for executor in self.executors):
            raise RequestError("stages in other processes take no adapters; load the model in one process")
        return [executor.place_adapter(terms) for executor in self.executors]

    def close(self) -> None:
        """End the stages that are in other processes."""
        for executor in self.executors:
            if hasattr(executor, "submit"):
                executor.close()

    def launch(self, batch: Batch) -> StagedHandle:
        *inner, last = self.stages
        rows: Pending | None = None
        part = inner_batch(batch)
        for number, stage in enumerate(inner):
            rows = stage.submit(Step(replace(part, adapters=_adapters(batch, number, is_last=False))), rows)
        samples, errors = resolve_masks(batch.samples)  # computed while the first stage ran
        is_plain = len(batch.logits_indices) > 0 and not samples and all(row.score is None for row in batch.rows)
        if has_chain := any(one.chain is not None for _, one in samples):  # its state is here
            rows_alone = [replace(row, samples=()) for row in batch.rows]
            final = replace(batch, rows=rows_alone, samples=[])
        else:
            final = _sendable(batch, samples)
        final = replace(final, adapters=_adapters(batch, len(inner), is_last=True))
        pending = last.submit(Step(final, is_plain or has_chain), rows)
        return StagedHandle(batch, pending, errors)


class StagedHandle:
    """A step on its way through the stages."""

    __slots__ = ("_batch", "_errors", "_pending")

    def __init__(self, batch: Batch, pending: Pending, errors: dict[int, Exception]) -> None:
        self._batch, self._pending, self._errors = batch, pending, errors

    def values(self) -> Floats:
        _, values = self._pending.result()
        if values is None:
            raise FewbitError("a step that samples or scores keeps its logits in the last stage")
        found: Floats = values
        return found

    def fetch(self) -> Results:
        results, values = self._pending.result()
        if results is None:
            return HostHandle(self._batch, values, reference_sampling).fetch()
        first, found = 0, Results()
        for row, result in zip(self._batch.rows, results, strict=True):
            failed = [place for place in range(len(row.samples)) if first + place in self._errors]
            found.append(_before(result, failed[0], self._errors[first + failed[0]]) if failed else result)
            first += len(row.samples)
        return found


def _before(result: RowResult | Exception, count: int, error: Exception) -> RowResult | Exception:
    """The first samples of a row, or why there is none: the mask of the one after them has failed."""
    if isinstance(result, Exception) or len(result.tokens) <= count:
        return result
    return result._replace(tokens=result.tokens[:count], logprobs=result.logprobs[:count]) if count else error


def _adapters(batch: Batch, number: int, is_last: bool) -> list[AdapterRows]:
    """Adapters as a stage has them. Those before the last one compute all rows, not those of logits alone."""
    parts = [replace(one, adapter=one.adapter[number]) for one in batch.adapters]
    return parts if is_last else [replace(one, logits_rows=one.rows, logits_weights=one.weights) for one in parts]


def _sendable(batch: Batch, samples: Sequence[tuple[int, Any]]) -> Batch:
    """A batch without masks that are still computed."""
    resolved = iter(samples)
    rows = [replace(row, samples=[next(resolved)[1] for _ in row.samples]) for row in batch.rows]
    return replace(batch, rows=rows, samples=[*samples])


def part_of(layout: Layout, layers: set[int]) -> Layout:
    """The layout of some layers alone, in the groups of all."""
    specs: tuple[LayerSpec, ...] = tuple(spec if n in layers else None for n, spec in enumerate(layout.specs))
    part = replace(layout, specs=specs)
    group_of = {layer: group for layer, group in layout.group_of.items() if layer in layers}
    own = (replace(group, layers=tuple(n for n in group.layers if n in layers)) for group in layout.groups)
    groups = tuple(map(part._with_sizes, own))
    part.__dict__.update(groups=groups, group_of=group_of)  # where cached properties are kept
    return part

"""A model whose heads and columns are divided over ranks: each has a part of every layer (`ops/shard.py`).

The engine sees one device. Rank 0 runs in its thread and samples, the others have threads of their own. All get the
same steps, and do with their pages what the cache does, in the same order (`stage.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..arrays import Bytes, Floats
from ..cache.layout import Layout, make_layout
from ..cache.store import KVStore
from ..ops.collective import FAILED, Group
from ..ops.cut import factors_of, weights_of
from ..ops.graph import Graph
from ..ops.low_rank import Terms
from ..ops.shard import Shard, Span, make_shard
from . import Device
from .batch import Batch, Handle
from .fitting import MemoryPlan, choose_layout
from .stage import CopyPages, InlineStage, LocalStage, Pending, ReadPage, Stage, StageRunner, Step, WritePage


class RankedStore:
    """K, V and states of all ranks: each has some heads of a layer, or all of them. Pages have the same numbers."""

    def __init__(self, layout: Layout, stores: Sequence[KVStore], shards: Sequence[Shard]) -> None:
        self.layout, self.pages, self.stores = layout, stores[0].pages, stores
        self._kept = [shard.kept for shard in shards]
        self.ranks: Sequence[Stage] = ()  # once they run; before that, it is only memory

    @property
    def nbytes(self) -> int:
        return sum(store.nbytes for store in self.stores)

    def copy(self, group: int, pairs: Iterable[tuple[int, int]]) -> None:
        task = CopyPages(group, list(pairs))
        for rank in self.ranks:
            rank.submit(task)

    def read(self, layer: int, page: int, count: int) -> list[Bytes]:
        spans = self._spans(layer)
        pending = [rank.submit(ReadPage(layer, page, count)) for rank in self.ranks[: len(spans)]]
        first, *others = [one.result() for one in pending]
        return [np.concatenate(parts, axis=1) for parts in zip(first, *others, strict=True)] if others else first

    def write(self, layer: int, page: int, parts: Sequence[Bytes], first: int = 0) -> None:
        spans = self._spans(layer)
        pending = []
        for number, rank in enumerate(self.ranks):
            own = parts if len(spans) == 1 else [part[:, slice(*spans[number])] for part in parts]
            pending.append(rank.submit(WritePage(layer, page, own, first)))
        for one in pending:
            one.result()

    def _spans(self, layer: int) -> list[Span]:
        """The heads of each rank; of a layer that all ranks keep whole, those of one."""
        spans = [kept.get(layer) for kept in self._kept]
        return [span for span in spans if span is not None] or [(0, 0)]


class TensorParallelDevice(Device):
    """Devices of one kind that share each layer of a graph."""

    def __init__(self, devices: Sequence[Device], graph: Graph, repack: bool | None = None) -> None:
        first = devices[0]
        self.devices, self._repack = devices, repack
        self.name = " and ".join(device.name for device in devices)
        self.max_batched_tokens = min(device.max_batched_tokens for device in devices)
        self.threads = first.threads
        self.numerics = f"{len(devices)} parts on {first.numerics}"
        self._shards = [make_shard(graph, len(devices), rank) for rank in range(len(devices))]

    def memory_bytes(self, file_bytes: int, layout: str) -> int:
        return self.devices[0].memory_bytes(file_bytes, layout)

    def make_store(self, layout: Layout, pages: Sequence[int]) -> RankedStore:
        layouts = (rank_layout(layout, shard) for shard in self._shards)
        stores = [device.make_store(own, pages) for device, own in zip(self.devices, layouts, strict=True)]
        return RankedStore(layout, stores, self._shards)

    def make_executor(self, graph: Graph, store: RankedStore, vocab: int) -> TensorParallelExecutor:
        group: Group = self.devices[0].make_group(self.devices)
        shards, executors = list[Shard](), list[Any]()
        for rank, (device, own) in enumerate(zip(self.devices, store.stores, strict=True)):
            shards.append(pack_shard(make_shard(graph, len(self.devices), rank, group), device, self._repack))
            executors.append(device.make_executor(shards[-1].graph, own, vocab))
        store.ranks = [
            _rank(RankRunner(executor, own, group), number)
            for number, (executor, own) in enumerate(zip(executors, store.stores, strict=True))
        ]
        return TensorParallelExecutor(store.ranks, executors, shards, group, vocab)


def divide_layers(plans: Sequence[MemoryPlan], graph: Graph) -> list[MemoryPlan]:
    """What each rank needs for its part of every layer, out of what it would need for all."""
    return [_rank_plan(plan, make_shard(graph, len(plans), rank)) for rank, plan in enumerate(plans)]


def _rank_plan(plan: MemoryPlan, shard: Shard) -> MemoryPlan:
    nbytes = sum(w.nbytes for w in weights_of(shard.graph).values())
    decoded_bytes = plan.decoded_bytes * nbytes // max(1, plan.file_bytes)
    return replace(plan, kv_layout=rank_layout(plan.kv_layout, shard), file_bytes=nbytes, decoded_bytes=decoded_bytes)


def rank_layout(layout: Layout, shard: Shard) -> Layout:
    """What a rank keeps."""
    return make_layout(shard.graph.specs, layout.k, layout.v, layout.rotate, layout.page_tokens)


def pack_shard(shard: Shard, device: Device, repack: bool | None) -> Shard:
    """A shard with its matrices in the layout of the device, each once."""
    factors = factors_of(shard.graph)
    nbytes = sum(w.nbytes for w in factors.values())
    layout = choose_layout(device, nbytes, repack if len(device.layouts) > 1 else None)
    pack = device.pack(layout, nbytes + 256 * len(factors))
    return shard if pack is None else shard.packed(pack)


class RankRunner(StageRunner):
    """Does the steps of one rank."""

    def __init__(self, executor: Any, store: KVStore, group: Group) -> None:
        super().__init__(executor, store, is_last=True)
        self._group = group

    def _step(self, step: Step, rows: Floats | None) -> Any:
        try:
            return self.executor.launch(step.batch)
        except BaseException:
            self._group.abort()  # the others wait for this one
            raise


def _rank(runner: RankRunner, number: int) -> Stage:
    return InlineStage(runner) if number == 0 else LocalStage(runner, f"fewbit-rank-{number}")


class TensorParallelExecutor:
    """Runs each step on all ranks at the same time."""

    def __init__(
        self, ranks: Sequence[Stage], executors: Sequence[Any], shards: Sequence[Shard], group: Group, vocab: int
    ) -> None:
        self.ranks, self.executors, self.shards, self.group, self.vocab = ranks, executors, shards, group, vocab
        self.runs_ahead: bool = all(executor.runs_ahead for executor in executors)
        self.max_batched_tokens = min(executor.max_batched_tokens for executor in executors)
        self.max_logits = min(executor.max_logits for executor in executors)

    def place_adapter(self, terms: Terms) -> list[Any]:
        """The terms as each rank has them."""
        pairs = zip(self.executors, self.shards, strict=True)
        return [executor.place_adapter(shard.terms_of(terms)) for executor, shard in pairs]

    def launch(self, batch: Batch) -> Handle:
        first, *others = self.ranks
        # The others sample too if steps run ahead, but nobody reads their logits.
        other = replace(batch, rows=()) if self.runs_ahead else batch
        pending = [rank.submit(Step(_of_rank(other, number))) for number, rank in enumerate(others, start=1)]
        pending.append(first.submit(Step(_of_rank(batch, 0))))
        errors = [error for one in pending if (error := _error(one)) is not None]
        if errors:
            self.group.reset()
            raise min(errors, key=_is_of_others)
        handle: Handle = pending[-1].result()
        return handle


def _of_rank(batch: Batch, number: int) -> Batch:
    """A step as a rank takes it."""
    return replace(batch, adapters=[replace(one, adapter=one.adapter[number]) for one in batch.adapters])


def _error(pending: Pending) -> BaseException | None:
    try:
        pending.result()
    except BaseException as error:
        return error
    return None


def _is_of_others(error: BaseException) -> bool:
    """Whether a rank failed since another one did."""
    return FAILED in str(error)

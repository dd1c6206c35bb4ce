"""Stages of a model in Ray actors, each with some of its layers, and their K and V.

Tasks are calls of an actor's method, and rows go from actor to actor as Ray's objects, through shared memory on one
machine. Ray runs the calls of one process in their order. Compiled graphs would take half the time on one machine,
but with Ray 2.60 an actor that dies ends the raylet of the node that was sending to it, and all that runs there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..cache.layout import Layout, make_layout
from ..devices import Device, get
from ..devices.fitting import choose_layout
from ..devices.stage import Pending, StageRunner, Task
from ..devices.stages import part_of
from ..errors import DeviceError, FewbitError, FileError
from ..files.maps import check_maps
from ..load_options import LoadOptions, kv_formats
from ..loading import model_fingerprint
from ..models import load_model, open_model
from ..ops.cut import cut, factors_of, layers_of
from ..ops.graph import Graph

START_SECONDS = 120.0  # for an actor to begin; a cluster may have to start a machine

ATTRIBUTES = (
    "memory_kind", "alternative", "decodes", "copies_weights", "takes_rows", "activation_types", "reserve_bytes",
    "layouts", "layout", "max_batched_tokens", "threads", "numerics",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StageDescription:
    """What an actor says of its device and its file."""

    node: str
    pid: int
    fingerprint: str
    attributes: dict[str, Any]  # of the device


@dataclass(frozen=True, slots=True)
class Span:
    """The layers of a stage: how many come before, and how many after."""

    before: int
    after: int

    def part(self, graph: Graph) -> Graph:
        total = len(layers_of(graph.nodes))
        if self.before:
            _, graph = cut(graph, total - self.before)
        return cut(graph, self.after)[0] if self.after else graph


class StageActor:
    """A stage in a process of its own."""

    def __init__(self, path: Path, options: LoadOptions) -> None:
        if not path.exists():
            raise FileError(f"there is no {path} on {_node()}: every node with a stage needs the model's file there")
        self._file, self._options = open_model(path), options
        self._device = get(options.device, options)
        self._runner: StageRunner | None = None

    def describe(self) -> StageDescription:
        attributes = {name: getattr(self._device, name) for name in ATTRIBUTES}
        return StageDescription(_node(), os.getpid(), model_fingerprint(self._file), attributes)

    def memory_bytes(self, file_bytes: int, layout: str) -> int:
        return self._device.memory_bytes(file_bytes, layout)

    def load(self, span: Span, pages: Sequence[int], options: LoadOptions) -> tuple[int, int]:
        """Load the layers. Returns the tokens and the rows of logits of its largest step."""
        self._device = get(options.device, options)
        mapped = load_model(self._file, ctx=options.ctx).graph
        factors = factors_of(span.part(mapped))
        nbytes = sum(w.nbytes for w in factors.values())
        repack = options.repack if len(self._device.layouts) > 1 else None
        pack = self._device.pack(choose_layout(self._device, nbytes, repack), nbytes + 256 * len(factors))
        model = load_model(
            self._file, lambda w: pack(w) if pack and w.stored.ctypes.data in factors else w, options.ctx
        )
        graph = span.part(model.graph)
        layout = make_layout(model.graph.specs, *kv_formats(options.kv))
        part = part_of(layout, layers_of(graph.nodes) & set(layout.group_of))
        store = self._device.make_store(part, pages)
        executor: Any = self._device.make_executor(graph, store, model.config.vocab)
        self._runner = StageRunner(executor, store, is_last=not span.after)
        return executor.max_batched_tokens, executor.max_logits

    def run(self, task: Task, rows: Any = None) -> Any:
        assert self._runner is not None
        result = self._runner.run(task, rows)
        if not self._device.copies_weights:
            check_maps(self._file.maps)
        return result


class RemoteStore:
    """The K, V and states of a stage, which are elsewhere. Whatever is done with them is a task of the stage."""

    def __init__(self, layout: Layout, pages: Sequence[int]) -> None:
        self.layout, self.pages = layout, tuple(pages)

    @property
    def nbytes(self) -> int:
        return sum(count * group.page_bytes for count, group in zip(self.pages, self.layout.groups, strict=True))


class RemotePending:
    """What a task in an actor will give. `source` gives the rows for it."""

    def __init__(self, ref: Any, name: str, source: RemotePending | None = None) -> None:
        self.ref, self._name, self._source = ref, name, source

    def result(self) -> Any:
        try:
            return ray.get(self.ref)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ray.exceptions.RayError) and self._source is not None:
                self._source.result()  # it was never done, since that one failed
            raise _own_error(error) from None
        except ray.exceptions.RayError as error:
            raise _stopped(self._name, error) from None


class RemoteStage:
    """A stage that loads, or has loaded, in an actor."""

    def __init__(self, actor: Any, limits: Any, name: str) -> None:
        self._actor, self._limits, self._name = actor, RemotePending(limits, name), name

    @property
    def max_batched_tokens(self) -> int:
        tokens: int = self._limits.result()[0]
        return tokens

    @property
    def max_logits(self) -> int:
        logits: int = self._limits.result()[1]
        return logits

    def close(self) -> None:
        """End the actor. An error that somebody keeps may hold a reference to it, and so its CPU or GPU."""
        if ray.is_initialized():
            ray.kill(self._actor)

    def submit(self, task: Task, rows: Pending | None = None) -> Pending:
        source = rows if isinstance(rows, RemotePending) else None
        given = source.ref if source is not None else rows and rows.result()
        try:
            return RemotePending(self._actor.run.remote(task, given), self._name, source)
        except ray.exceptions.RayError as error:
            raise _stopped(self._name, error) from None


class ActorDevice(Device):
    """A device that an actor has."""

    name = "stage"

    def __init__(self, actor: Any, described: StageDescription, number: int, options: LoadOptions) -> None:
        self._actor, self._options = actor, options
        self.name = f"stage {number} on {described.node}"
        self.__dict__.update(described.attributes)

    def configure(self, place: str, options: LoadOptions) -> Device:
        self._options = replace(_sendable(options), device=self._options.device)
        return self

    def memory_bytes(self, file_bytes: int, layout: str) -> int:
        nbytes: int = RemotePending(self._actor.memory_bytes.remote(file_bytes, layout), self.name).result()
        return nbytes

    def make_store(self, layout: Layout, pages: Sequence[int]) -> Any:
        return RemoteStore(layout, pages)

    def make_executor(self, graph: Graph, store: Any, vocab: int) -> Any:
        own, every = layers_of(graph.nodes), [n for n, spec in enumerate(graph.specs) if spec is not None]
        span = Span(sum(n < min(own) for n in every), sum(n > max(own) for n in every))
        return RemoteStage(self._actor, self._actor.load.remote(span, store.pages, self._options), self.name)


def open_stages(path: Path, options: LoadOptions, count: int) -> list[tuple[str, Device]]:
    """Actors for the stages after the first, each with the name of its place: those of one place share its memory.

    They are on other nodes than this process, as far as there are such.
    """
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="ERROR")
    options, here = _sendable(options), ray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    nodes = [(others or [here])[i % len(others or [here])] for i in range(count)]
    actors = [_start(path, options, node) for node in nodes]
    try:
        return _described(path, options, actors)
    except BaseException:
        for actor in actors:
            ray.kill(actor)
        raise


def _described(path: Path, options: LoadOptions, actors: Sequence[Any]) -> list[tuple[str, Device]]:
    """The devices of actors, each with the name of its place."""
    fingerprint, devices = model_fingerprint(open_model(path)), list[tuple[str, Device]]()
    for number, actor in enumerate(actors, start=2):
        described = _describe(actor, number, options)
        if described.fingerprint != fingerprint:
            raise FileError(f"{path} of stage {number} on {described.node} is another model than the one here")
        place = options.device if described.node == _node() else f"{options.device} on {described.node}"
        devices.append((place, ActorDevice(actor, described, number, options)))
    return devices


def _start(path: Path, options: LoadOptions, node: str) -> Any:
    strategy = NodeAffinitySchedulingStrategy(node, soft=True)
    gpus = 1 if options.device.startswith("cuda") else 0
    actor = ray.remote(StageActor).options(num_cpus=1, num_gpus=gpus, scheduling_strategy=strategy)
    return actor.remote(path.absolute(), options)


def _describe(actor: Any, number: int, options: LoadOptions) -> StageDescription:
    needed = "a CPU and a GPU" if options.device.startswith("cuda") else "a CPU"
    try:
        described: StageDescription = ray.get(actor.describe.remote(), timeout=START_SECONDS)
    except ray.exceptions.GetTimeoutError:
        raise DeviceError(f"stage {number} has not started within {START_SECONDS:g} s: it needs {needed}") from None
    except ray.exceptions.RayActorError as error:  # its constructor may have failed
        cause = getattr(error, "cause", None) or error.__cause__
        raise (cause if isinstance(cause, FewbitError) else _stopped(f"stage {number}", error)) from None
    return described


def _own_error(error: Any) -> Exception:
    """The error of a task, as it was raised."""
    cause: Exception = error.cause
    return cause if isinstance(cause, FewbitError) else FewbitError(f"a stage has failed: {cause}")


def _stopped(name: str, error: Exception) -> DeviceError:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return DeviceError(f"{name} has stopped, and its K and V are lost; load the model again ({reason[0]})")


def _sendable(options: LoadOptions) -> LoadOptions:
    return replace(options, progress=None, stages=None)


def _node() -> str:
    return (
        f"node {ray.util.get_node_ip_address()} ({os.uname().nodename}, {ray.get_runtime_context().get_node_id()[:8]})"
    )

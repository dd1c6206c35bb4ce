"""Devices: where models run. Each is a module with an executor, a KV store, a sampler and a weight layout.

To add one: a module here with a function `make(options) -> Device`, and a line in `_MODULES`. A package of its own
calls `register`. Nothing is imported before it is asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol

from ..cache.layout import Layout
from ..cache.store import KVStore
from ..errors import DtypeError, FewbitError, RequestError
from ..ops.graph import Graph
from ..tensor import QuantTensor
from .batch import Executor

MAX_BATCHED_TOKENS = 512


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What a user may say about a device; None: as is usual there."""

    threads: int | None = None
    activations: str | None = None  # see `fewbit.linear`
    max_batched_tokens: int | None = None  # of a step
    batch_invariant: bool = False  # a sequence has the same bits in every batch
    ctx: int | None = None  # tokens of the longest sequence
    ordinal: int = 0  # which of several devices of a kind
    progress: Callable[[int], None] | None = None  # told how many bytes of weights were sent to the device
    preferred_activations: str | None = None  # in the place of `activations` where that is None and there is a choice


class Device(Protocol):
    name: str
    layouts: tuple[str, ...]  # of weights that it can read, by name, best first
    decodes: bool  # whether it keeps weights as floats beside the packed ones
    layout: str  # that weights are brought into when a model is loaded, unless told otherwise
    max_batched_tokens: int  # of a step

    def memory_bytes(self, file_bytes: int, layout: str) -> int:
        """Bytes that there are for a model whose weights lie in a layout."""
        ...

    def pack(self, layout: str, nbytes: int) -> Callable[[QuantTensor], QuantTensor] | None:
        """What brings each weight into a layout; all of them take `nbytes`. None: they stay as they are."""
        ...

    def make_store(self, layout: Layout, pages: Sequence[int]) -> KVStore:
        """Memory for what the layers keep: so many pages for each group of them."""
        ...

    def make_executor(self, graph: Graph, store: Any, vocab: int) -> Executor:
        """Ready to run a model whose layers keep what they keep in this device's store."""
        ...


_MODULES = {"cpu": "cpu", "cuda": "cuda", "numpy": "numpy"}
_registered: dict[str, Callable[[DeviceOptions], Device]] = {}


def names() -> list[str]:
    """
    >>> names()[:3]
    ['cpu', 'cuda', 'numpy']
    """
    return [*_MODULES, *_registered]


def register(name: str, make: Callable[[DeviceOptions], Device]) -> None:
    """Let models be loaded on another device."""
    _registered[name] = make


def unregister(name: str) -> None:
    """Forget a device that was registered."""
    _registered.pop(name, None)


def get(name: str, options: DeviceOptions = DeviceOptions()) -> Device:
    """A device by its name; "cuda:1" is the second of its kind, "auto" a GPU where there is one, else the CPU.

    >>> get("abacus")
    Traceback (most recent call last):
        ...
    fewbit.errors.RequestError: there is no device 'abacus'; there are: cpu, cuda, numpy
    """
    if not isinstance(name, str):
        raise DtypeError(f"a device is named by a str, not {type(name).__name__}")
    if name in _registered:
        return _registered[name](options)
    if name == "auto":
        return get(find_best(), options)
    kind, colon, number = name.partition(":")
    if kind not in _MODULES or (colon and kind != "cuda"):
        raise RequestError(f"there is no device {name!r}; there are: {', '.join(names())}")
    if colon and not number.isdecimal():
        raise RequestError(f"device {name!r} must end with a number, as in 'cuda:1'")
    module: Any = import_module(f".{_MODULES[kind]}", __name__)
    return module.make(replace(options, ordinal=int(number or 0)))  # type: ignore[no-any-return]


def find_best() -> str:
    """The device that "auto" means here."""
    from ..ops.cuda import gpu

    try:
        gpu()
    except FewbitError:
        return "cpu"
    return "cuda"

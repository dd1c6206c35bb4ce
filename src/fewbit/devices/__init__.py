"""Devices: where models run. Each is a module with an executor, a KV store, a sampler and a weight layout.

To add one: a module here with a function `make(options) -> Device`, and a line in `_MODULES`. A package of its own
calls `register`. Nothing is imported before it is asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar, Protocol

from ..cache.groups import MAX_SEQS
from ..cache.layout import Layout
from ..cache.store import KVStore
from ..errors import DtypeError, FewbitError, RequestError
from ..load_options import LoadOptions
from ..ops.collective import Group
from ..ops.graph import Graph
from ..tensor import QuantTensor
from .batch import Executor

MAX_BATCHED_TOKENS = 512


class Device(Protocol):
    """All that loading a model asks of a device. A subclass inherits the defaults, which are those of host memory."""

    name: str
    memory_kind: ClassVar[str] = "memory"  # as errors call it
    alternative: ClassVar[str] = ""  # an option to propose where nothing fits, such as 'device="cpu"'
    decodes: ClassVar[bool] = False  # whether it keeps weights as floats beside the packed ones
    copies_weights: bool = False  # whether steps read copies, and never the file
    extends_cpu: ClassVar[bool] = False  # whether layers that do not fit run on the CPU, before those that do
    leaves_experts: ClassVar[bool] = False  # whether experts can stay on the CPU: see `cpu_experts.py`
    places_threads: ClassVar[bool] = False  # whether `pin_threads` and `numa` mean anything to it
    takes_rows: ClassVar[bool] = False  # whether it can be a stage: its executors may be given rows
    takes_images: ClassVar[bool] = False  # whether its executors insert rows, and know axes and spans
    keeps_f32: ClassVar[bool] = True  # whether attention gains anything by K and V in f32
    activation_types: ClassVar[tuple[str, ...]] = ("exact",)  # that its products can take
    reserve_bytes: int = 64 << 20  # for what is not counted: threads, tables, Python
    layouts: tuple[str, ...] = ("rows",)  # of weights that it can read, by name, best first
    layout: str = "rows"  # that weights are brought into unless an option says otherwise
    max_batched_tokens: int = MAX_BATCHED_TOKENS  # of a step
    max_seqs: int = MAX_SEQS  # outputs of a step, unless an option says otherwise or the KV cache is too small for them
    threads: int | None = None  # CPU threads of a step; None: the number cannot be set
    numerics: str = ""  # what rounding depends on, such as the instruction set

    def configure(self, place: str, options: LoadOptions) -> Device:
        """The device with final options; `place` is its name."""
        return get(place, options)

    def memory_bytes(self, file_bytes: int, layout: str) -> int:
        """Bytes that are available for a model whose weights have a layout."""
        ...

    def pack(self, layout: str, nbytes: int) -> Callable[[QuantTensor], QuantTensor] | None:
        """A function that brings each weight into a layout; all of them take `nbytes`. None: they stay as they are."""
        return None

    def make_store(self, layout: Layout, pages: Sequence[int]) -> KVStore:
        """Memory for what layers keep of sequences: a number of pages for each group of layers."""
        ...

    def make_executor(self, graph: Graph, store: Any, vocab: int) -> Executor:
        """An executor of a graph whose layers keep K, V and states in a store of this device."""
        ...

    def check(self, graph: Graph) -> None:
        """Refuse a graph that executors of this device cannot run, before its weights are read."""
        return

    def make_group(self, devices: Sequence[Device]) -> Group:
        """Where executors of these devices, the first of which is this one, meet for `all_reduce` and `all_gather`."""
        raise RequestError(f"device {self.name!r} cannot share the work of a model; leave tensor_parallel out")


_MODULES = {"cpu": "cpu", "cuda": "cuda", "numpy": "numpy", "webgpu": "webgpu"}
_registered: dict[str, Callable[[LoadOptions], Device]] = {}


def names() -> list[str]:
    """
    >>> names()[:3]
    ['cpu', 'cuda', 'numpy']
    """
    return [*_MODULES, *_registered]


def register(name: str, make: Callable[[LoadOptions], Device]) -> None:
    """Let models be loaded on another device."""
    _registered[name] = make


def unregister(name: str) -> None:
    """Forget a device that was registered."""
    _registered.pop(name, None)


def get(name: str, options: LoadOptions | None = None) -> Device:
    """A device by its name; "cuda:1" is the second of its kind, "auto" a GPU where there is one, by CUDA or
    else by WebGPU, else the CPU.

    >>> get("abacus")
    Traceback (most recent call last):
        ...
    fewbit.errors.RequestError: there is no device 'abacus'; there are: cpu, cuda, numpy, webgpu
    """
    if not isinstance(name, str):
        raise DtypeError(f"a device is named by a str, not {type(name).__name__}")
    if name == "auto":
        return get(find_best(), options)
    options = replace(options or LoadOptions(), device=name)
    if name in _registered:
        return _registered[name](options)
    kind, colon, number = name.partition(":")
    if kind not in _MODULES or (colon and kind not in ("cuda", "webgpu")):
        raise RequestError(f"there is no device {name!r}; there are: {', '.join(names())}")
    if colon and not number.isdecimal():
        raise RequestError(f"device {name!r} must end with a number, as in '{kind}:1'")
    module: Any = import_module(f".{_MODULES[kind]}", __name__)
    device: Device = module.make(options)
    return device


def find_best() -> str:
    """The device that "auto" means here."""
    from ..ops.cuda import gpu
    from ..ops.webgpu import has_gpu

    try:
        gpu()
    except FewbitError:
        return "webgpu" if has_gpu() else "cpu"
    return "cuda"

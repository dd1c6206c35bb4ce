"""The adapters of an engine, by name. A request keeps those that it uses until it ends, even if they are unloaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from numbers import Real
from types import NoneType

from ..devices.batch import AdapterMix, Executor, LoadedAdapter
from ..errors import RequestError
from ..ops.low_rank import Terms
from ..validation import check_type

Adapter = str | Mapping[str, float] | None  # the name of an adapter, or names with weights

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")


class AdapterRegistry:
    """What requests may name. Several threads may ask; `add` and `remove` are called between two steps."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._loaded: dict[str, LoadedAdapter] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the adapters, in the order in which they were loaded."""
        return tuple(self._loaded)

    @property
    def sources(self) -> dict[str, str]:
        """Where each adapter came from, by name."""
        return {name: adapter.source for name, adapter in self._loaded.items()}

    def add(self, name: str, key: str, terms: Terms | None, source: str = "", replace: bool = False) -> None:
        """Let requests name an adapter.

        Args:
            name: Its name.
            key: A text that stands for its values.
            terms: What it adds to products; None: nothing, so that the name stands for the model alone.
            source: Where it came from.
            replace: Take the name from the adapter that has it. Requests that use that one go on.
        """
        self.check_free(name, replace)
        placed = None if terms is None else self._executor.place_adapter(terms)
        self._loaded = {**self._loaded, name: LoadedAdapter(name, key, placed, source)}

    def check_free(self, name: str, replace: bool = False) -> None:
        check_adapter_name(name)
        if name in self._loaded and not replace:
            raise RequestError(f"there is an adapter {name!r} already; unload it first")

    def remove(self, name: str) -> None:
        """Forget an adapter. Requests that use it go on; its memory is free when the last of them is over."""
        self._find(name)
        self._loaded = {key: adapter for key, adapter in self._loaded.items() if key != name}

    def mix(self, adapter: Adapter) -> AdapterMix | None:
        """What a request uses; a weight of 0 is none, and so is a name that stands for the model alone."""
        check_type(adapter, (str, Mapping, NoneType), "adapter")
        if adapter is None:
            return None
        weights = {adapter: 1.0} if isinstance(adapter, str) else adapter
        terms = [(self._find(name), _weight(name, weight)) for name, weight in weights.items()]
        effective = (term for term in terms if term[1] and term[0].placed is not None)
        used = sorted(effective, key=lambda term: term[0].name)
        return AdapterMix(tuple(used)) if used else None

    def _find(self, name: str) -> LoadedAdapter:
        check_type(name, str, "the name of an adapter")
        found = self._loaded.get(name)
        if found is None:
            raise RequestError(f"there is no adapter {name!r}; there are: {', '.join(sorted(self._loaded)) or 'none'}")
        return found


def check_adapter_name(name: str) -> None:
    """
    >>> check_adapter_name("a b")
    Traceback (most recent call last):
        ...
    fewbit.errors.RequestError: an adapter's name has letters, digits and . _ / -, at most 128, got 'a b'
    """
    check_type(name, str, "the name of an adapter")
    if not _NAME.fullmatch(name):
        raise RequestError(f"an adapter's name has letters, digits and . _ / -, at most 128, got {name[:140]!r}")


def _weight(name: str, weight: float) -> float:
    if isinstance(weight, bool) or not isinstance(weight, Real) or not isfinite(weight):
        raise RequestError(f"the weight of adapter {name!r} must be a finite number, got {weight!r}")
    return float(weight)

"""Adapters on a GPU: their terms in f16, a table of pointers to them, and the kernels that add them to products.

A step has for each token `mix` places with the slot of an adapter in the table, or -1, and its weight. They are device
arrays, so that a captured graph serves any adapters.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import RequestError
from ..low_rank import AdapterRows, LowRank, ProductKey, Terms, to_floats
from .kernels import Entry, entry
from .memory import DeviceArray
from .session import Session
from .values import Launcher, Rows, StepInputs

MAX_SLOTS = 256  # adapters in a GPU's memory
MIXES = (1, 4)  # adapters of a row, that steps are made for
TERM_BYTES = 24  # LowRankTerm of low_rank.h
THREADS, GROUP = 256, 8  # ranks are padded to a multiple of GROUP
Halves = npt.NDArray[np.float16]
Bits = npt.NDArray[np.int32]


class Target(NamedTuple):
    """Rows that a product's terms are added to; `step`: columns between the first of eight columns and of the next."""

    rows: Rows
    product: ProductKey
    step: int = GROUP


@dataclass(frozen=True, eq=False)
class GpuAdapter:
    """An adapter in a GPU's memory."""

    slot: int
    products: frozenset[ProductKey]
    memory: DeviceArray


class GpuAdapters:
    """The table of the adapters that a model has on a GPU.

    Args:
        device: The GPU.
        products: All products that adapters can change.
    """

    def __init__(self, device: Session, products: Iterable[ProductKey]) -> None:
        self.device = device
        self.numbers = {key: number for number, key in enumerate(products)}
        self.products: set[ProductKey] = set()  # that some adapter changes
        self.max_rank = GROUP
        self._table: Any = None
        self._free = [*reversed(range(MAX_SLOTS))]

    def place(self, terms: Terms) -> GpuAdapter:
        """Send the terms of an adapter. Its memory and its slot are free again when nobody has it any more."""
        own = {key: _halves(term, key[0] == "embed") for key, term in terms.items() if key in self.numbers}
        if not self._free:
            raise RequestError(f"a GPU holds {MAX_SLOTS} adapters; unload one")
        memory = self.device.array(_joined(own.values()))
        slot = self._free.pop()
        self._write(slot, own, memory.pointer)
        adapter = GpuAdapter(slot, frozenset(own), memory)
        weakref.finalize(adapter, self._free.append, slot).atexit = False
        self.products |= own.keys()
        self.max_rank = max([self.max_rank, *(b.shape[1] for _, b, _ in own.values())])
        return adapter

    @property
    def table(self) -> int:
        if self._table is None:
            nbytes = MAX_SLOTS * len(self.numbers) * TERM_BYTES
            self._table = self.device.allocate(nbytes)
            self.device.fill(int(self._table.handle), 0, nbytes)
        return int(self._table.handle)

    def _write(self, slot: int, terms: Mapping[ProductKey, tuple[Halves, Halves, float]], pointer: int) -> None:
        kind = np.dtype([("a", np.uint64), ("b", np.uint64), ("r", np.int32), ("scale", np.float32)])
        rows = np.zeros(len(self.numbers), kind)
        for key, (a, b, scale) in terms.items():
            rows[self.numbers[key]] = pointer, pointer + _padded(a.nbytes), b.shape[1], scale
            pointer += _padded(a.nbytes) + _padded(b.nbytes)
        self.device.upload(rows.view(np.uint8), self.table + slot * rows.nbytes)

    # In a step

    def add(
        self, run: Launcher, step: StepInputs, x: Rows, targets: Sequence[Target], tokens: int, logits_only: bool,
        norm: tuple[int, float] | None = None,
    ) -> None:  # fmt: skip
        """Add the terms of products of rows x, normed first where a norm is given: its weight, and epsilon."""
        for first in range(0, len(targets), 4):
            part = targets[first : first + 4]
            nbytes = 4 * len(part) * tokens * step.mix * self.max_rank
            t = run.scratch("low_rank", nbytes)
            given = self._given(step, step.logits_indices if logits_only else 0)
            numbers = [self.numbers[target.product] for target in part]
            grid = (tokens * step.mix, len(part), self.max_rank // 2)
            numbers += [0] * (4 - len(part))
            entry = _down(norm is not None)
            run.launch(entry, grid, THREADS, *given, *x.at, x.width, *(norm or (0, 0.0)), t, self.max_rank, *numbers)
            self._up(run, given, part, tokens, (t, self.max_rank, 0, 0, 0), is_table=False)

    def add_rows(self, run: Launcher, step: StepInputs, target: Target, tokens: int, count: int) -> None:
        """Add the terms of rows of a table of `count` rows."""
        rest = (0, self.max_rank, step.tokens, step.previous, count)
        self._up(run, self._given(step, 0), (target,), tokens, rest, is_table=True)

    def _given(self, step: StepInputs, indices: int) -> tuple[Any, ...]:
        return self.table, len(self.numbers), step.adapters, step.adapter_weights, indices, step.mix

    def _up(
        self, run: Launcher, given: tuple[Any, ...], targets: Sequence[Target], tokens: int, rest: tuple[Any, ...],
        *, is_table: bool,
    ) -> None:  # fmt: skip
        outs = [(*one.rows.at, one.step, one.rows.width, self.numbers[one.product]) for one in targets]
        outs += [(0, 0, 0, 0, 0)] * (4 - len(outs))
        columns = max(target.rows.width for target in targets)
        grid = (tokens, -(-columns // THREADS), len(targets))
        run.launch(_up(is_table), grid, THREADS, *given, *rest, *chain.from_iterable(outs))


def mix_of(adapters: Sequence[AdapterRows], tokens: int) -> int:
    """The places that each token of a step has; 0: no token has an adapter."""
    if not adapters:
        return 0
    counts = np.bincount(np.concatenate([one.rows for one in adapters]), minlength=tokens)
    most = int(counts.max(initial=1))
    if most > MIXES[-1]:
        raise RequestError(f"on a GPU a request may use up to {MIXES[-1]} adapters at once, not {most}")
    return next(mix for mix in MIXES if mix >= most)


def pack_adapters(adapters: Sequence[AdapterRows], mix: int, slots: Bits, weights: Bits) -> None:
    """Write the places of a step's tokens."""
    slots[:], weights[:] = -1, 0
    used = np.zeros(len(slots) // mix, np.int64)
    for one in adapters:
        places = one.rows * mix + used[one.rows]
        used[one.rows] += 1
        slots[places] = one.adapter.slot
        weights[places] = one.weights.view(np.int32)


def _down(has_norm: bool) -> Entry:
    return entry("low_rank_down", (has_norm,), THREADS)


def _up(is_table: bool) -> Entry:
    return entry("low_rank_up", (is_table,), THREADS)


def _halves(term: LowRank, is_table: bool) -> tuple[Halves, Halves, float]:
    """A and B as f16 with padded ranks, and the factor of their product. Both are scaled to the range of f16."""
    a = np.eye(term.k, dtype=np.float32) if term.a is None else to_floats(term.a)
    b = np.eye(term.n, dtype=np.float32) if term.b is None else to_floats(term.b)
    padding = -b.shape[1] % GROUP
    a = np.pad(a, [(0, 0), (0, padding)] if is_table else [(0, padding), (0, 0)])
    (a, a_unit), (b, b_unit) = _scaled(a), _scaled(np.pad(b, [(0, 0), (0, padding)]))
    return a.astype(np.float16), b.astype(np.float16), term.scale * a_unit * b_unit


def _scaled(values: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], float]:
    """Values of which the largest is between 1 and 2, and the power of two that they were divided by.

    >>> _scaled(np.array([0.5, -0.01], np.float32))
    (array([ 1.  , -0.02], dtype=float32), 0.5)
    """
    largest = float(np.abs(values).max(initial=0))
    unit = 2.0 ** np.floor(np.log2(largest)) if largest else 1.0
    return values / np.float32(unit), float(unit)


def _joined(terms: Iterable[tuple[Halves, Halves, float]]) -> npt.NDArray[np.uint8]:
    parts = [part for a, b, _ in terms for part in (a, b)]
    out = np.zeros(max(16, sum(_padded(part.nbytes) for part in parts)), np.uint8)
    place = 0
    for part in parts:
        out[place : place + part.nbytes] = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
        place += _padded(part.nbytes)
    return out


def _padded(nbytes: int) -> int:
    return -(-nbytes // 256) * 256

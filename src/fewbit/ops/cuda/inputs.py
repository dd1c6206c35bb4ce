"""The integers of a step, in one piece of memory: packed on the host, sent with one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..low_rank import AdapterRows
from .adapters import pack_adapters
from .extras import NO_EXTRAS, StepExtras
from .values import GroupTables, InsertedPart, RowRun, StepInputs

if TYPE_CHECKING:
    from ...cache.view import View

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True)
class InputLayout:
    """Where each array begins, counted in integers. A captured graph has one of its own, padded to its sizes."""

    tokens: int
    sequences: int
    logits: int
    table_pages: tuple[int, ...]  # entries of all tables of each attention group
    max_q: int
    max_length: int
    runs: tuple[RowRun, ...] = ()
    mix: int = 0  # places for adapters of each token
    singles: int | None = None  # places for sequences of one new token, before all prompts; None: these have no places
    num_axes: int = 0
    max_span: int = 0
    inserts: tuple[InsertedPart, ...] = ()

    @cached_property
    def sizes(self) -> dict[str, int]:
        t, s = self.tokens, self.sequences
        fixed = {
            "tokens": t, "positions": t, "sequences": t, "q_starts": s + 1, "lengths": s, "logits_indices": self.logits,
            "adapters": t * self.mix, "adapter_weights": t * self.mix, "axes": t * self.num_axes,
            "spans": 2 * t if self.max_span else 0, "insert_tokens": sum(one.rows for one in self.inserts),
            "reads": s, "writes": s,
        }  # fmt: skip
        groups = range(len(self.table_pages))
        of_groups = {f"{name}{g}": size for g in groups for name, size in (("slots", t), ("starts", s + 1))}
        return fixed | of_groups | {f"tables{g}": self.table_pages[g] for g in groups}

    @cached_property
    def offsets(self) -> dict[str, int]:
        out, at = {}, 0
        for name, size in self.sizes.items():
            out[name] = at
            at += -(-size // 4) * 4
        return out

    @property
    def total(self) -> int:
        last = next(reversed(self.sizes))
        return self.offsets[last] + self.sizes[last]

    def inputs(self, pointer: int, previous: int, insert_rows: int = 0) -> StepInputs:
        """What lies where, in device memory from `pointer` on; `insert_rows` is where rows from outside are."""
        at = {name: pointer + 4 * offset for name, offset in self.offsets.items()}
        groups = tuple(
            GroupTables(at[f"tables{g}"], at[f"starts{g}"], at[f"slots{g}"]) for g in range(len(self.table_pages))
        )
        return StepInputs(
            at["tokens"], previous, at["positions"], at["sequences"], at["q_starts"], at["lengths"],
            at["logits_indices"], at["reads"], at["writes"], groups, self.tokens, self.sequences, self.logits,
            self.max_q, self.max_length, self.runs, at["adapters"], at["adapter_weights"], self.mix,
            at["axes"], self.num_axes, at["spans"], self.max_span, at["insert_tokens"], insert_rows, self.inserts,
        )  # fmt: skip

    def pack(
        self,
        out: Int32s,
        tokens: Int32s,
        view: View,
        logits_indices: Int32s,
        adapters: Sequence[AdapterRows] = (),
        extras: StepExtras = NO_EXTRAS,
    ) -> int:
        """Write the arrays of a step; returns how many integers must be sent. What is padded keeps nothing."""
        first, gap = self._gap(view)
        self._put(out, "tokens", tokens, 0, first, gap)
        self._put(out, "positions", view.positions(), 0, first, gap)
        self._put_sequences(out, view, first, gap)
        self._put(out, "lengths", view.lengths, 0, first, gap)
        self._put(out, "logits_indices", logits_indices + gap * (logits_indices >= first), 0)
        if self.mix:
            pack_adapters(adapters, self.mix, self._place(out, "adapters"), self._place(out, "adapter_weights"))
        extras.pack(lambda name: self._place(out, name), len(tokens))
        self._put(out, "reads", view.reads, 0, first, gap)
        self._put(out, "writes", view.writes, 0, first, gap)
        end = 0
        for group, (tables, table_starts) in enumerate(view.groups):
            self._put(out, f"slots{group}", view.slots(group), -1, first, gap)
            self._put(out, f"starts{group}", table_starts, 0, first, gap)
            self._place(out, f"tables{group}")[: len(tables)] = tables
            end = self.offsets[f"tables{group}"] + len(tables)
        return max(end, self.offsets["writes"] + self.sequences)

    def _place(self, out: Int32s, name: str) -> Int32s:
        first = self.offsets[name]
        return out[first : first + self.sizes[name]]

    def _gap(self, view: View) -> tuple[int, int]:
        """How many sequences and tokens come before the places that nobody has, and how many these are."""
        if self.singles is None:
            return 0, 0
        singles = int(np.argmax(np.diff(view.q_starts) > 1))
        return singles, self.singles - singles

    def _put_sequences(self, out: Int32s, view: View, first: int, gap: int) -> None:
        """The sequence of each row, and the first row of each sequence. Padded ones of one token have a row each."""
        n, s = int(view.q_starts[-1]) + gap, len(view.lengths) + gap
        starts, owners = self._place(out, "q_starts"), self._place(out, "sequences")
        starts[: first + gap] = np.arange(first + gap)
        starts[first + gap : s + 1] = view.q_starts[first:] + gap
        owners[:n] = np.repeat(np.arange(s), np.diff(starts[: s + 1]))
        if self.singles is None:
            starts[s + 1 :] = np.minimum(np.arange(n + 1, n + len(starts) - s), len(owners))
            owners[n:] = np.arange(s, s + len(owners) - n)
        else:  # rows behind the prompts are of the last one, which is empty
            starts[s + 1 :] = n
            owners[n:] = self.sequences - 1

    def _put(
        self, out: Int32s, name: str, values: npt.NDArray[np.integer], padding: int, first: int = 0, gap: int = 0
    ) -> None:
        """Values, with padding behind them and, from `first` on, in a gap between them."""
        place, end = self._place(out, name), len(values) + gap
        if not len(values):  # slots of states that no layer has
            first = gap = end = 0
        place[:first] = values[:first]
        place[first : first + gap] = padding
        place[first + gap : end] = values[first:]
        place[end:] = padding


def exact_layout(tokens: int, view: View, logits: int, mix: int = 0, extras: StepExtras = NO_EXTRAS) -> InputLayout:
    """For a step that runs once."""
    counts = np.diff(view.q_starts)
    return InputLayout(
        tokens, len(view.lengths), logits, tuple(max(1, len(t)) for t in view.tables), int(counts.max(initial=1)),
        int(view.lengths.max(initial=1)), find_runs(counts.tolist()), mix, None, extras.num_axes,
        extras.max_span, extras.inserts,
    )  # fmt: skip


def find_runs(counts: Sequence[int]) -> tuple[RowRun, ...]:
    """The runs of sequences with so many new tokens each; none, where all are alike.

    >>> [(run.sequences, run.rows) for run in find_runs([1, 1, 30, 1])]
    [(range(0, 2), range(0, 2)), (range(2, 3), range(2, 32)), (range(3, 4), range(32, 33))]
    >>> find_runs([1, 1]), find_runs([5, 7])
    ((), ())
    """
    runs, sequence, row = [], 0, 0
    for _, same in groupby(counts, lambda count: count > 1):
        new_tokens = list(same)
        runs.append(RowRun(range(sequence, sequence + len(new_tokens)), range(row, row + sum(new_tokens))))
        sequence, row = runs[-1].sequences.stop, runs[-1].rows.stop
    return tuple(runs) if len(runs) > 1 else ()

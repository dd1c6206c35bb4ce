"""A step for the executor: sequences and their pages as arrays of integers, the same for all devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..arrays import Ints, Longs
from ..ops.specs import PageTables
from .pages import Pages

NO_SLOTS = np.zeros(0, np.int32)


@dataclass(slots=True, eq=False)
class View:
    """The new tokens of several sequences, one sequence after another.

    In the layers of attention group g, position p of sequence s is in slot `p % page_tokens` of page
    `tables[g][table_starts[g][s] + p // page_tokens]`. Entries before a window are 0.
    Recurrent layers read the state before the new tokens from slot `reads[s]` and write the one after them to
    `writes[s]`.
    """

    sequences: tuple[int, ...]
    page_tokens: int
    q_starts: Longs  # sequence s has the new rows q_starts[s] to q_starts[s + 1]
    lengths: Longs  # with the new tokens
    tables: list[Ints]
    table_starts: list[Longs]
    reads: Ints
    writes: Ints
    _slots: dict[int, Longs] = field(default_factory=dict)  # by group

    def page_tables(self, group: int) -> PageTables:
        """The sequences, for kernels, in the layers of an attention group."""
        return PageTables(self.tables[group], self.table_starts[group], self.lengths, self.q_starts)

    @property
    def groups(self) -> list[tuple[Ints, Longs]]:
        """The tables of each attention group, and where those of each sequence begin."""
        return list(zip(self.tables, self.table_starts, strict=True))

    @property
    def before(self) -> Longs:
        """Lengths without the new tokens."""
        return self.lengths - np.diff(self.q_starts)

    def slots(self, group: int) -> Longs:
        """Slots of the new tokens: page * page_tokens + place in the page."""
        if group not in self._slots:
            self._slots[group] = self._find_slots(self.tables[group], self.table_starts[group])
        return self._slots[group]

    def positions(self) -> Longs:
        """The position of each new token in its sequence."""
        counts = np.diff(self.q_starts)
        return np.arange(self.q_starts[-1]) + np.repeat(self.before - self.q_starts[:-1], counts)

    def _find_slots(self, tables: Ints, starts: Longs) -> Longs:
        numbers, places = np.divmod(self.positions(), self.page_tokens)
        pages = tables[numbers + np.repeat(starts[:-1], np.diff(self.q_starts))]
        return np.asarray(pages * np.int64(self.page_tokens) + places, np.int64)


def make_view(pages: Pages, requests: Sequence[tuple[int, int]]) -> View:
    """The view of what was reserved. It is one loop, since every step waits for it."""
    states, sequences, lengths = [], [], []
    q_starts, table_starts = [0], [0]
    for sequence, count in requests:
        state = pages.state(sequence)
        states.append(state)
        sequences.append(sequence)
        lengths.append(state.length)
        q_starts.append(q_starts[-1] + count)
        table_starts.append(table_starts[-1] + -(-state.length // pages.page_tokens))
    numbers, end = np.array(q_starts + lengths + table_starts, np.int64), len(q_starts)
    tables = [
        np.frombuffer(bytearray().join([state.tables[group] for state in states]), np.int32)
        for group in range(len(pages.space.attention))
    ]
    reads = writes = NO_SLOTS
    if pages.space.is_recurrent:
        befores = [state.length - count for state, (_, count) in zip(states, requests, strict=True)]
        reads = np.array([state.slot_read(at) for state, at in zip(states, befores, strict=True)], np.int32)
        writes = np.array([state.next_slot for state in states], np.int32)
    return View(
        tuple(sequences),
        pages.page_tokens,
        numbers[:end],
        numbers[end : 2 * end - 1],
        tables,
        [numbers[2 * end - 1 :]] * len(tables),
        reads,
        writes,
    )

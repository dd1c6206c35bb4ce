"""Pages against a naive model that copies everything, driven by hypothesis.

`FEWBIT_EXAMPLES=20000 pytest tests/cache/test_pages_machine.py` runs as many examples.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fewbit.cache.pages import Pages, Writes
from fewbit.cache.pool import ROOT
from fewbit.errors import OutOfPages, PositionError, UnknownId

EXAMPLES = int(os.environ.get("FEWBIT_EXAMPLES", "300"))
MOST_SEQUENCES = 8

some = st.integers(0, 1 << 20)  # picks one of what there is
texts = st.text("01", max_size=12).map(lambda text: [int(c) for c in text])  # few tokens: texts often begin alike


@dataclass
class Copy:
    """A sequence of its own: all its tokens, how many are in the arrays, how many were committed."""

    tokens: list[int]
    written: int
    committed: int


class PagesMachine(RuleBasedStateMachine):
    @initialize(total=st.integers(1, 32), page_tokens=st.integers(1, 5))
    def start(self, total: int, page_tokens: int) -> None:
        self.pages = Pages(total, page_tokens)
        self.copies: dict[int, Copy] = {}
        self.pins: dict[int, list[int]] = {}
        self.gone = [0]  # ids given back or never given out
        self.seen: list[list[int]] = [[]]  # texts that may be in the index
        self.cells: dict[tuple[int, int], tuple[int, ...]] = {}  # (page, slot) -> all tokens up to this one

    def pick(self, which: int) -> int:
        sequences = list(self.copies) or [self.add([])]
        return sequences[which % len(sequences)]

    def make_room(self) -> None:
        if len(self.copies) == MOST_SEQUENCES:
            self.give_back(next(iter(self.copies)))

    # what a user does

    @rule(text=texts)
    def allocate(self, text: list[int]) -> None:
        self.add(text)

    @rule(which=some, cut=some, more=texts)
    def run_prompt(self, which: int, cut: int, more: list[int]) -> None:
        """A prompt that begins like an older one, computed to its end."""
        seen = self.seen[which % len(self.seen)]
        prompt = seen[: len(seen) - cut % 4] + more
        sequence = self.add(prompt)
        if self.grow(sequence, prompt[self.pages.length(sequence) :]):
            self.fill(sequence)
            self.settle(sequence, len(prompt))

    @rule(which=some, text=texts)
    def extend(self, which: int, text: list[int]) -> None:
        self.grow(self.pick(which), text)

    @rule(which=some, token=st.integers(0, 1))
    def decode(self, which: int, token: int) -> None:
        sequence = self.pick(which)
        if self.grow(sequence, [token]):
            self.fill(sequence)
            self.settle(sequence, 100)

    @rule(which=some, token=st.integers(0, 1))
    def step(self, which: int, token: int) -> None:
        """The quick way to decode. What it did is what `extend` and `commit` would have done."""
        sequence = self.pick(which)
        copy, before = self.copies[sequence], self.snapshot()
        if copy.written < len(copy.tokens):
            return
        if not self.pages.step(sequence):
            assert self.snapshot() == before
            return
        copy.tokens.append(token)
        self.fill(sequence)
        if self.pages.settle(sequence, token):
            copy.committed += 1
        else:
            self.settle(sequence, 100)

    @rule(which=some)
    def write(self, which: int) -> None:
        self.fill(self.pick(which))

    @rule(which=some, most=st.integers(0, 12))
    def commit(self, which: int, most: int) -> None:
        self.settle(self.pick(which), most)

    @rule(which=some, more=texts)
    def fork(self, which: int, more: list[int]) -> None:
        self.make_room()
        parent = self.pick(which)
        child = self.pages.fork(parent)
        copy = self.copies[parent]
        self.copies[child] = replace(copy, tokens=copy.tokens[:])
        self.grow(child, more)

    @rule(which=some, drop=st.integers(0, 9), more=texts)
    def edit(self, which: int, drop: int, more: list[int]) -> None:
        sequence = self.pick(which)
        self.cut(sequence, max(0, len(self.copies[sequence].tokens) - drop))
        self.grow(sequence, more)

    @rule(which=some)
    def fail(self, which: int) -> None:
        """The computation failed: keep what was committed."""
        sequence = self.pick(which)
        self.cut(sequence, self.copies[sequence].committed)

    @rule(which=some)
    def free(self, which: int) -> None:
        self.give_back(self.pick(which))

    @rule(which=some)
    def pin(self, which: int) -> None:
        sequence = self.pick(which)
        entered = self.pages._sequences[sequence].entered
        self.pins[self.pages.pin(sequence)] = self.pages.table(sequence)[:entered]

    @rule(which=some)
    def unpin(self, which: int) -> None:
        for pin in list(self.pins)[which % 3 :: 3]:
            self.pages.unpin(pin)
            del self.pins[pin]
            self.gone.append(pin)

    @rule(which=some, text=texts)
    def ask_without_effect(self, which: int, text: list[int]) -> None:
        """Lookups, and what is refused, change nothing."""
        sequence = self.pick(which)
        before = self.snapshot()
        length = self.pages.length(sequence)
        assert self.pages.lookup(text) in range(0, len(text) + 1, self.pages.page_tokens)
        with pytest.raises(OutOfPages):
            self.pages.extend(sequence, (self.pages.total + 1) * self.pages.page_tokens)
        with pytest.raises(PositionError):
            self.pages.truncate(sequence, length + 1)
        with pytest.raises(PositionError):
            self.pages.commit(sequence, [0] * (length + 1))
        for call in (self.pages.free, self.pages.unpin, self.pages.extend, self.pages.fork, self.pages.pin):
            with pytest.raises(UnknownId):
                call(self.gone[which % len(self.gone)])
        assert self.snapshot() == before

    # what the owner of the arrays does

    def add(self, text: list[int]) -> int:
        self.make_room()
        found = self.pages.lookup(text)
        sequence = self.pages.allocate(text)
        assert self.pages.length(sequence) == found
        self.copies[sequence] = Copy(text[:found], found, found)
        return sequence

    def grow(self, sequence: int, text: list[int]) -> bool:
        before, (needed, free) = self.snapshot(), self.expect(sequence, len(text))
        if needed > free:
            with pytest.raises(OutOfPages, match=f"needed: {needed}, free or evictable: {free}$"):
                self.pages.extend(sequence, len(text))
            assert self.snapshot() == before
            self.give_back(next(iter(self.copies)))  # as an engine does, so that things go on
            return False
        writes = self.pages.extend(sequence, len(text))
        self.carry_out(writes)
        copy = self.copies[sequence]
        places = [(span.page, span.slot + i) for span in writes.spans for i in range(span.tokens)]
        start = len(copy.tokens)
        assert places == [self.pages.locate(sequence, start + i) for i in range(len(text))]
        copy.tokens += text
        return True

    def expect(self, sequence: int, more: int) -> tuple[int, int]:
        """Pages that an extension needs, and pages that can be had: those that nobody else needs."""
        size, pool = self.pages.page_tokens, self.pages._pool
        table, length = self.pages.table(sequence), len(self.copies[sequence].tokens)
        needed = -(-(length + more) // size) - len(table)
        others = {page for other in self.copies if other != sequence for page in self.pages.table(other)}
        kept = others.union(table, *self.pins.values())
        if more and length % size and (table[-1] in others or table[-1] in pool.keys):
            needed += 1  # its last page must be copied
            kept = others.union(table[:-1], *self.pins.values())
        return needed, pool.total - len(kept)

    def carry_out(self, writes: Writes) -> None:
        for source, destination in writes.copies:
            assert source != destination
            for slot in range(self.pages.page_tokens):
                with suppress(KeyError):
                    self.cells[destination, slot] = self.cells[source, slot]

    def fill(self, sequence: int) -> None:
        copy = self.copies[sequence]
        for position in range(copy.written, len(copy.tokens)):
            page, slot = self.pages.locate(sequence, position)
            assert self.pages._pool.serials[page] == ROOT, "a page of the index is written"
            self.cells[page, slot] = tuple(copy.tokens[: position + 1])
        copy.written = len(copy.tokens)

    def settle(self, sequence: int, most: int) -> None:
        copy = self.copies[sequence]
        end = min(copy.committed + most, copy.written)
        self.pages.commit(sequence, copy.tokens[copy.committed : end])
        copy.committed = end
        self.seen.append(copy.tokens[:end])

    def cut(self, sequence: int, length: int) -> None:
        self.pages.truncate(sequence, length)
        copy = self.copies[sequence]
        del copy.tokens[length:]
        copy.written = min(copy.written, length)
        copy.committed = min(copy.committed, length)

    def give_back(self, sequence: int) -> None:
        self.pages.free(sequence)
        del self.copies[sequence]
        self.gone.append(sequence)

    def snapshot(self) -> tuple[object, ...]:
        tables = {sequence: self.pages.table(sequence) for sequence in self.copies}
        pool = self.pages._pool
        return self.pages.stats(), tables, dict(pool.index), list(pool.idle), list(pool.free)

    # what must be so after each step

    @invariant()
    def each_sequence_reads_its_own_text(self) -> None:
        size = self.pages.page_tokens
        for sequence, copy in self.copies.items():
            table = self.pages.table(sequence)
            assert len(table) == -(-len(copy.tokens) // size)
            assert self.pages.length(sequence) == len(copy.tokens)
            assert self.pages.committed(sequence) == copy.committed
            for position in range(copy.written):
                content = self.cells[table[position // size], position % size]
                assert content == tuple(copy.tokens[: position + 1])

    @invariant()
    def counts_are_right(self) -> None:
        pool, stats = self.pages._pool, self.pages.stats()
        held = Counter(page for sequence in self.copies for page in self.pages.table(sequence))
        pinned = Counter(page for pages in self.pins.values() for page in pages)
        assert pool.references == [held[page] for page in range(pool.total)]
        assert pool.pins == [pinned[page] for page in range(pool.total)]
        cached = {page for page in pool.keys if not held[page]}
        assert set(pool.idle) == {page for page in cached if not pinned[page]}
        assert sorted([*pool.free, *held, *cached]) == list(range(pool.total))
        assert (stats.free, stats.used, stats.cached) == (len(pool.free), len(held), len(cached))
        assert stats.free + stats.used + stats.cached == stats.total
        assert stats.shared == sum(n > 1 for n in held.values())
        assert (stats.pinned, stats.references) == (len(pinned), held.total())

    @invariant()
    def index_tells_the_truth(self) -> None:
        pool, size = self.pages._pool, self.pages.page_tokens
        by_serial = {pool.serials[page]: page for page in pool.keys}
        assert len(by_serial) == len(pool.index) == len(pool.keys)
        assert all(pool.index[key] == page for page, key in pool.keys.items())
        for page, (parent, tokens) in pool.keys.items():
            before = self.cells[by_serial[parent], size - 1] if parent != ROOT else ()  # the parent is still there
            text = before + tuple(memoryview(tokens).cast("I"))
            assert all(self.cells[page, slot] == text[: len(before) + slot + 1] for slot in range(size))

    @invariant()
    def what_was_committed_is_found(self) -> None:
        for sequence, copy in self.copies.items():
            record = self.pages._sequences[sequence]
            found = self.pages.lookup(copy.tokens[: copy.committed])
            assert found >= record.entered * self.pages.page_tokens
            assert all(self.pages._pool.serials[page] != ROOT for page in record.table[: record.entered])


PagesMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestPages = PagesMachine.TestCase

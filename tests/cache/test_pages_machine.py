"""Pages against a naive model that copies everything, driven by hypothesis, over several mixes of groups.
`FEWBIT_EXAMPLES=20000 pytest tests/cache/test_pages_machine.py` runs as many examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fewbit.cache.groups import ZERO_SLOT, LayerGroup
from fewbit.cache.pages import Pages
from fewbit.cache.tree import PrefixNode
from fewbit.errors import FewbitError, OutOfPages, PositionError, UnknownId

from ..examples import examples

EXAMPLES = examples(usual=60, full=150)
MAX_SEQUENCES = 8

FULL, RECURRENT = LayerGroup(), LayerGroup(is_recurrent=True)
MIXES: list[list[LayerGroup]] = [
    [FULL],
    [FULL, LayerGroup(window=3)],
    [LayerGroup(window=1), LayerGroup(window=6)],
    [FULL, RECURRENT],
    [RECURRENT],
    [FULL, LayerGroup(window=4), RECURRENT],
]
Text = tuple[int, ...]

picks = st.integers(0, 1 << 20)  # an index, modulo the number of choices
texts = st.text("01", max_size=12).map(lambda text: [int(c) for c in text])  # few tokens: texts often begin alike
names = st.sampled_from(["", "", "other"])


@dataclass
class Copy:
    """A sequence of its own: all its tokens, how many are in the arrays, how many were committed."""

    namespace: str
    tokens: list[int]
    written: int
    committed: int
    starts: list[int] = field(default_factory=list)  # the first token that each attention group has
    ends: list[int] = field(default_factory=list)  # of the steps that were not committed


class PagesMachine(RuleBasedStateMachine):
    @initialize(
        groups=st.sampled_from(MIXES),
        totals=st.lists(st.integers(2, 32), min_size=3, max_size=3),
        page_tokens=st.integers(1, 5),
        short=st.booleans(),
    )
    def start(self, groups: list[LayerGroup], totals: list[int], page_tokens: int, short: bool) -> None:
        self.pages = Pages(groups, totals[: len(groups)], page_tokens, lambda: short)
        self.size = page_tokens
        self.copies: dict[int, Copy] = {}
        self.pins: dict[int, list[tuple[int, int]]] = {}
        self.gone = [0]  # ids given back or never given out
        self.seen: list[list[int]] = [[]]  # texts that may be in the tree
        self.cells: dict[tuple[int, int, int], tuple[str, Text]] = {}  # (group, page, place) -> all tokens up to it
        self.states: dict[int, tuple[str, Text]] = {}  # slot -> all tokens

    # what a user does

    @rule(text=texts, name=names)
    def new(self, text: list[int], name: str) -> None:
        self.add(text, name)

    @rule(which=picks, cut=picks, more=texts, name=names, step=st.integers(1, 12))
    def run_prompt(self, which: int, cut: int, more: list[int], name: str, step: int) -> None:
        """A prompt that begins like an older one, computed to its end, in steps."""
        seen = self.seen[which % len(self.seen)]
        prompt = seen[: len(seen) - cut % 4] + more
        sequence = self.add(prompt, name)
        while self.pages.length(sequence) < len(prompt):
            if not self.grow({sequence: prompt[self.pages.length(sequence) :][:step]}):
                return
            self.fill(sequence)
            self.commit_some(sequence, len(prompt))

    @rule(which=picks, text=texts)
    def reserve(self, which: int, text: list[int]) -> None:
        self.grow({self.pick(which): text})

    @rule(token=st.integers(0, 1), part=st.integers(1, 3))
    def decode(self, token: int, part: int) -> None:
        """One token of several sequences at once."""
        chosen = list(self.copies)[::part]
        if self.grow({sequence: [token] for sequence in chosen}):
            for sequence in chosen:
                self.fill(sequence)
                self.commit_some(sequence, 100)

    @rule(which=picks)
    def write(self, which: int) -> None:
        self.fill(self.pick(which))

    @rule(which=picks, count=st.integers(0, 12))
    def commit(self, which: int, count: int) -> None:
        self.commit_some(self.pick(which), count)

    @rule(which=picks, more=texts)
    def fork(self, which: int, more: list[int]) -> None:
        self.make_room()
        parent = self.pick(which)
        copy = self.copies[parent]
        if self.is_pending(copy):
            self.refused(PositionError, lambda: self.pages.fork(parent))
            return
        child = self.pages.fork(parent)
        self.copies[child] = replace(copy, tokens=copy.tokens[:], starts=copy.starts[:], ends=copy.ends[:])
        self.grow({child: more})

    @rule(which=picks, drop=st.integers(0, 9), more=texts)
    def fork_beginning(self, which: int, drop: int, more: list[int]) -> None:
        """The first committed tokens of a sequence, whatever it has reserved after them."""
        self.make_room()
        parent = self.pick(which)
        copy = self.copies[parent]
        length = max(0, copy.committed - drop)
        if not self.pages.can_fork(parent, length):
            self.refused(PositionError, lambda: self.pages.fork(parent, length))
            assert self.is_lost(copy, length) or (self.pages.space.is_recurrent and length not in (0, copy.committed))
            return
        child = self.pages.fork(parent, length)
        starts = [min(start, -(-length // self.size) * self.size) for start in copy.starts]
        self.copies[child] = Copy(copy.namespace, copy.tokens[:length], length, length, starts)
        self.grow({child: more})

    @rule(which=picks, drop=st.integers(0, 9), more=texts)
    def edit(self, which: int, drop: int, more: list[int]) -> None:
        sequence = self.pick(which)
        if self.cut(sequence, max(0, len(self.copies[sequence].tokens) - drop)):
            self.grow({sequence: more})

    @rule(which=picks)
    def fail(self, which: int) -> None:
        """The computation failed: keep what was committed."""
        sequence = self.pick(which)
        assert self.cut(sequence, self.copies[sequence].committed)

    @rule(which=picks)
    def free(self, which: int) -> None:
        self.let_go(self.pick(which))

    @rule(which=picks, later=st.booleans(), name=names)
    def restore(self, which: int, later: bool, name: str) -> None:
        """A sequence from a file that another one was written to."""
        copy = self.copies[self.pick(which)]
        text, starts = copy.tokens[: copy.committed], copy.starts
        if later:  # by a cache with smaller pages, which let go of more
            starts = [group.first_seen(len(text)) for group in self.attention]
        self.make_room()
        try:
            sequence = self.pages.restore(text, len(text), starts, name)
        except OutOfPages:
            return
        known = self.pages.committed(sequence)
        found = [group.first_seen(known) // self.size * self.size for group in self.attention]
        own = [start if start > known else first for start, first in zip(starts, found, strict=True)]
        self.copies[sequence] = Copy(name, text[:], known, known, own, [len(text)])
        self.fill(sequence)
        self.commit_some(sequence, len(text))

    @rule(which=picks)
    def pin(self, which: int) -> None:
        sequence = self.pick(which)
        pin = self.pages.pin(sequence)
        self.pins[pin] = [(pool.group, page) for pool, page in self.pages._pins[pin]]
        copy = self.copies[sequence]
        depth = self.pages.state(sequence).inserted
        found = self.pages.lookup(copy.tokens[: depth * self.size], copy.namespace)
        full = [page for group, page in self.pins[pin] if self.pages.groups[group] == FULL]
        if self.pages.groups[0] == FULL:
            assert len(full) == found // self.size

    @rule(which=picks)
    def unpin(self, which: int) -> None:
        for pin in list(self.pins)[which % 3 :: 3]:
            self.pages.unpin(pin)
            del self.pins[pin]
            self.gone.append(pin)

    @rule(which=picks, text=texts, name=names)
    def ask_without_effect(self, which: int, text: list[int], name: str) -> None:
        """Lookups, and what is refused, change nothing."""
        sequence = self.pick(which)
        before, length = self.snapshot(), self.pages.length(sequence)
        assert self.pages.lookup(text, name) in range(0, len(text) + 1, self.size)
        if self.attention:
            self.refused(FewbitError, lambda: self.pages.extend([(sequence, 33 * self.size)]))
        self.refused(PositionError, lambda: self.pages.truncate(sequence, length + 1))
        self.refused(PositionError, lambda: self.pages.fork(sequence, length + 1))
        self.refused(PositionError, lambda: self.pages.commit(sequence, [0] * (length + 1)))
        stale = self.gone[which % len(self.gone)]
        for call in (self.pages.free, self.pages.unpin, self.pages.fork, self.pages.pin):
            self.refused(UnknownId, lambda call=call: call(stale))
        assert self.snapshot() == before

    # what the owner of the arrays does

    @property
    def attention(self) -> list[LayerGroup]:
        return [group for group in self.pages.groups if not group.is_recurrent]

    def pick(self, which: int) -> int:
        sequences = list(self.copies) or [self.add([], "")]
        return sequences[which % len(sequences)]

    def make_room(self) -> None:
        if len(self.copies) == MAX_SEQUENCES:
            self.let_go(next(iter(self.copies)))

    def let_go(self, sequence: int) -> None:
        self.pages.free(sequence)
        del self.copies[sequence]
        self.gone.append(sequence)

    def is_pending(self, copy: Copy) -> bool:
        return self.pages.space.is_recurrent and len(copy.tokens) > copy.committed

    def add(self, text: list[int], name: str) -> int:
        self.make_room()
        found = self.pages.lookup(text, name)
        sequence = self.pages.new(text, name)
        assert self.pages.length(sequence) == found
        starts = [group.first_seen(found) // self.size * self.size for group in self.attention]
        self.copies[sequence] = Copy(name, text[:found], found, found, starts)
        return sequence

    def grow(self, work: dict[int, list[int]]) -> bool:
        requests = [(sequence, len(text)) for sequence, text in work.items()]
        needed = [self.needed(sequence, count) for sequence, count in requests]
        if any(sum(n) > free for n, free in zip(zip(*needed, strict=True), self.pages.available, strict=False)):
            self.refused(OutOfPages, lambda: self.pages.extend(requests))
            self.let_go(next(iter(self.copies)))  # as an engine does, so that things go on
            return False
        for group, pairs in self.pages.extend(requests).items():
            for source, destination in pairs:
                assert source != destination
                for place in range(self.size):
                    self.cells[group, destination, place] = self.cells.get((group, source, place), ("", ()))
        for sequence, text in work.items():
            self.copies[sequence].tokens += text
            self.copies[sequence].ends += [len(self.copies[sequence].tokens)] if text else []
        return True

    def needed(self, sequence: int, more: int) -> list[int]:
        """Pages that more tokens need, in each group."""
        length, needed = len(self.copies[sequence].tokens), []
        for group in range(len(self.attention)):
            table = self.pages.table(sequence, group)
            pages = -(-(length + more) // self.size) - len(table)
            others = {page for other in self.copies if other != sequence for page in self.held(other, group)}
            pinned = {page for pin in self.pins.values() for number, page in pin if number == group}
            pages += more > 0 and length % self.size > 0 and table[-1] in others | pinned
            needed.append(pages)
        needed += [int(more > 0)] if self.pages.space.is_recurrent else []
        assert self.pages.needed(sequence, more) == tuple(needed)
        return needed

    def held(self, sequence: int, group: int) -> list[int]:
        return self.pages.table(sequence, group)[self.copies[sequence].starts[group] // self.size :]

    def fill(self, sequence: int) -> None:
        copy, state = self.copies[sequence], self.pages.state(sequence)
        for group, start in enumerate(copy.starts):
            pool = self.pages.space.pools[group]
            for position in range(max(start, copy.written), len(copy.tokens)):
                page = state.tables[group][position // self.size]
                assert pool.nodes[page] is None, "a page of the tree is written"
                self.cells[group, page, position % self.size] = copy.namespace, tuple(copy.tokens[: position + 1])
        for end, slot in state.fresh:
            assert slot != ZERO_SLOT
            self.states[slot] = copy.namespace, tuple(copy.tokens[:end])
        copy.written = len(copy.tokens)

    def commit_some(self, sequence: int, count: int) -> None:
        copy = self.copies[sequence]
        end = min(copy.committed + count, copy.written)
        new = copy.tokens[copy.committed : end]
        if self.is_pending(copy) and end not in copy.ends:
            self.refused(PositionError, lambda: self.pages.commit(sequence, new))
            return
        self.pages.commit(sequence, new)
        copy.committed = end
        copy.ends = [one for one in copy.ends if one > end]
        first = [group.first_seen(end) // self.size * self.size for group in self.attention]
        copy.starts = [max(start, now) for start, now in zip(copy.starts, first, strict=True)]
        self.seen.append(copy.tokens[:end])

    def cut(self, sequence: int, length: int) -> bool:
        copy, pages = self.copies[sequence], -(-length // self.size)
        if self.is_lost(copy, length) and length < len(copy.tokens):
            self.refused(PositionError, lambda: self.pages.truncate(sequence, length))
            return False
        try:
            self.pages.truncate(sequence, length)
        except PositionError:
            assert self.pages.space.is_recurrent
            assert length not in (0, copy.committed, *copy.ends)
            return False
        if length < len(copy.tokens):
            copy.starts = [min(start, pages * self.size) for start in copy.starts]
        del copy.tokens[length:]
        copy.written, copy.committed = min(copy.written, length), min(copy.committed, length)
        copy.ends = [end for end in copy.ends if end <= length]
        return True

    def is_lost(self, copy: Copy, length: int) -> bool:
        """Whether a window would see tokens that were let go."""
        firsts, pages = [group.first_seen(length) for group in self.attention], -(-length // self.size)
        return any(a < b and a // self.size < pages for a, b in zip(firsts, copy.starts, strict=True))

    def refused(self, kind: type[Exception], call: object) -> None:
        before = self.snapshot()
        with pytest.raises(kind):
            call()  # type: ignore[operator]
        assert self.snapshot() == before

    def snapshot(self) -> tuple[object, ...]:
        tables = {s: [t[:] for t in self.pages.state(s).tables] for s in self.copies}
        slots = {s: (self.pages.state(s).slot, self.pages.state(s).fresh[:]) for s in self.copies}
        pools = [(list(pool.idle), pool.free[:], pool.nodes[:]) for pool in self.pages.space.pools]
        return self.pages.stats(), tables, slots, pools

    # what must be so after each step

    @invariant()
    def each_sequence_reads_its_own_text(self) -> None:
        for sequence, copy in self.copies.items():
            assert self.pages.length(sequence) == len(copy.tokens)
            assert self.pages.committed(sequence) == copy.committed
            state = self.pages.state(sequence)
            assert state.starts == copy.starts
            for group, start in enumerate(copy.starts):
                table = self.pages.table(sequence, group)
                assert len(table) == -(-len(copy.tokens) // self.size)
                assert not any(table[: start // self.size])
                for position in range(start, copy.written):
                    content = self.cells[group, table[position // self.size], position % self.size]
                    assert content == (copy.namespace, tuple(copy.tokens[: position + 1]))
            if self.pages.space.is_recurrent:
                assert (state.slot == ZERO_SLOT) == (copy.committed == 0)
                if copy.committed:
                    assert self.states[state.slot] == (copy.namespace, tuple(copy.tokens[: copy.committed]))

    @invariant()
    def counts_are_right(self) -> None:
        stats = self.pages.stats()
        for pool, counts in zip(self.pages.space.pools, stats.groups, strict=True):
            group, first = pool.group, pool.first
            if self.pages.groups[group].is_recurrent:
                states = [self.pages.state(sequence) for sequence in self.copies]
                used = Counter([state.slot for state in states if state.slot])
                used.update(slot for state in states for _, slot in state.fresh)
            else:
                used = Counter(page for sequence in self.copies for page in self.held(sequence, group))
            pinned = Counter(page for pin in self.pins.values() for number, page in pin if number == group)
            touched = pool.total - pool.fresh
            assert pool.references[first:] == [used[page] for page in range(first, touched)]
            assert pool.pins == [pinned[page] for page in range(touched)]
            cached = {page for page, node in enumerate(pool.nodes) if node is not None and not used[page]}
            assert set(pool.idle) == {page for page in cached if not pinned[page]}
            assert sorted([*pool.free, *used, *cached]) == list(range(first, touched))
            assert (counts.free - pool.fresh, counts.used, counts.cached) == (len(pool.free), len(used), len(cached))
            assert counts.shared == sum(n > 1 for n in used.values())
            assert (counts.pinned, counts.references) == (len(pinned), used.total())
            assert self.pages.available[group] == counts.total - len({*used, *pinned})
        assert stats.free + stats.used + stats.cached == stats.total

    def nodes(self) -> Iterator[tuple[PrefixNode, str, Text]]:
        roots = self.pages.space.tree._top.children
        todo: list[tuple[PrefixNode, str, Text]] = [(root, key.decode(), ()) for key, root in roots.items()]
        while todo:
            node, name, text = todo.pop()
            yield node, name, text
            todo += [(child, name, text + tuple(memoryview(key).cast("I"))) for key, child in node.children.items()]

    @invariant()
    def tree_tells_the_truth(self) -> None:
        found: Counter[tuple[int, int]] = Counter()
        for node, name, text in self.nodes():
            assert not node.is_unused
            assert node.holders == sum(self.pages.state(sequence).node is node for sequence in self.copies)
            for group, page in enumerate(node.pages):
                if page is None:
                    continue
                found[group, page] += 1
                assert self.pages.space.pools[group].nodes[page] is node
                if self.pages.groups[group].is_recurrent:
                    assert self.states[page] == (name, text)
                    continue
                for place in range(self.size):
                    end = len(text) - self.size + place + 1
                    assert self.cells[group, page, place] == (name, text[:end])
        listed = [(pool.group, page) for pool in self.pages.space.pools for page, node in enumerate(pool.nodes) if node]
        assert found == Counter(listed)

    @invariant()
    def what_was_committed_is_found(self) -> None:
        for sequence, copy in self.copies.items() if self.pages.groups == (FULL,) else ():
            found = self.pages.lookup(copy.tokens[: copy.committed], copy.namespace)
            assert found >= self.pages.state(sequence).inserted * self.size


PagesMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestPages = PagesMachine.TestCase

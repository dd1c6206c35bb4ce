"""Pages against a naive model that copies everything, driven by hypothesis, over several mixes of groups.
`FEWBIT_EXAMPLES=20000 pytest tests/cache/test_pages_machine.py` runs as many examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fewbit.cache.groups import ZERO_SLOT, LayerGroup
from fewbit.cache.tree import PrefixNode
from fewbit.errors import FewbitError, OutOfPages, PositionError, UnknownId

from ..examples import examples
from .pages_owner import Copy, PagesOwner, Text

EXAMPLES = examples(usual=60, full=150)

FULL, RECURRENT = LayerGroup(), LayerGroup(is_recurrent=True)
MIXES: list[list[LayerGroup]] = [
    [FULL],
    [FULL, LayerGroup(window=3)],
    [LayerGroup(window=1), LayerGroup(window=6)],
    [FULL, RECURRENT],
    [RECURRENT],
    [FULL, LayerGroup(window=4), RECURRENT],
]

picks = st.integers(0, 1 << 20)  # an index, modulo the number of choices
texts = st.text("01", max_size=12).map(lambda text: [int(c) for c in text])  # few tokens: texts often begin alike
names = st.sampled_from(["", "", "other"])


class PagesMachine(PagesOwner, RuleBasedStateMachine):
    @initialize(
        groups=st.sampled_from(MIXES),
        totals=st.lists(st.integers(2, 32), min_size=3, max_size=3),
        page_tokens=st.integers(1, 5),
        short=st.booleans(),
    )
    def start(self, groups: list[LayerGroup], totals: list[int], page_tokens: int, short: bool) -> None:
        self.begin(groups, totals[: len(groups)], page_tokens, short)

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

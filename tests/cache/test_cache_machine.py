"""A KV cache with its arrays, driven by hypothesis, beside a model that knows of each sequence only its tokens.

K, V and the recurrent state of a token follow from all tokens up to it, so that what one sequence reads of another is
noticed. `FEWBIT_EXAMPLES=5000 pytest tests/cache/test_cache_machine.py` runs as many examples.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fewbit.arrays import Floats
from fewbit.cache.disk import DiskCache
from fewbit.cache.kv import KVCache
from fewbit.cache.view import View
from fewbit.errors import OutOfPages, PositionError
from fewbit.ops import attention
from fewbit.ops.specs import AttentionSpec, LayerSpec, RecurrentSpec

from ..exact_attention import exact

EXAMPLES = int(os.environ.get("FEWBIT_EXAMPLES", "60"))
MAX_SEQUENCES = 5

FULL, WINDOW, STATE = AttentionSpec(2, 4, 4), AttentionSpec(1, 4, 4, window=5), RecurrentSpec(8)
UNLIKE = AttentionSpec(1, 8, 4)  # K and V of different widths
MIXES: list[list[LayerSpec]] = [[FULL, WINDOW], [UNLIKE, STATE], [WINDOW, None, STATE, FULL], [STATE]]

picks = st.integers(0, 1 << 20)  # an index, modulo the number of choices
texts = st.text("01", max_size=14).map(lambda text: [int(c) for c in text])  # few tokens: texts often begin alike
names = st.sampled_from(["", "", "other"])


def advance(state: int, tokens: list[int]) -> int:
    """A running hash, which is what recurrent layers keep."""
    for token in tokens:
        state = (state * 1000003 + token + 1) % (1 << 40)
    return state


def rows(layer: int, what: int, tokens: list[int], first: int, heads: int, dim: int) -> Floats:
    """K, V or q (0, 1 or 2) of the tokens from `first` on."""
    hashes = [advance(what, tokens[: end + 1]) + layer for end in range(first, len(tokens))]
    values = np.array(hashes, np.int64).reshape(-1, 1) * np.arange(3, 3 + heads * dim) % 251
    return (values / 64).astype(np.float32).reshape(-1, heads, dim)


def damage_one(folder: Path, which: int | None) -> None:
    """A bit of some file is flipped, or its end is cut off."""
    files = sorted(folder.iterdir())
    if which is None or not files:
        return
    path = files[which % len(files)]
    data = bytearray(path.read_bytes())
    if which % 3:
        data[which % len(data)] ^= 1 << which % 8
    else:
        del data[which % len(data) :]
    path.write_bytes(data)


@dataclass
class Copy:
    namespace: str
    tokens: list[int]


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        specs=st.sampled_from(MIXES),
        pages=st.integers(3, 20),
        page_tokens=st.integers(1, 5),
        max_bytes=st.none() | st.sampled_from([3000, 1 << 20]),
    )
    def start(self, specs: list[LayerSpec], pages: int, page_tokens: int, max_bytes: int | None) -> None:
        self.specs, self.disk_folder = specs, tempfile.TemporaryDirectory()
        self.disk = None if max_bytes is None else DiskCache(self.disk_folder.name, max_bytes)
        self.cache = self.make(pages, page_tokens, self.disk)
        self.copies: dict[int, Copy] = {}
        self.pins: list[int] = []
        self.seen: list[list[int]] = [[]]
        self.folder = tempfile.TemporaryDirectory()

    def make(self, pages: int, page_tokens: int, disk: DiskCache | None = None) -> KVCache:
        sizes = {"pages": pages, "page_tokens": page_tokens, "max_seqs": 3, "snapshots": 2}
        return KVCache(specs=self.specs, k="f32", kernels=attention, disk=disk, **sizes)  # type: ignore[arg-type]

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            if self.disk is not None:
                self.disk.flush()
            self.folder.cleanup()
            self.disk_folder.cleanup()

    # what a user does

    @rule(which=picks, cut=picks, more=texts, name=names, step=st.integers(1, 9))
    def run_prompt(self, which: int, cut: int, more: list[int], name: str, step: int) -> None:
        seen = self.seen[which % len(self.seen)]
        prompt = seen[: len(seen) - cut % 4] + more
        sequence = self.add(prompt, name)
        while len(self.copies[sequence].tokens) < len(prompt):
            if not self.step({sequence: prompt[len(self.copies[sequence].tokens) :][:step]}):
                return

    @rule(tokens=st.lists(texts, min_size=1, max_size=3))
    def extend(self, tokens: list[list[int]]) -> None:
        """Some sequences at once, each by some tokens."""
        self.step(dict(zip(list(self.copies), tokens, strict=False)))

    @rule(token=st.integers(0, 1))
    def decode(self, token: int) -> None:
        self.step({sequence: [token] for sequence in self.copies})

    @rule(which=picks, text=texts, written=st.integers(0, 3))
    def fail(self, which: int, text: list[int], written: int) -> None:
        """A step that ends before its last layer."""
        sequence = self.pick(which)
        try:
            step = self.cache.reserve([(sequence, len(text))])
        except OutOfPages:
            return
        for layer, spec in list(enumerate(self.specs))[:written]:
            if isinstance(spec, AttentionSpec):
                k, v = np.ones((len(text), spec.kv_heads, 8), np.float32), np.ones((len(text), spec.kv_heads, 4))
                self.cache.append(layer, step, k[..., : spec.k_dim], v)
        self.cache.rollback(step)

    @rule(which=picks, text=texts, accepted=st.integers(0, 14))
    def draft(self, which: int, text: list[int], accepted: int) -> None:
        """Tokens of which the first are kept; recurrent layers refuse that."""
        sequence = self.pick(which)
        copy = self.copies[sequence]
        try:
            step = self.cache.reserve([(sequence, len(text))])
        except OutOfPages:
            return
        self.write(step, {sequence: text})
        kept = text[:accepted]
        try:
            self.cache.commit(sequence, kept)
            copy.tokens += kept
        except PositionError:
            assert self.cache.wants_page_ends
            assert len(kept) < len(text)
        self.cache.rollback(step)

    @rule(which=picks)
    def fork(self, which: int) -> None:
        self.make_room()
        parent = self.pick(which)
        child = self.cache.fork(parent)
        self.copies[child] = Copy(self.copies[parent].namespace, self.copies[parent].tokens[:])

    @rule(which=picks, drop=st.integers(0, 12))
    def truncate(self, which: int, drop: int) -> None:
        sequence = self.pick(which)
        tokens = self.copies[sequence].tokens
        length = max(0, len(tokens) - drop)
        try:
            self.cache.truncate(sequence, length)
        except PositionError:
            assert 0 < length < len(tokens)
            assert self.specs != [FULL]
        else:
            del tokens[length:]

    @rule(which=picks)
    def free(self, which: int) -> None:
        self.let_go(self.pick(which))

    @rule(which=picks)
    def pin(self, which: int) -> None:
        self.pins.append(self.cache.pin(self.pick(which)))

    @rule()
    def unpin(self) -> None:
        while self.pins:
            self.cache.unpin(self.pins.pop())

    @rule(which=picks, page_tokens=st.integers(1, 5), name=names)
    def save_and_load(self, which: int, page_tokens: int, name: str) -> None:
        sequence, path = self.pick(which), Path(self.folder.name) / "a.kv"
        copy = self.copies[sequence]
        self.cache.save(sequence, path)
        other = self.make(40, page_tokens)
        for cache in (self.cache, other):
            self.make_room()
            try:
                loaded = cache.load(path, name)
            except OutOfPages:
                assert cache is self.cache
                continue
            self.check(cache, loaded, copy)
            if cache is self.cache:
                self.copies[loaded] = Copy(name, copy.tokens[:])

    @rule(which=picks, cut=picks, name=names)
    def fetch(self, which: int, cut: int, name: str) -> None:
        """What comes from the disk is what was computed; the invariant looks at it."""
        text = self.seen[which % len(self.seen)]
        text = text[: len(text) - cut % 4]
        before = self.cache.lookup(text, name)
        while not self.cache.fetch(text, name, seconds=cut % 2):
            before, last = self.cache.lookup(text, name), before
            assert before > last
        self.add(text, name)

    @rule(pages=st.integers(3, 20), damage=st.none() | picks, keeps=st.booleans())
    def restart(self, pages: int, damage: int | None, keeps: bool) -> None:
        """Another process, with a cache of another size; a file may have been damaged."""
        for pin in self.pins:
            self.cache.unpin(pin)
        self.pins.clear()
        self.copies.clear()
        if self.disk is not None:
            self.cache.flush()
            damage_one(Path(self.disk_folder.name), damage)
            self.disk = DiskCache(self.disk_folder.name, self.disk.max_bytes if keeps else 2000)
        self.cache = self.make(pages, self.cache.page_tokens, self.disk)

    # the rest of the engine

    def pick(self, which: int) -> int:
        sequences = list(self.copies) or [self.add([], "")]
        return sequences[which % len(sequences)]

    def make_room(self) -> None:
        if len(self.copies) == MAX_SEQUENCES:
            self.let_go(next(iter(self.copies)))

    def let_go(self, sequence: int) -> None:
        self.cache.free(sequence)
        del self.copies[sequence]

    def add(self, prompt: list[int], name: str) -> int:
        self.make_room()
        sequence = self.cache.new(prompt, name)
        self.copies[sequence] = Copy(name, prompt[: self.cache.length(sequence)])
        return sequence

    def step(self, work: dict[int, list[int]]) -> bool:
        requests = [(sequence, len(tokens)) for sequence, tokens in work.items()]
        fits = self.cache.fits(*(self.cache.needed(*request) for request in requests))
        try:
            view = self.cache.reserve(requests)
            assert fits
        except OutOfPages:
            assert not fits
            self.let_go(next(iter(self.copies)))
            return False
        self.write(view, work)
        for sequence, tokens in work.items():
            self.cache.commit(sequence, tokens)
            self.copies[sequence].tokens += tokens
            self.seen.append(self.copies[sequence].tokens[:])
        return True

    def write(self, view: View, work: dict[int, list[int]]) -> None:
        """What an executor does: write K, V and states of the new tokens, and attend."""
        whole = [(self.copies[s].tokens + new, len(self.copies[s].tokens)) for s, new in work.items()]
        for layer, spec in enumerate(self.specs):
            if isinstance(spec, RecurrentSpec):
                states = self.cache.store.states(layer).view(np.int64)[:, 0]
                assert not states[0]
                after = [advance(int(states[r]), new) for r, new in zip(view.reads, work.values(), strict=True)]
                for slot, state, new in zip(view.writes, after, work.values(), strict=True):
                    if new:
                        states[slot] = state
            elif spec is not None:
                sizes = (spec.kv_heads, spec.k_dim), (spec.kv_heads, spec.v_dim), (2, spec.k_dim)
                k, v, q = (
                    np.concatenate(
                        [rows(layer, what, *text, *sizes[what]) for text in whole] or [np.zeros((0, *sizes[what]))]
                    )
                    for what in range(3)
                )
                self.cache.append(layer, view, k, v)
                self.check_attention(layer, spec, whole, self.cache.attend(layer, view, q))

    def check_attention(self, layer: int, spec: AttentionSpec, whole: list[tuple[list[int], int]], y: Floats) -> None:
        for text, first in whole:
            own, y = y[: len(text) - first], y[len(text) - first :]
            k = rows(layer, 0, text, 0, spec.kv_heads, spec.k_dim)
            v = rows(layer, 1, text, 0, spec.kv_heads, spec.v_dim)
            q = rows(layer, 2, text, first, 2, spec.k_dim)
            np.testing.assert_allclose(own, exact(q, k, v, scale=spec.k_dim**-0.5, window=spec.window), rtol=1e-5)

    def check(self, cache: KVCache, sequence: int, copy: Copy) -> None:
        """All that a sequence has is what follows from its tokens."""
        state, size = cache.state(sequence), cache.page_tokens
        assert cache.length(sequence) == cache.committed(sequence) == len(copy.tokens)
        assert state.tokens.tolist() == copy.tokens
        for layer, spec in enumerate(self.specs):
            if isinstance(spec, RecurrentSpec):
                assert cache.store.states(layer)[state.slot].view(np.int64) == advance(0, copy.tokens)
            elif spec is not None:
                group = cache.store.group_of(layer)
                start = state.starts[group]
                assert start <= cache.layout.groups[group].first_seen(len(copy.tokens))
                for position in range(start, len(copy.tokens)):
                    page = state.tables[group][position // size]
                    for what, dim in enumerate((spec.k_dim, spec.v_dim)):
                        found = cache.store.read(layer, page, size)[what][position % size].view(np.float32)
                        wanted = rows(layer, what, copy.tokens[: position + 1], position, spec.kv_heads, dim)[0]
                        np.testing.assert_array_equal(found, wanted)

    @invariant()
    def everybody_has_what_follows_from_its_tokens(self) -> None:
        for sequence, copy in self.copies.items():
            self.check(self.cache, sequence, copy)


CacheMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestCache = CacheMachine.TestCase

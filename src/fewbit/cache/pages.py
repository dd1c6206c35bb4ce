"""Which sequence uses which page of the KV cache. There are no arrays here: `Cache` has them.

Layers are in groups with the same KV retention (groups.py). A sequence has a table of pages for each attention group; a
page has room for K and V of `page_tokens` tokens in all layers of the group. The life of a sequence:

- `new` shares the pages that hold the beginning of the prompt already.
- `extend` takes pages for new tokens. The caller makes the copies that it returns, in order, and then writes K and V.
- `commit` records that the next tokens are written in all layers. Only now can other sequences find full pages, and
  pages before a window are released. If the computation failed, nothing is committed: `truncate` drops the tokens.
- `fork`, `truncate` and `free` are possible at any time. Pages in the prefix tree stay cached after `free`.

A page is written only while a single sequence uses it and it is not in the tree; otherwise `extend` copies it first.
This holds after truncating into a page of the tree too: its old text can still be found.
A page enters the tree only while a single sequence uses it, since two might commit different tokens: commit, then fork.
If the tree has a page with the same tokens by then, `commit` puts that one in the table.

The recurrent group has slots. A step reads one and writes a fresh one, so a state never changes: forks and snapshots in
the tree are references to a slot. Slot 0 is the state of an empty sequence.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from ..errors import DataError, OutOfPages, PositionError, ShapeError, UnknownId
from ..validation import check_type, to_integer, to_size, to_tokens
from .groups import PAGE_TOKENS, LayerGroup
from .pool import OnEvict, PagePool, never_short
from .sequences import Copies, SequenceState, begin_sequence
from .space import PageSpace, usable_pages
from .stats import CacheStats, PageCounts, PrefixDivergence
from .tree import path

MAX_TOKENS = (1 << 31) - 1  # a position has 32 bits


class Pages:
    """The pages of a KV cache, and the sequences that use them, by number.

    >>> pages = Pages([LayerGroup()], [8], page_tokens=4)
    >>> a = pages.new()
    >>> pages.extend([(a, 5)])
    {}
    >>> pages.commit(a, [11, 12, 13, 14, 15])
    >>> b = pages.new([11, 12, 13, 14, 99])  # its first page is known
    >>> pages.length(b), pages.table(b)
    (4, [0])

    A call that raises an error changes nothing. Use it from one thread at a time.

    Args:
        groups: Groups of layers; a recurrent one is the last.
        totals: Number of pages of each group.
        page_tokens: Tokens of a page.
        is_short: Whether memory is short: then cached pages are evicted before fresh ones are taken.
        on_evict: Called with group, page and node of the prefix tree before a cached page is evicted.
    """

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        totals: Sequence[int],
        page_tokens: int = PAGE_TOKENS,
        is_short: Callable[[], bool] = never_short,
        on_evict: OnEvict | None = None,
    ) -> None:
        self.page_tokens = to_size(page_tokens, "page_tokens", least=1)
        self.groups = tuple(groups)
        if len(totals) != len(self.groups):
            raise ShapeError(f"totals must hold a number of pages for each of {len(self.groups)} groups: {totals}")
        if any(group.is_recurrent for group in self.groups[:-1]):
            raise ShapeError("only the last group may be recurrent")
        self.totals = tuple(
            to_size(total, "pages", least=1 + group.is_recurrent)  # the first slot is never written
            for group, total in zip(self.groups, totals, strict=True)
        )
        self.space = PageSpace(self.groups, self.totals, self.page_tokens, is_short, on_evict)
        self.wants_page_ends = self.space.is_recurrent  # a state is found again only where a commit ended with a page
        self._sequences: dict[int, SequenceState] = {}
        self._pins: dict[int, list[tuple[PagePool, int]]] = {}
        self._ids = itertools.count(1)  # never reused, so that a stale id is noticed
        self._lookups = self._hits = self._copies = 0
        self._divergence = PrefixDivergence()

    def new(self, tokens: Iterable[int] = (), namespace: str = "") -> int:
        """A new sequence, which starts with the cached full pages of a prompt; `length` tells how many tokens.

        >>> pages = Pages([LayerGroup()], [8], page_tokens=2)
        >>> pages.length(pages.new([1, 2, 3]))
        0

        Args:
            tokens: The prompt. Leave its last token out, so that there is one to compute the next from.
            namespace: Sequences of different namespaces share nothing.
        """
        prompt = to_tokens(tokens)
        check_type(namespace, str, "namespace")
        known = self.space.tree.find(namespace, prompt)
        nodes = self.space.usable(known)
        self._lookups += len(prompt) // self.page_tokens
        self._hits += len(nodes)
        if len(known) < len(prompt) // self.page_tokens and self.space.tree.goes_on(namespace, known):
            self._divergence = self._divergence.added(len(known) * self.page_tokens)
        return self._add(begin_sequence(self.space, nodes, prompt, namespace))

    def lookup(self, tokens: Iterable[int], namespace: str = "") -> int:
        """Number of tokens that `new` would find in the cache. It is not counted in `stats`."""
        prompt = to_tokens(tokens)
        check_type(namespace, str, "namespace")
        return len(self.space.find(prompt, namespace)) * self.page_tokens

    @property
    def available(self) -> tuple[int, ...]:
        """Pages, by group, that can be taken now: free, or cached and not pinned."""
        return tuple(pool.available for pool in self.space.pools)

    def needed(self, sequence: int, count: int) -> tuple[int, ...]:
        """Pages, by group, that so many new tokens of a sequence would take.

        >>> pages = Pages([LayerGroup(), LayerGroup(window=4), LayerGroup(is_recurrent=True)], [8, 8, 8], page_tokens=4)
        >>> pages.needed(pages.new(), 5)
        (2, 2, 1)
        """
        return self.state(sequence).needed(_to_count(count))

    def fits(self, *needed: Sequence[int]) -> bool:
        """Whether all these pages, as `needed` returns them, can be taken now."""
        return all(sum(pages) <= available for *pages, available in zip(*needed, self.available, strict=True))

    def extend(self, requests: Sequence[tuple[int, int]]) -> Copies:
        """Make sequences longer.

        >>> pages = Pages([LayerGroup()], [2], page_tokens=4)
        >>> a = pages.new()
        >>> copies = pages.extend([(a, 3)])
        >>> b = pages.fork(a)
        >>> pages.extend([(b, 1)])
        {0: [(0, 1)]}
        >>> pages.extend([(a, 2)])
        Traceback (most recent call last):
            ...
        fewbit.errors.OutOfPages: the KV cache is full: pages needed: 1, free or evictable: 0

        Args:
            requests: Pairs of a sequence and a number of new tokens.

        Returns:
            By group, pairs of pages (source, destination) to copy, in this order, before anything is written.

        Raises:
            OutOfPages: There is no room for all of them.
        """
        checked = [(self.state(sequence), _to_count(count)) for sequence, count in requests]
        if len(checked) > 1 and len({sequence for sequence, _ in requests}) < len(checked):
            raise DataError(f"a sequence is given twice: {', '.join(str(sequence) for sequence, _ in requests)}")
        needed = [state.needed(count) for state, count in checked]
        if any(map(any, needed)):
            self._refuse_full(needed)
        copies: Copies = {}
        for state, count in checked:
            state.grow(count, copies)
        self._copies += sum(map(len, copies.values()))
        return copies

    def commit(self, sequence: int, tokens: Iterable[int]) -> None:
        """Record the ids of tokens whose K and V are stored in all layers. `new` finds full pages of them from now on.

        >>> pages = Pages([LayerGroup()], [8], page_tokens=2)
        >>> a = pages.new()
        >>> copies = pages.extend([(a, 5)])
        >>> pages.lookup([1, 2, 3, 4, 5])
        0
        >>> pages.commit(a, [1, 2, 3, 4, 5])
        >>> pages.lookup([1, 2, 3, 4, 5])
        4

        Args:
            sequence: The sequence.
            tokens: Ids of the next tokens. They may be fewer than were reserved, unless there are recurrent layers: of
                a draft, commit what was accepted and drop the rest.
        """
        state, new = self.state(sequence), to_tokens(tokens)
        if len(new) > state.uncommitted:
            raise PositionError(f"sequence {sequence} has {state.uncommitted} tokens to commit, got {len(new)}")
        if state.fresh:
            self._commit_slots(state, sequence, len(new))
        state.tokens.extend(new)
        if (state.inserted + 1) * self.page_tokens <= len(state.tokens):
            state.insert()
        for number, group in self.space.windows:
            state.release(number, group.first_seen(len(state.tokens)) // self.page_tokens)

    def fork(self, sequence: int, length: int | None = None) -> int:
        """A new sequence with the same content, or with the first `length` tokens of it.

        Nothing is copied until one of them writes to a page that both use. Write what was reserved before a fork.
        Lengths that `truncate` refuses are refused.

        >>> pages = Pages([LayerGroup()], [8], page_tokens=2)
        >>> a = pages.new()
        >>> copies = pages.extend([(a, 6)])
        >>> pages.table(pages.fork(a)), pages.table(pages.fork(a, 3))
        ([0, 1, 2], [0, 1])
        """
        state = self.state(sequence)
        end = state.length if length is None else _to_count(length)
        if end > len(state.tokens):
            self._refuse_pending(state, sequence)
        self._refuse_lost(state, sequence, end)
        return self._add(state.copy(end))

    def can_fork(self, sequence: int, length: int) -> bool:
        """Whether `fork` accepts so many committed tokens. With windows or recurrent layers it may not."""
        state = self.state(sequence)
        return length <= len(state.tokens) and self._why_lost(state, length) is None

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first tokens of a sequence.

        >>> pages = Pages([LayerGroup()], [8], page_tokens=2)
        >>> a = pages.new()
        >>> copies = pages.extend([(a, 8)])
        >>> pages.truncate(a, 3)
        >>> pages.length(a), pages.table(a)
        (3, [0, 1])

        Args:
            sequence: The sequence.
            length: Number of tokens to keep. With a window, those it would see must still be there; with recurrent
                layers, there must be a state: at 0, at some page ends and after the committed tokens.
        """
        state, length = self.state(sequence), _to_count(length)
        if length == state.length:
            return
        self._refuse_lost(state, sequence, length)
        state.cut(length)

    def free(self, sequence: int) -> None:
        """Free a sequence. What it committed stays cached as long as there is room.

        >>> pages = Pages([LayerGroup()], [8])
        >>> a = pages.new()
        >>> pages.free(a)
        >>> pages.free(a)
        Traceback (most recent call last):
            ...
        fewbit.errors.UnknownId: there is no sequence 1
        """
        self.state(sequence).free()
        del self._sequences[sequence]

    def restore(
        self, tokens: Iterable[int], length: int, starts: Sequence[int], namespace: str = "", is_counted: bool = True
    ) -> int:
        """A new sequence for content that was saved. The caller writes and commits what is not cached.

        Args:
            tokens: Those committed.
            length: Number of tokens, those not committed included.
            starts: The first token that was saved, by attention group.
            namespace: As for `new`.
            is_counted: Whether `stats` counts the lookup.
        """
        counts = self._lookups, self._hits, self._divergence
        sequence = self.new(tokens, namespace)
        if not is_counted:
            self._lookups, self._hits, self._divergence = counts
        state = self.state(sequence)
        for number, start in enumerate(starts):
            if start > state.length:
                state.skip(number, start)
        try:
            self.extend([(sequence, length - state.length)])
        except BaseException:
            self.free(sequence)
            raise
        return sequence

    def pin(self, sequence: int) -> int:
        """Protect the committed pages of a sequence from eviction, even after `free`. Returns a number for `unpin`.

        >>> pages = Pages([LayerGroup()], [2], page_tokens=2)
        >>> a = pages.new()
        >>> copies = pages.extend([(a, 2)])
        >>> pages.commit(a, [1, 2])
        >>> pin = pages.pin(a)
        >>> pages.free(a)
        >>> pages.available
        (1,)
        >>> pages.unpin(pin)
        >>> pages.available
        (2,)
        """
        state = self.state(sequence)
        nodes = path(state.node, state.inserted)
        pinned = self.space.kept(nodes[: usable_pages(self.groups, nodes, self.page_tokens)])
        for pool, page in pinned:
            pool.pin(page)
        pin = next(self._ids)
        self._pins[pin] = pinned
        return pin

    def unpin(self, pin: int) -> None:
        """Allow pages that `pin` protected to be evicted again."""
        pinned = self._pins.pop(to_integer(pin, "a pin"), None)
        if pinned is None:
            raise UnknownId(f"there is no pin {pin}")
        for pool, page in reversed(pinned):
            pool.unpin(page)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._sequences

    def state(self, sequence: int) -> SequenceState:
        """The tables and tokens of a sequence, to be read."""
        number = sequence if type(sequence) is int else to_integer(sequence, "a sequence")
        state = self._sequences.get(number)
        if state is None:
            raise UnknownId(f"there is no sequence {sequence}")
        return state

    def length(self, sequence: int) -> int:
        """The number of tokens of a sequence, those reserved included."""
        return self.state(sequence).length

    def committed(self, sequence: int) -> int:
        """The number of tokens of a sequence that were committed."""
        return len(self.state(sequence).tokens)

    def table(self, sequence: int, group: int = 0) -> list[int]:
        """The pages of a sequence: position p is in slot `p % page_tokens` of page `table[p // page_tokens]`."""
        return self.state(sequence).tables[group].tolist()

    def stats(self) -> CacheStats:
        """Numbers of pages and events, and sizes: `nbytes`, `f32_bytes` and `savings`. It looks at every page."""
        counts = tuple(pool.counts() for pool in self.space.pools)
        filled = [(each.used + each.cached, group) for each, group in zip(counts, self.groups, strict=True)]
        return CacheStats(
            **{name: sum(getattr(each, name) for each in counts) for name in PageCounts.__slots__},
            lookups=self._lookups,
            hits=self._hits,
            copies=self._copies,
            nbytes=sum(pages * group.page_bytes for pages, group in filled),
            f32_bytes=sum(pages * group.page_f32_bytes for pages, group in filled),
            groups=counts,
            divergence=self._divergence,
        )

    def _add(self, state: SequenceState) -> int:
        sequence = next(self._ids)
        self._sequences[sequence] = state
        return sequence

    def _commit_slots(self, state: SequenceState, sequence: int, count: int) -> None:
        """Go on to the recurrent state after so many new tokens: those of whole steps."""
        ends = [end - len(state.tokens) for end, _ in state.fresh]
        if count not in ends:
            raise PositionError(
                f"sequence {sequence} has a recurrent state after {' and '.join(map(str, ends))} new tokens, it "
                f"cannot be committed after {count}: roll back and run these alone"
            )
        for _ in range(ends.index(count) + 1):
            self.space.pools[-1].decref(state.slot)
            state.slot = state.fresh.pop(0)[1]

    def _refuse_full(self, needed: Sequence[Sequence[int]]) -> None:
        for pool, pages in zip(self.space.pools, zip(*needed, strict=True), strict=True):
            if sum(pages) > pool.available:
                raise OutOfPages(sum(pages), pool.available)

    def _refuse_pending(self, state: SequenceState, sequence: int) -> None:
        """Refuse while a step is not committed that the recurrent state does not include."""
        if state.fresh:
            raise PositionError(
                f"sequence {sequence} has {state.uncommitted} new tokens, which its recurrent state lacks: commit "
                "them, or roll back"
            )

    def _refuse_lost(self, state: SequenceState, sequence: int, length: int) -> None:
        """Refuse a length that a sequence cannot be cut to."""
        reason = self._why_lost(state, length)
        if reason is not None:
            raise PositionError(f"sequence {sequence} cannot be cut to {length} tokens: {reason}")

    def _why_lost(self, state: SequenceState, length: int) -> str | None:
        """Why a sequence cannot be cut to its first `length` tokens; None if it can."""
        if length > state.length:
            return f"it has {state.length}"
        for number, group in self.space.windows:
            first, start = group.first_seen(length), state.starts[number]
            if first < start and first // self.page_tokens < self.space.pages(length):
                return f"layers with a window of {group.window} have dropped the tokens before {start}"
        if self.space.is_recurrent and state.find_slot(length) is None:
            return f"there is no recurrent state after so many; there is one after {len(state.tokens)}, and after 0"
        return None


def _to_count(tokens: int) -> int:
    return to_size(tokens, "a number of tokens", 0, MAX_TOKENS, PositionError)

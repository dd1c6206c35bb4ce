"""Who owns which page of the KV cache. There are no arrays here: the owner of the arrays does what this file decides.

Layers are in groups that keep alike (groups.py). A sequence has a table of pages for each attention group; a page has
room for K and V of `page_tokens` tokens in all layers of the group. Its life:

- `new`: the pages that hold the beginning of the prompt already are shared, not computed again.
- `reserve`: room for more tokens. The owner makes the copies, in their order, and then writes the new tokens.
- `commit`: the owner says that the next tokens are in place in all layers. Only now can a full page be found by others,
  and pages before a window are let go. If the computation failed, nothing was committed: `truncate` takes it back.
- `fork`, `truncate`, `free`: at any time. Pages in the prefix tree stay cached after `free` until room is needed.

A page is written only while one sequence alone uses it and it is not in the tree; otherwise `reserve` copies it first.
That is also so after truncating into a page of the tree: the old text can still be found, and nothing is lost.
A page goes into the tree while one sequence alone uses it, since two might commit different tokens: commit, then fork.
If the tree has a page with the same tokens by then, `commit` puts that one in the table: look at it afterwards.

The recurrent group has slots. A step reads one and writes a fresh one, so that a state never changes: a fork and a
snapshot in the tree are references to the slot. Slot 0 is the state of an empty sequence.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..errors import DataError, DtypeError, OutOfPages, PositionError, ShapeError, UnknownId
from ..validation import to_integer, to_size
from .groups import PAGE_TOKENS, Group
from .pool import OnEvict, Pool, plenty
from .sequences import SequenceState
from .stats import PageCounts, Stats
from .tables import Copies, Tables
from .tree import Node
from .validation import to_count, to_tokens


class Pages:
    """The pages of a KV cache, and the sequences that use them. Not for several threads at once.

    >>> pages = Pages([Group()], [8], page_tokens=4)
    >>> a = pages.new()
    >>> pages.reserve([(a, 5)])
    {}
    >>> pages.commit(a, [11, 12, 13, 14, 15])
    >>> b = pages.new([11, 12, 13, 14, 99])  # its first page is known
    >>> pages.length(b), pages.table(b)
    (4, [0])
    """

    def __init__(
        self,
        groups: Sequence[Group],
        totals: Sequence[int],
        page_tokens: int = PAGE_TOKENS,
        is_short: Callable[[], bool] = plenty,
        on_evict: OnEvict | None = None,
    ) -> None:
        self.page_tokens = to_size(page_tokens, "page_tokens", least=1)
        self.groups = tuple(groups)
        if any(group.is_recurrent for group in self.groups[:-1]) or len(totals) != len(self.groups):
            raise ShapeError("a cache has a number of pages for each group, and one recurrent group at most, the last")
        self.totals = tuple(
            to_size(total, "pages", least=1 + group.is_recurrent)  # the first slot is never written
            for group, total in zip(self.groups, totals, strict=True)
        )
        self._tables = Tables(self.groups, self.totals, self.page_tokens, is_short, on_evict)
        self._pools = self._tables.pools
        self.is_recurrent = self._tables.is_recurrent
        self.tables = len(self.groups) - self.is_recurrent  # of each sequence, one for each attention group
        self._sequences: dict[int, SequenceState] = {}
        self._pins: dict[int, list[tuple[Pool, int]]] = {}
        self._ids = itertools.count(1)  # never given out twice, so that a stale id is noticed
        self._lookups = self._hits = 0

    def new(self, tokens: Iterable[int] = (), namespace: str = "") -> int:
        """A new sequence that begins with the cached full pages of a prompt; `length` says how many tokens that is.

        The rest of the prompt is for `reserve`. If a token is to follow the prompt, one token at least must be
        computed: give all but the last. Sequences of different namespaces share nothing.

        >>> pages = Pages([Group()], [8], page_tokens=2)
        >>> pages.length(pages.new([1, 2, 3]))
        0
        """
        prompt = to_tokens(tokens)
        nodes = self._tables.find(prompt, _checked(namespace))
        self._lookups += len(prompt) // self.page_tokens
        self._hits += len(nodes)
        return self._add(self._tables.begin(nodes, prompt, namespace))

    def lookup(self, tokens: Iterable[int], namespace: str = "") -> int:
        """How many tokens `new` would find. This changes nothing, and is not counted."""
        return len(self._tables.find(to_tokens(tokens), _checked(namespace))) * self.page_tokens

    def needed(self, sequence: int, count: int) -> tuple[int, ...]:
        """Pages, by group, that `reserve` would take for so many tokens.

        >>> pages = Pages([Group(), Group(window=4), Group(is_recurrent=True)], [8, 8, 8], page_tokens=4)
        >>> pages.needed(pages.new(), 5)
        (2, 2, 1)
        """
        return self._tables.needed(self._get(sequence), to_count(count))

    @property
    def available(self) -> tuple[int, ...]:
        """Pages, by group, that could be had now: free, or cached and not pinned."""
        return tuple(pool.available for pool in self._pools)

    def reserve(self, requests: Sequence[tuple[int, int]]) -> Copies:
        """Make sequences longer, each by a number of tokens: all of them, or OutOfPages and everything as it was.

        Gives the copies to make, by group and in order, before anything is written.

        >>> pages = Pages([Group()], [2], page_tokens=4)
        >>> a = pages.new()
        >>> copies = pages.reserve([(a, 3)])
        >>> b = pages.fork(a)
        >>> pages.reserve([(b, 1)])
        {0: [(0, 1)]}
        >>> pages.reserve([(a, 2)])
        Traceback (most recent call last):
            ...
        fewbit.errors.OutOfPages: the KV cache is full: pages needed: 1, free or evictable: 0
        """
        asked = [(self._get(sequence), to_count(count)) for sequence, count in requests]
        if len(asked) > 1:
            self._refuse_twice([sequence for sequence, _ in requests])
        needed = [self._tables.needed(state, count) for state, count in asked]
        if any(map(any, needed)):
            self._refuse_full(needed)
        copies: Copies = {}
        for state, count in asked:
            self._tables.grow(state, count, copies)
        return copies

    def commit(self, sequence: int, tokens: Iterable[int]) -> None:
        """Say that the next tokens are written, in all layers; pages that are full now can be found.

        They may be fewer than were reserved: of a draft, commit what was accepted and truncate the rest. Not so with
        recurrent layers, whose state holds all of them. Who knows no tokens commits nothing and shares by `fork`.

        >>> pages = Pages([Group()], [8], page_tokens=2)
        >>> a = pages.new()
        >>> copies = pages.reserve([(a, 5)])
        >>> pages.lookup([1, 2, 3, 4, 5])
        0
        >>> pages.commit(a, [1, 2, 3, 4, 5])
        >>> pages.lookup([1, 2, 3, 4, 5])
        4
        """
        state, new = self._get(sequence), to_tokens(tokens)
        if len(new) > state.length - len(state.tokens):
            raise PositionError(f"sequence {sequence} has {state.uncommitted} tokens to commit, got {len(new)}")
        if state.fresh:
            self._commit_states(state, sequence, len(new))
        state.tokens.extend(new)
        if (state.inserted + 1) * self.page_tokens <= len(state.tokens):
            self._tables.insert(state)
        for number, group in self._tables.windows:
            self._tables.release(state, number, group.first_seen(len(state.tokens)) // self.page_tokens)

    def fork(self, sequence: int, length: int | None = None) -> int:
        """A new sequence with the same content, or its first `length` tokens, which need not fill their last page.

        Pages are shared; the first that writes to one gets a copy. Write what was reserved before: a copy holds what
        is in the page when it is made. Lengths that `truncate` refuses are refused.

        >>> pages = Pages([Group()], [8], page_tokens=2)
        >>> a = pages.new()
        >>> copies = pages.reserve([(a, 6)])
        >>> pages.table(pages.fork(a)), pages.table(pages.fork(a, 3))
        ([0, 1, 2], [0, 1])
        """
        state = self._get(sequence)
        end = state.length if length is None else to_count(length)
        if end > len(state.tokens):
            self._refuse_pending(state, sequence)
        self._refuse_lost(state, sequence, end)
        return self._add(self._tables.copy(state, end))

    def can_fork(self, sequence: int, length: int) -> bool:
        """Whether `fork` takes this length: with a window or recurrent layers not all of them can be gone back to."""
        state = self._get(sequence)
        return length <= len(state.tokens) and self._lost(state, length) is None

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens of a sequence.

        Refused where the tokens that a window would see then are gone, and where there is no recurrent state after so
        many tokens: there is one after the committed tokens, at some page ends and at 0.

        >>> pages = Pages([Group()], [8], page_tokens=2)
        >>> a = pages.new()
        >>> copies = pages.reserve([(a, 8)])
        >>> pages.truncate(a, 3)
        >>> pages.length(a), pages.table(a)
        (3, [0, 1])
        """
        state, length = self._get(sequence), to_count(length)
        if length == state.length:
            return
        self._refuse_lost(state, sequence, length)
        self._tables.cut(state, length)

    def free(self, sequence: int) -> None:
        """Let a sequence go. What it committed stays cached as long as there is room.

        >>> pages = Pages([Group()], [8])
        >>> a = pages.new()
        >>> pages.free(a)
        >>> pages.free(a)
        Traceback (most recent call last):
            ...
        fewbit.errors.UnknownId: there is no sequence 1
        """
        self._tables.free(self._get(sequence))
        del self._sequences[sequence]

    def restore(
        self,
        tokens: Iterable[int],
        length: int,
        starts: Sequence[int],
        namespace: str = "",
        *,
        is_counted: bool = True,
    ) -> int:
        """A new sequence of `length` tokens, the first of which are known, that has no tokens before `starts` (by
        attention group): as far as it is not found, it is for the owner to write."""
        counts = self._lookups, self._hits
        sequence = self.new(tokens, namespace)
        if not is_counted:
            self._lookups, self._hits = counts
        state = self._get(sequence)
        for number, start in enumerate(starts):
            if start > state.length:
                self._tables.skip(state, number, start)
        try:
            self.reserve([(sequence, length - state.length)])
        except BaseException:
            self.free(sequence)
            raise
        return sequence

    def pin(self, sequence: int) -> int:
        """Keep what a prompt with the committed tokens would find, even after `free`, until `unpin` of this number.

        >>> pages = Pages([Group()], [2], page_tokens=2)
        >>> a = pages.new()
        >>> copies = pages.reserve([(a, 2)])
        >>> pages.commit(a, [1, 2])
        >>> pin = pages.pin(a)
        >>> pages.free(a)
        >>> pages.available
        (1,)
        >>> pages.unpin(pin)
        >>> pages.available
        (2,)
        """
        pinned = self._tables.findable(self._get(sequence))
        for pool, page in pinned:
            pool.pin(page)
        pin = next(self._ids)
        self._pins[pin] = pinned
        return pin

    def unpin(self, pin: int) -> None:
        """Let pages go that `pin` kept.

        >>> Pages([Group()], [8]).unpin(1)
        Traceback (most recent call last):
            ...
        fewbit.errors.UnknownId: there is no pin 1
        """
        pinned = self._pins.pop(to_integer(pin, "a pin"), None)
        if pinned is None:
            raise UnknownId(f"there is no pin {pin}")
        for pool, page in reversed(pinned):
            pool.unpin(page)

    def nodes(self) -> Iterator[Node]:
        """The nodes of the prefix tree, those above before those below."""
        return self._tables.tree.nodes()

    def path(self, tokens: array[int], namespace: str) -> list[Node]:
        """The nodes of the full pages of a text, also of those that a sequence cannot begin with."""
        return self._tables.tree.find(namespace, tokens)

    def key(self, tokens: array[int], number: int) -> bytes:
        """What the tree knows a page of tokens by."""
        return self._tables.tree.key(tokens, number)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._sequences

    def length(self, sequence: int) -> int:
        """The number of tokens of a sequence."""
        return self._get(sequence).length

    def committed(self, sequence: int) -> int:
        """The number of tokens of a sequence that were committed."""
        return len(self._get(sequence).tokens)

    def state(self, sequence: int) -> SequenceState:
        """A sequence, to be read."""
        return self._get(sequence)

    def to_save(self, sequence: int) -> SequenceState:
        """A sequence, to be read, unless a step is under way that its recurrent state lacks."""
        state = self._get(sequence)
        self._refuse_pending(state, sequence)
        return state

    def table(self, sequence: int, group: int = 0) -> list[int]:
        """The pages of a sequence: position p is in slot `p % page_tokens` of page `table[p // page_tokens]`."""
        return self._get(sequence).tables[group].tolist()

    def stats(self) -> Stats:
        """Counts of pages and events; it looks at each page once."""
        counts = tuple(pool.counts() for pool in self._pools)
        filled = [(each.used + each.cached, group) for each, group in zip(counts, self.groups, strict=True)]
        return Stats(
            **{name: sum(getattr(each, name) for each in counts) for name in PageCounts.__slots__},
            lookups=self._lookups,
            hits=self._hits,
            copies=self._tables.copies,
            nbytes=sum(pages * group.page_bytes for pages, group in filled),
            f32_bytes=sum(pages * group.page_f32_bytes for pages, group in filled),
            groups=counts,
        )

    def _commit_states(self, state: SequenceState, sequence: int, count: int) -> None:
        """Go on to the recurrent state after so many new tokens: those of whole steps."""
        ends = [end - len(state.tokens) for end, _ in state.fresh]
        if count not in ends:
            raise PositionError(
                f"sequence {sequence} has a recurrent state after {' and '.join(map(str, ends))} new tokens, it "
                f"cannot be committed after {count}: roll back and run these alone"
            )
        for _ in range(ends.index(count) + 1):
            self._pools[-1].decref(state.slot)
            state.slot = state.fresh.pop(0)[1]

    def _get(self, sequence: int) -> SequenceState:
        number = sequence if type(sequence) is int else to_integer(sequence, "a sequence")
        state = self._sequences.get(number)
        if state is None:
            raise UnknownId(f"there is no sequence {sequence}")
        return state

    def _add(self, state: SequenceState) -> int:
        sequence = next(self._ids)
        self._sequences[sequence] = state
        return sequence

    def _refuse_twice(self, sequences: Sequence[int]) -> None:
        if len(set(sequences)) < len(sequences):
            raise DataError(f"a sequence is given twice: {', '.join(map(str, sequences))}")

    def _refuse_full(self, needed: Sequence[Sequence[int]]) -> None:
        for pool, pages in zip(self._pools, zip(*needed, strict=True), strict=True):
            if sum(pages) > pool.available:
                raise OutOfPages(sum(pages), pool.available)

    def _refuse_pending(self, state: SequenceState, sequence: int) -> None:
        if state.fresh:
            raise PositionError(
                f"sequence {sequence} has {state.uncommitted} new tokens, which its recurrent state lacks: commit "
                "them, or roll back"
            )

    def _refuse_lost(self, state: SequenceState, sequence: int, length: int) -> None:
        """A length that cannot be gone back to."""
        reason = self._lost(state, length)
        if reason is not None:
            raise PositionError(f"sequence {sequence} cannot be cut to {length} tokens: {reason}")

    def _lost(self, state: SequenceState, length: int) -> str | None:
        """Why a sequence has not all that its first `length` tokens need; None if it has."""
        if length > state.length:
            return f"it has {state.length}"
        for number, group in self._tables.windows:
            first = group.first_seen(length)
            if first < state.starts[number] and first // self.page_tokens < self._tables.pages(length):
                before = state.starts[number]
                return f"layers with a window of {group.window} have let go of the tokens before {before}"
        if self.is_recurrent and self._tables.slot_at(state, length) is None:
            return f"there is no recurrent state after so many; there is one after {len(state.tokens)}, and after 0"
        return None


def _checked(namespace: str) -> str:
    if not isinstance(namespace, str):
        raise DtypeError(f"a namespace is a str, not {type(namespace).__name__}")
    return namespace

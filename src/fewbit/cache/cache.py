"""The KV cache as an engine uses it: sequences over a store, with a view of each step for the executor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ..errors import DtypeError
from .pages import Pages
from .pool import plenty
from .stats import Stats
from .store import KVStore
from .validation import to_path, to_requests, to_tokens
from .view import View, make_view

if TYPE_CHECKING:
    from .disk import DiskCache
    from .spill import Spill


class Cache:
    """Sequences whose K, V and states lie in a store.

    A step reserves room for new tokens, runs, and commits:

    >>> from fewbit.cache.layout import make_layout
    >>> from fewbit.cache.store import HostStore
    >>> from fewbit.ops.specs import AttentionSpec
    >>> cache = Cache(HostStore(make_layout([AttentionSpec(kv_heads=2, k_dim=64, v_dim=64)]), pages=[8]))
    >>> a = cache.new()
    >>> view = cache.reserve([(a, 40)])
    >>> view.q_starts.tolist(), view.lengths.tolist(), view.tables[0].tolist()
    ([0, 40], [40], [0, 1])
    >>> cache.commit(a, range(40))
    >>> cache.lookup(range(40))
    32

    `fingerprint` says which model it is for: saved sequences carry it. While `is_short` says that memory is short,
    what is cached is evicted before memory is used that was never written. Pages of long prompts that are evicted go to
    `disk`, if there is one; `fetch` brings them back.

    What is refused leaves everything as it was. Not for several threads at once.
    """

    def __init__(
        self,
        store: KVStore,
        fingerprint: str = "",
        is_short: Callable[[], bool] = plenty,
        disk: DiskCache | None = None,
    ) -> None:
        self.store = store
        self.fingerprint = fingerprint
        self.layout = store.layout
        self.page_tokens = store.layout.page_tokens
        self.disk = disk
        self._spill = _make_spill(disk, store, fingerprint)
        on_evict = None if self._spill is None else self._spill.write
        self._pages = Pages(store.layout.groups, store.pages, self.page_tokens, is_short, on_evict)

    @property
    def nbytes(self) -> int:
        """Bytes that are reserved; `stats().nbytes` of them hold something."""
        return self.store.nbytes

    @property
    def max_length(self) -> int:
        """The tokens of the longest sequence that there is room for."""
        sizes = zip(self.layout.groups, self.store.pages, strict=True)
        return min((pages * self.page_tokens for group, pages in sizes if group.keeps_all), default=sys.maxsize)

    @property
    def wants_page_ends(self) -> bool:
        """Whether prompts are found again only where a commit ended with a page: there are recurrent layers."""
        return self._pages.is_recurrent

    @property
    def available(self) -> tuple[int, ...]:
        """Pages, by group, that could be had now: free, or cached and not pinned."""
        return self._pages.available

    def needed(self, sequence: int, count: int) -> tuple[int, ...]:
        """Pages, by group, that `reserve` would take for so many more tokens of a sequence."""
        return self._pages.needed(sequence, count)

    def fits(self, *needed: Sequence[int]) -> bool:
        """Whether all these pages could be had now."""
        return all(sum(pages) <= available for *pages, available in zip(*needed, self.available, strict=True))

    def new(self, tokens: Iterable[int] = (), namespace: str = "") -> int:
        """A new sequence. It begins with the full pages of a prompt that are known; `length` says how many tokens.

        To have something to compute the next token from, give all tokens of the prompt but the last. Sequences of
        different namespaces share nothing.
        """
        return self._pages.new(tokens, namespace)

    def lookup(self, tokens: Iterable[int], namespace: str = "") -> int:
        """How many tokens `new` would find."""
        return self._pages.lookup(tokens, namespace)

    def fetch(self, tokens: Iterable[int], namespace: str = "", seconds: float = 1.0) -> bool:
        """Bring back what the disk has of a prompt, so that `new` finds it; it takes about so long at most.

        False: there may be more of it on the disk; call again.
        """
        if self._spill is None:
            return True
        return self._spill.fetch(self._pages, to_tokens(tokens), namespace, seconds)

    def flush(self) -> None:
        """Write all long prompts that `new` would find to the disk, and wait until they are there."""
        if self._spill is not None:
            self._spill.flush(self._pages)

    def length(self, sequence: int) -> int:
        """The number of tokens of a sequence, those reserved included."""
        return self._pages.length(sequence)

    def committed(self, sequence: int) -> int:
        """The number of tokens of a sequence that were committed."""
        return self._pages.committed(sequence)

    def reserve(self, requests: Iterable[tuple[int, int]]) -> View:
        """Room for a number of new tokens of each sequence: for all of them, or OutOfPages and everything as it was.

        A page that others can see is copied before it is written.
        """
        requests = to_requests(requests)
        for group, pairs in self._pages.reserve(requests).items():
            self.store.copy(group, pairs)
        return make_view(self._pages, requests)

    def commit(self, sequence: int, tokens: Iterable[int]) -> None:
        """Say which the next tokens are: they are in the store, in all layers. Full pages can be found by `new` now.

        They may be fewer than were reserved: of a draft commit what was accepted and roll back. Not so with recurrent
        layers. What is never committed is shared by `fork` alone.
        """
        self._pages.commit(sequence, tokens)

    def rollback(self, view: View) -> None:
        """Take back what was reserved with this view and not committed; sequences may have been freed since."""
        if not isinstance(view, View):
            raise DtypeError(f"a view is what `reserve` gives, not {type(view).__name__}")
        for sequence, before in zip(view.sequences, view.before.tolist(), strict=True):
            if sequence in self._pages:
                length = max(before, self.committed(sequence))
                self.truncate(sequence, min(length, self.length(sequence)))

    def fork(self, sequence: int, length: int | None = None) -> int:
        """A new sequence with the same content, or with the first `length` tokens of it.

        Nothing is copied until one of them writes to a page that both use. Lengths that `truncate` refuses are refused.
        """
        return self._pages.fork(sequence, length)

    def can_fork(self, sequence: int, length: int) -> bool:
        """Whether `fork` takes so many committed tokens."""
        return self._pages.can_fork(sequence, length)

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens of a sequence.

        Refused where the tokens that a window would see then are gone, and where there is no recurrent state after so
        many tokens: there is one after the committed tokens, at some page ends and at 0.
        """
        self._pages.truncate(sequence, length)

    def free(self, sequence: int) -> None:
        """Let a sequence go. What it committed stays cached as long as there is room."""
        self._pages.free(sequence)

    def pin(self, sequence: int) -> int:
        """Keep what `new` would find of the tokens of a sequence, even after `free`, until `unpin` of this number."""
        return self._pages.pin(sequence)

    def unpin(self, pin: int) -> None:
        """Let pages go that `pin` kept."""
        self._pages.unpin(pin)

    def stats(self) -> Stats:
        """Counts of pages and events, and bytes: `nbytes`, `f32_bytes` and `savings`."""
        return self._pages.stats()

    def save(self, sequence: int, path: str | os.PathLike[str], *, fingerprint: str | None = None) -> None:
        """Write a sequence to a file, which appears under its name when it is complete.

        A fingerprint says which model wrote it, that of this cache unless given: `load` with another one is refused.
        """
        from .save import write_saved

        write_saved(to_path(path), self.store, self._pages.to_save(sequence), self._own(fingerprint))

    def load(self, path: str | os.PathLike[str], namespace: str = "", *, fingerprint: str | None = None) -> int:
        """A new sequence from a file of `save`, by a cache with the same layout; its pages may have another size.

        The file is checked whole before anything is changed. Its tokens are committed, and so found by `new`: whoever
        wrote the file decides what others read, so load what you trust.
        """
        from .save import open_saved

        with open_saved(to_path(path), self.layout, self._own(fingerprint)) as saved:
            sequence = self._pages.restore(saved.tokens, saved.length, saved.starts, namespace)
            try:
                state = self._pages.state(sequence)
                known = len(state.tokens)
                saved.read(self.store, state, known)
            except BaseException:
                self._pages.free(sequence)
                raise
        self._pages.commit(sequence, saved.tokens[known:])
        return sequence

    def _own(self, fingerprint: str | None) -> str:
        if fingerprint is None:
            return self.fingerprint
        if not isinstance(fingerprint, str):
            raise DtypeError(f"a fingerprint is a str, not {type(fingerprint).__name__}")
        return fingerprint


def _make_spill(disk: DiskCache | None, store: KVStore, fingerprint: str) -> Spill | None:
    if disk is None:
        return None
    from .spill import Spill

    return Spill(disk, store, fingerprint)

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
        """A new sequence, which starts with the cached full pages of a prompt; `length` tells how many tokens.

        Args:
            tokens: The prompt. Leave its last token out, so that there is one to compute the next from.
            namespace: Sequences of different namespaces share nothing.
        """
        return self._pages.new(tokens, namespace)

    def lookup(self, tokens: Iterable[int], namespace: str = "") -> int:
        """Number of tokens that `new` would find in the cache."""
        return self._pages.lookup(tokens, namespace)

    def fetch(self, tokens: Iterable[int], namespace: str = "", seconds: float = 1.0) -> bool:
        """Read what the disk has of a prompt back into the cache, so that `new` finds it.

        Args:
            tokens: The prompt.
            namespace: As for `new`.
            seconds: Time limit, about.

        Returns:
            False if the disk may have more of it: call again.
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
        """Reserve room for new tokens. A page that other sequences share is copied first.

        Args:
            requests: Pairs of a sequence and a number of new tokens.

        Returns:
            The step, for `append` and `attend`.

        Raises:
            OutOfPages: There is no room for all of them. Nothing was reserved.
        """
        requests = to_requests(requests)
        for group, pairs in self._pages.reserve(requests).items():
            self.store.copy(group, pairs)
        return make_view(self._pages, requests)

    def commit(self, sequence: int, tokens: Iterable[int]) -> None:
        """Record the ids of tokens whose K and V are stored in all layers. `new` finds full pages of them from now on.

        Args:
            sequence: The sequence.
            tokens: Ids of the next tokens. They may be fewer than were reserved, unless there are recurrent layers: of
                a draft, commit what was accepted and `rollback` the rest.
        """
        self._pages.commit(sequence, tokens)

    def rollback(self, view: View) -> None:
        """Undo what was reserved for a step and not committed. Its sequences may have been freed since."""
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
        """Keep the first tokens of a sequence.

        Args:
            sequence: The sequence.
            length: Number of tokens to keep. With a window, those it would see must still be there; with recurrent
                layers, there must be a state: at 0, at some page ends and after the committed tokens.
        """
        self._pages.truncate(sequence, length)

    def free(self, sequence: int) -> None:
        """Free a sequence. What it committed stays cached as long as there is room."""
        self._pages.free(sequence)

    def pin(self, sequence: int) -> int:
        """Protect the committed pages of a sequence from eviction, even after `free`. Returns a number for `unpin`."""
        return self._pages.pin(sequence)

    def unpin(self, pin: int) -> None:
        """Allow pages to be evicted again that `pin` protected."""
        self._pages.unpin(pin)

    def stats(self) -> Stats:
        """Numbers of pages and events, and sizes: `nbytes`, `f32_bytes` and `savings`."""
        return self._pages.stats()

    def save(self, sequence: int, path: str | os.PathLike[str], *, fingerprint: str | None = None) -> None:
        """Write a sequence to a file, which appears under its name when it is complete.

        Args:
            sequence: The sequence.
            path: The file.
            fingerprint: Identifies the model; `load` requires the same. Defaults to that of this cache.
        """
        from .save import write_saved

        write_saved(to_path(path), self.store, self._pages.to_save(sequence), self._own(fingerprint))

    def load(self, path: str | os.PathLike[str], namespace: str = "", *, fingerprint: str | None = None) -> int:
        """A new sequence from a file that `save` wrote. The file is checked before anything is changed.

        The tokens are committed and can be found by `new`, so load only files that you trust.

        Args:
            path: The file, written by a cache with the same layout. Its page size may differ.
            namespace: As for `new`.
            fingerprint: Must be the one that it was saved with. Defaults to that of this cache.
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

"""The KV cache as an engine uses it: sequences over a store, with a view of each step for the executor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..errors import DtypeError
from ..validation import check_type, to_path, to_tokens
from .pages import Pages
from .pool import never_short
from .store import KVStore
from .view import View, make_view

if TYPE_CHECKING:
    from .disk import DiskCache
    from .spill import DiskSpill


class Cache(Pages):
    """Sequences whose K, V and states are in a store.

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

    A call that raises an error changes nothing. Use it from one thread at a time.

    Args:
        store: Memory for K, V and states.
        fingerprint: Identifies the model. It is saved with sequences.
        is_short: Whether memory is short: then cached pages are evicted before memory is used that was never written.
        disk: Where evicted pages of long prompts go; `fetch` brings them back.
    """

    def __init__(
        self,
        store: KVStore,
        fingerprint: str = "",
        is_short: Callable[[], bool] = never_short,
        disk: DiskCache | None = None,
    ) -> None:
        self.store = store
        self.layout = store.layout
        self.fingerprint = fingerprint
        self.disk = disk
        self._spill = _make_spill(disk, store, fingerprint)
        on_evict = None if self._spill is None else self._spill.write
        super().__init__(store.layout.groups, store.pages, store.layout.page_tokens, is_short, on_evict)

    @property
    def nbytes(self) -> int:
        """Bytes that are reserved; `stats().nbytes` of them hold something."""
        return self.store.nbytes

    @property
    def max_length(self) -> int:
        """Tokens of the longest sequence that there is room for."""
        sizes = zip(self.groups, self.totals, strict=True)
        return min((pages * self.page_tokens for group, pages in sizes if group.keeps_all), default=sys.maxsize)

    def fetch(self, tokens: Iterable[int], namespace: str = "", seconds: float = 1.0) -> bool:
        """Read what the disk has of a prompt back into the cache, so that `new` finds it.

        Args:
            tokens: The prompt.
            namespace: As for `new`.
            seconds: Time limit, about.

        Returns:
            False if the disk may have more of it: call again.
        """
        return self._spill is None or self._spill.fetch(self, to_tokens(tokens), namespace, seconds)

    def flush(self) -> None:
        """Write all long prompts that `new` would find to the disk, and wait until they are there."""
        if self._spill is not None:
            self._spill.flush(self)

    def reserve(self, requests: Iterable[tuple[int, int]]) -> View:
        """Reserve room for new tokens. A page that other sequences share is copied first.

        Args:
            requests: Pairs of a sequence and a number of new tokens.

        Returns:
            The step, for `append` and `attend`.

        Raises:
            OutOfPages: There is no room for all of them. Nothing was reserved.
        """
        pairs = to_requests(requests)
        for group, copies in self.extend(pairs).items():
            self.store.copy(group, copies)
        return make_view(self, pairs)

    def rollback(self, view: View) -> None:
        """Undo what was reserved for a step and not committed. Its sequences may have been freed since."""
        check_type(view, View, "view")
        for sequence, before in zip(view.sequences, view.before.tolist(), strict=True):
            if sequence in self:
                length = max(before, self.committed(sequence))
                self.truncate(sequence, min(length, self.length(sequence)))

    def save(self, sequence: int, path: str | os.PathLike[str], *, fingerprint: str | None = None) -> None:
        """Write a sequence to a file, which appears under its name when it is complete.

        Args:
            sequence: The sequence.
            path: The file.
            fingerprint: Identifies the model; `load` requires the same. Defaults to that of this cache.
        """
        from .save import write_saved

        file = to_path(path)
        state = self.state(sequence)
        self._refuse_pending(state, sequence)
        write_saved(file, self.store, state, self._own(fingerprint))

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
            sequence = self.restore(saved.tokens, saved.length, saved.starts, namespace)
            try:
                state = self.state(sequence)
                known = len(state.tokens)
                saved.read(self.store, state, known)
            except BaseException:
                self.free(sequence)
                raise
        self.commit(sequence, saved.tokens[known:])
        return sequence

    def _own(self, fingerprint: str | None) -> str:
        if fingerprint is None:
            return self.fingerprint
        check_type(fingerprint, str, "fingerprint")
        return fingerprint


def to_requests(requests: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pairs of a sequence and a number of tokens.

    >>> to_requests([3])
    Traceback (most recent call last):
        ...
    fewbit.errors.DtypeError: `reserve` takes pairs of a sequence and a number of tokens, like [(sequence, 32)]
    """
    try:
        return [(sequence, count) for sequence, count in requests]
    except (TypeError, ValueError):
        raise DtypeError("`reserve` takes pairs of a sequence and a number of tokens, like [(sequence, 32)]") from None


def _make_spill(disk: DiskCache | None, store: KVStore, fingerprint: str) -> DiskSpill | None:
    if disk is None:
        return None
    from .spill import DiskSpill

    return DiskSpill(disk, store, fingerprint)

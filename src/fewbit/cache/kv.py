"""The paged KV cache: K and V of all layers, packed when they are written, in pages that sequences share."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np

from ..errors import FewbitError, PositionError, UnknownId
from ..formats import Format
from ..ops.arguments import result_array
from .arguments import to_integer, to_size
from .backend import Backend, Bytes, Floats, Ints, Longs, native, to_number, to_queries, to_rows, to_sinks
from .layout import Layout, Store, kv_format, make_store, total_pages
from .pages import PAGE_TOKENS, Pages
from .pool import Stats


@dataclass(slots=True)
class _New:
    """The tokens that the last `extend` of a sequence added."""

    tokens: int = 0
    missing: frozenset[int] = frozenset()  # layers that have no K and V of them yet


@dataclass(slots=True, eq=False)
class Batch:
    """Some sequences, as a backend wants to see them."""

    new: list[_New]
    tables: Ints
    table_starts: Longs
    lengths: Longs
    q_starts: Longs
    slots: Longs | None = None  # of the new tokens, once they were asked for


class KVCache:
    """K and V of many sequences, in pages, in any format of at most 32 bits or of blocks of 32 values.

    A sequence is a number that `new` gives. Each step makes room for its new tokens, writes and reads them layer by
    layer, and says at the end which tokens they were, so that others who begin alike can share them:

    >>> import numpy as np
    >>> from fewbit.ops import attention
    >>> cache = KVCache(layers=1, kv_heads=2, dim=64, tokens=1024, k="q8_0", backend=attention)
    >>> prompt = list(range(40))
    >>> a = cache.new(prompt)
    >>> cache.extend(a, 40 - cache.length(a))
    >>> for layer in range(1):
    ...     k = v = np.ones((40, 2, 64), np.float32)
    ...     cache.append(layer, a, k, v)
    ...     y = cache.attend(layer, a, np.ones((40, 8, 64), np.float32))
    >>> cache.commit(a, prompt)
    >>> b = cache.new(prompt)
    >>> cache.length(b), cache.stats().used  # b shares the first page, 32 tokens
    (32, 2)

    `tokens` or `pages` say how much is kept. That memory is reserved, and the system gives it page by page when it is
    first written. V has the format of K unless `v` names another. K below 8 bits is rotated (Hadamard), and q with it,
    unless `rotate` says otherwise: K has channels that are far greater than the others, and a block with one of them
    would lose the rest. `backend` is a module with `kv_write` and `attend`; without one it is the native CPU code.

    What is refused leaves everything as it was. Not for several threads at once.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        dim: int,
        *,
        tokens: int | None = None,
        pages: int | None = None,
        k: str | Format = "f16",
        v: str | Format | None = None,
        rotate: bool | None = None,
        page_tokens: int = PAGE_TOKENS,
        backend: Backend | None = None,
    ) -> None:
        k_format = kv_format(k, "k")
        self.layout = Layout(
            to_size(layers, "layers", least=1),
            to_size(kv_heads, "kv_heads", least=1),
            to_size(dim, "dim", least=1),
            k_format,
            k_format if v is None else kv_format(v, "v"),
            k_format.bits_per_weight < 8 if rotate is None else bool(rotate),
        )
        self.page_tokens = to_size(page_tokens, "page_tokens", least=1)
        total = total_pages(tokens, pages, self.page_tokens)
        of = self.layout
        self._pages = Pages(
            total, self.page_tokens, self.page_tokens * of.token_bytes, self.page_tokens * of.token_f32_bytes
        )
        self._ops = native() if backend is None else backend
        tiled = self._ops.keeps_tiles(of.k, of.v, self.page_tokens, of.dim)
        self._k, self._v = (
            [make_store(of, is_value, total, self.page_tokens, tiled) for _ in range(of.layers)]
            for is_value in (False, True)
        )
        self._layers = frozenset(range(of.layers))
        self._new: dict[int, _New] = {}
        self._batches: dict[tuple[int, ...], Batch] = {}  # all layers of a step ask for the same ones
        self._alone: dict[int, Batch] = {}  # of sequences whose last step was one token: their next one differs little

    def __repr__(self) -> str:
        of = self.layout
        size = f"{of.layers} layers, {of.kv_heads} heads of {of.dim}, {self._pages.total} pages of {self.page_tokens}"
        return f"KVCache({size}, k={of.k}, v={of.v}, rotate={of.rotate})"

    @property
    def nbytes(self) -> int:
        """Bytes that are reserved; `stats().nbytes` of them hold something."""
        return self._pages.total * self._pages.page_bytes

    @property
    def available(self) -> int:
        """Pages that could be had now: free, or cached and not pinned."""
        return self._pages.available

    def new(self, tokens: Iterable[int] = ()) -> int:
        """A new sequence. It begins with the full pages of a prompt that are known; `length` says how many tokens.

        To have something to compute the next token from, give all tokens of the prompt but the last.
        """
        sequence = self._pages.allocate(tokens)
        self._new[sequence] = _New()
        return sequence

    def lookup(self, tokens: Iterable[int]) -> int:
        """How many tokens `new` would find."""
        return self._pages.lookup(tokens)

    def length(self, sequence: int) -> int:
        """The number of tokens of a sequence, those of its last `extend` included."""
        return self._pages.length(sequence)

    def committed(self, sequence: int) -> int:
        """The number of tokens of a sequence that were committed."""
        return self._pages.committed(sequence)

    def extend(self, sequence: int, count: int = 1) -> None:
        """Make room for more tokens. A page that others can see is copied before it is written."""
        self._refuse_missing(sequence)
        for source, destination in self._pages.grow(sequence, count):
            for store in self._stores():
                store.data[destination] = store.data[source]
        self._new[sequence] = _New(count, self._layers) if count else _New()
        self._forget(sequence)

    def append(self, layer: int, sequences: int | Iterable[int], k: Any, v: Any, *, threads: int | None = None) -> None:
        """Pack and keep K and V of a layer, (tokens, kv_heads, dim), for the new tokens of one or several sequences.

        The tokens of the sequences follow each other, for each as many as its last `extend` made room for.
        """
        layer, batch = self._layer(layer), self._batch(sequences)
        if any(new.tokens and layer not in new.missing for new in batch.new):
            raise PositionError(f"layer {layer} holds these tokens already; `extend` makes room for new ones")
        of, slots = self.layout, self._slots(batch)
        shape = len(slots), of.kv_heads, of.dim
        keys = to_rows(k, "k", shape, of.k, of.most[0])
        values = to_rows(v, "v", shape, of.v, of.most[1])
        self._ops.kv_write(of.k, self._k[layer].data, keys, slots, of.rotate, threads=threads)
        self._ops.kv_write(of.v, self._v[layer].data, values, slots, is_value=True, threads=threads)
        for new in batch.new:
            new.missing -= {layer}

    def attend(
        self,
        layer: int,
        sequences: int | Iterable[int],
        q: Any,
        *,
        scale: float | None = None,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Any = None,
        out: Floats | None = None,
        exact: bool = True,
        threads: int | None = None,
    ) -> Floats:
        """Causal attention of the new tokens of one or several sequences: q and the result are (tokens, q_heads, dim).

        The tokens are those that `append` got for this layer. `scale` is 1 / sqrt(dim) unless given; `window` is how
        many positions a token sees, itself included (0: all); with `softcap` c logits become c * tanh(logit / c);
        `sinks` holds a logit without a value for each query head. NaN in q gives NaN in the result. With `exact` off,
        prompts take about half the time on machines with matrix tiles, which round to bf16. Beside packed K and V, q
        and the weights may be rounded to 16 bits.
        """
        layer, batch = self._layer(layer), self._batch(sequences)
        if any(layer in new.missing for new in batch.new):
            raise PositionError(f"layer {layer} has no K and V of the new tokens yet; `append` them first")
        of = self.layout
        queries = to_queries(q, int(batch.q_starts[-1]), of.kv_heads, of.dim)
        return self._ops.attend(
            queries, self._k[layer].data, of.k, self._v[layer].data, of.v,
            batch.tables, batch.table_starts, batch.lengths, batch.q_starts,
            scale=1 / math.sqrt(of.dim) if scale is None else to_number(scale, "scale"), rotate=of.rotate,
            window=to_size(window, "window"), softcap=to_number(softcap, "softcap", least=0),
            sinks=to_sinks(sinks, queries.shape[1]), out=result_array(out, queries.shape[:2], of.dim, queries),
            exact=exact, threads=threads,
        )  # fmt: skip

    @property
    def dim(self) -> int:
        return self.layout.dim

    @property
    def rotate(self) -> bool:
        return self.layout.rotate

    def stores(self, layer: int) -> tuple[Format, Bytes, Format, Bytes]:
        """Formats and bytes of K and V of a layer, as the backend wants them: for code that writes and reads all layers
        of a step itself, with `batch` before and `wrote` after it."""
        number = self._layer(layer)
        return self.layout.k, self._k[number].data, self.layout.v, self._v[number].data

    def batch(self, sequences: Iterable[int]) -> Batch:
        """Some sequences as a backend wants to see them: their pages, lengths and new tokens."""
        return self._batch(sequences)

    def step(self, sequence: int) -> Batch | None:
        """`extend` by one token and `batch` in one, quickly, where that takes no page. None: nothing was done."""
        batch = self._alone.get(sequence)
        if batch is None or self._new[sequence].missing or not self._pages.step(sequence):
            return None
        self._batches.clear()
        batch.new[0].missing = self._layers
        batch.lengths[0] += 1
        batch.slots = None
        return batch

    def settle(self, sequence: int, batch: Batch, token: int) -> None:
        """`wrote` and `commit` in one, for the batch of one token of one sequence."""
        batch.new[0].missing = frozenset()
        if not self._pages.settle(sequence, token):
            self.commit(sequence, (token,))

    def wrote(self, batch: Batch) -> None:
        """Say that K and V of the new tokens of a batch are in the stores, in all layers."""
        for new in batch.new:
            new.missing = frozenset()

    def commit(self, sequence: int, tokens: Iterable[int]) -> None:
        """Say which the next tokens are. Pages that are full now can be found by `new`.

        They may be fewer than `extend` made room for: of a draft commit what was accepted and truncate the rest. What
        is never committed is shared by `fork` alone.
        """
        self._refuse_missing(sequence)
        before = self._pages.entered(sequence)
        self._pages.commit(sequence, tokens)
        if self._pages.entered(sequence) != before:
            self._forget(sequence)  # a page may have been replaced by one with the same tokens

    def fork(self, sequence: int) -> int:
        """A new sequence with the same content. Nothing is copied until one of them writes to a page that both hold."""
        self._refuse_missing(sequence)
        child = self._pages.fork(sequence)
        self._new[child] = _New()
        return child

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens of a sequence."""
        before = self._pages.length(sequence)
        self._pages.truncate(sequence, length)
        new = self._new[sequence]
        left = max(0, new.tokens - (before - length))
        self._new[sequence] = _New(left, new.missing if left else frozenset())
        self._forget(sequence)

    def free(self, sequence: int) -> None:
        """Give a sequence back. What it committed stays cached as long as there is room."""
        self._pages.free(sequence)
        del self._new[sequence]
        self._forget(sequence)

    def pin(self, sequence: int) -> int:
        """Keep the full committed pages of a sequence, even after `free`, until `unpin` of what this returns."""
        return self._pages.pin(sequence)

    def unpin(self, pin: int) -> None:
        """Let pages go that `pin` kept."""
        self._pages.unpin(pin)

    def stats(self) -> Stats:
        """Counts of pages and events, and bytes: `nbytes`, `f32_bytes` and `savings`."""
        return self._pages.stats()

    def save(self, sequence: int, path: str | os.PathLike[str]) -> None:
        """Write a sequence to a file, which appears under its name when it is complete."""
        self._refuse_missing(sequence)
        pages = self._pages
        table, length, tokens = pages.table(sequence), pages.length(sequence), pages.tokens(sequence)
        from .save import write_saved

        write_saved(path, self.layout, self._stores(), table, length, tokens)

    def load(self, path: str | os.PathLike[str]) -> int:
        """A new sequence from a file of `save`, by a cache with the same layout; its pages may have another size.

        The file is checked whole before anything is changed. Its tokens are committed, and so found by `new`: whoever
        wrote the file decides what others read, so load what you trust.
        """
        from .save import open_saved

        with open_saved(path, self.layout) as saved:
            sequence = self.new(saved.tokens)
            try:
                known = self.length(sequence)
                self.extend(sequence, saved.length - known)
                saved.read(self._stores(), self._pages.table(sequence), known // self.page_tokens)
            except BaseException:
                self.free(sequence)
                raise
        self._new[sequence] = _New()
        self.commit(sequence, saved.tokens[known:])
        return sequence

    def _forget(self, sequence: int) -> None:
        """What was known of a sequence as backends want to see it."""
        self._batches.clear()
        self._alone.pop(sequence, None)

    def _stores(self) -> list[Store]:
        return [store for pair in zip(self._k, self._v, strict=True) for store in pair]

    def _layer(self, layer: int) -> int:
        number = to_integer(layer, "a layer")
        if not 0 <= number < self.layout.layers:
            raise PositionError(f"there are layers 0 to {self.layout.layers - 1}, not {number}")
        return number

    def _refuse_missing(self, sequence: int) -> None:
        new = self._new.get(to_integer(sequence, "a sequence"))
        if new is None:
            raise UnknownId(f"there is no sequence {sequence}")
        if new.missing:
            layers = ", ".join(map(str, sorted(new.missing)))
            raise PositionError(
                f"sequence {sequence} has {new.tokens} new tokens without K and V in layers {layers}: "
                f"append them, or truncate it to {self.length(sequence) - new.tokens}"
            )

    def _batch(self, sequences: int | Iterable[int]) -> Batch:
        ids = tuple(sequences) if isinstance(sequences, Iterable) else (to_integer(sequences, "a sequence"),)
        batch = self._batches.get(ids)
        if batch is None:
            batch = self._batches[ids] = self._make_batch(ids)
        return batch

    def _make_batch(self, ids: tuple[int, ...]) -> Batch:
        if len(set(ids)) < len(ids):
            raise FewbitError(f"a sequence is given twice: {', '.join(map(str, ids))}")
        tables = [self._pages.table(sequence) for sequence in ids]
        new = [self._new[sequence] for sequence in ids]
        if len(ids) == 1:  # the usual step, quickly
            numbers = np.array([0, len(tables[0]), self._pages.length(ids[0]), 0, new[0].tokens], np.int64)
            batch = Batch(new, np.array(tables[0], np.int32), numbers[:2], numbers[2:3], numbers[3:])
            if new[0].tokens == 1:
                self._alone[ids[0]] = batch
            return batch
        return Batch(
            new,
            np.array(list(chain.from_iterable(tables)), np.int32),
            _starts(map(len, tables)),
            np.array([self._pages.length(sequence) for sequence in ids], np.int64),
            _starts(n.tokens for n in new),
        )

    def _slots(self, batch: Batch) -> Longs:
        """Where K and V of the new tokens go: page * page_tokens + place in the page."""
        if batch.slots is not None:
            return batch.slots
        every = zip(batch.table_starts.tolist(), batch.lengths.tolist(), batch.new, strict=False)
        slots = [np.zeros(0, np.int64)]
        for start, length, new in every:
            positions = np.arange(length - new.tokens, length)
            pages = batch.tables[start + positions // self.page_tokens].astype(np.int64)
            slots.append(pages * self.page_tokens + positions % self.page_tokens)
        batch.slots = np.concatenate(slots)
        return batch.slots


def _starts(counts: Iterable[int]) -> Longs:
    return np.array([0, *accumulate(counts)], np.int64)

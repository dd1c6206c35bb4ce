"""An executor without a model: a real KV cache, and logits that follow from what the cache holds of a sequence.

V of a token is a row of small whole numbers that follow from the token and its position, K is zero. So attention gives
the mean of V over all tokens so far, and times their number exact whole sums: a fingerprint of the text, read from the
pages. Logits follow from it. Whatever is batched, forked, preempted or shared, they must be those of the text alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fewbit.arrays import Floats
from fewbit.cache.cache import Cache
from fewbit.cache.disk import DiskCache
from fewbit.cache.layout import make_layout
from fewbit.cache.store import HostStore
from fewbit.devices.batch import Batch
from fewbit.devices.host import HostHandle
from fewbit.errors import OutOfPages
from fewbit.loading import Loaded
from fewbit.ops import attention
from fewbit.ops import reference_sampling as sampling
from fewbit.ops.low_rank import Terms
from fewbit.ops.specs import AttentionParams, AttentionSpec, LayerSpec, RecurrentSpec

DIM = 32


class Toy:
    specs: Sequence[LayerSpec] = (AttentionSpec(1, DIM, DIM),)

    def __init__(
        self,
        pages: int = 64,
        page_tokens: int = 4,
        ctx: int = 64,
        vocab: int = 40,
        max_batched_tokens: int = 16,
        max_logits: int = 16,
        disk: DiskCache | None = None,
    ) -> None:
        store = HostStore(make_layout(self.specs, "f32", page_tokens=page_tokens), self.sizes(pages))
        self.cache = Cache(store, disk=disk)
        self.vocab, self.ctx = vocab, ctx
        self.max_batched_tokens, self.max_logits = max_batched_tokens, max_logits
        self.runs_ahead = False
        self.batches: list[list[int]] = []  # the numbers of tokens of each call
        self.errors: list[Exception] = []  # to be raised by the next calls
        self.is_late = False  # steps run long after their launch, which has looked at the pages
        self.scarce = 0  # how many times pages run out though the cache says that there are some
        self._out = np.empty((max_logits, vocab), np.float32)

    @staticmethod
    def sizes(pages: int) -> list[int]:
        """Pages by group."""
        return [pages]

    @property
    def loaded(self) -> Loaded:
        return Loaded(self, self.cache, self.ctx)

    def place_adapter(self, terms: Terms) -> Terms:
        return terms

    def launch(self, batch: Batch) -> HostHandle:
        self._check(batch)
        if self.errors:
            raise self.errors.pop()
        if not self.is_late:
            self.check_pages(batch)
        view = batch.view
        sums = self._sums(batch)[batch.logits_indices]
        self.batches.append(np.diff(view.q_starts).tolist())
        if batch.output == "hidden":
            return HostHandle(batch, sums.astype(np.float32), sampling)
        self._out[:] = np.nan  # of the step before
        self._out[: len(sums)] = self.logits(sums, batch)
        return HostHandle(batch, self._out[: len(sums)], sampling)

    def check_pages(self, batch: Batch) -> None:
        if self.scarce and len(batch.view.lengths) > 1:
            self.scarce -= 1
            raise OutOfPages(1, 0)

    def logits(self, sums: npt.NDArray[np.uint64], batch: Batch) -> Floats:
        return _logits(sums, self.vocab)

    def _sums(self, batch: Batch) -> npt.NDArray[np.uint64]:
        """Write V of the new tokens to their pages, and read the sums over all tokens from there."""
        view = batch.view
        counts = np.diff(view.q_starts)
        positions = np.concatenate([np.arange(n - c, n) for n, c in zip(view.lengths, counts, strict=True)])
        v = _features(batch.tokens, positions)
        means = self._attend(0, batch, v)
        return np.rint(means.astype(np.float64) * (positions[:, None] + 1)).astype(np.uint64)

    def _attend(self, layer: int, batch: Batch, v: Floats, window: int = 0) -> Floats:
        """The mean of V over the tokens that each one sees, (tokens, DIM)."""
        store, view = self.cache.store, batch.view
        kv = store.kv(layer)
        group, zero = store.group_of(layer), np.zeros((len(v), 1, store.layout.attention(layer).k_dim), np.float32)
        attention.kv_write(kv.k_format, kv.k, zero, view.slots(group))
        attention.kv_write(kv.v_format, kv.v, v, view.slots(group))
        params = AttentionParams(scale=1.0, window=window)
        return attention.attend(zero, kv, view.page_tables(group), params, out=np.empty_like(v))[:, 0]

    def _check(self, batch: Batch) -> None:
        assert 0 < len(batch.tokens) <= self.max_batched_tokens
        assert len(batch.logits_indices) <= self.max_logits
        assert batch.view.q_starts[-1] == len(batch.tokens)
        assert (batch.view.lengths <= self.ctx).all()


class HybridToy(Toy):
    """K and V of different widths, a layer with a window, and a recurrent one, whose state is the sum of V so far.

    The three must agree: so each of them holds, at any time, what belongs to the text.
    """

    WINDOW = 3
    specs = (AttentionSpec(1, 2 * DIM, DIM), RecurrentSpec(8 * DIM), AttentionSpec(1, DIM, DIM, window=WINDOW))

    @staticmethod
    def sizes(pages: int) -> list[int]:
        return [pages, pages, 6 + pages // 2]

    def _sums(self, batch: Batch) -> npt.NDArray[np.uint64]:
        view = batch.view
        sums = super()._sums(batch)
        v = _features(batch.tokens, view.positions())
        states = self.cache.store.states(1).view(np.uint64)  # (slots, DIM)
        for s, (start, end) in enumerate(pairwise(view.q_starts.tolist())):
            state = states[view.reads[s]] + np.cumsum(v[start:end, 0].astype(np.uint64), axis=0)
            np.testing.assert_array_equal(state, sums[start:end])
            assert view.writes[s] not in view.reads
            states[view.writes[s]] = state[-1]
        seen = self._attend(0, batch, v, self.WINDOW), self._attend(2, batch, v, self.WINDOW)
        np.testing.assert_allclose(*seen, rtol=1e-6)
        return sums


def fingerprint(tokens: Sequence[int]) -> npt.NDArray[np.uint64]:
    """What attention gives for each token of a text, without a cache."""
    rows = _features(np.array(tokens), np.arange(len(tokens)))[:, 0]
    return np.cumsum(rows.astype(np.uint64), axis=0)


def logits_of(tokens: Sequence[int], vocab: int = 40) -> Floats:
    """The logits after each token of a text."""
    return _logits(fingerprint(tokens), vocab)


def _features(tokens: npt.NDArray[Any], positions: npt.NDArray[Any]) -> Floats:
    """Whole numbers from 0 to 15, (tokens, 1, DIM)."""
    keys = tokens.astype(np.uint64) * np.uint64(1000003) + positions.astype(np.uint64)
    rows = _mix(keys[:, None] * np.uint64(DIM) + np.arange(DIM, dtype=np.uint64)) % np.uint64(16)
    return rows.astype(np.float32)[:, None]


def _logits(sums: npt.NDArray[Any], vocab: int) -> Floats:
    """From 0 to 8, (rows, vocab)."""
    keys = _mix(sums * _mix(np.arange(DIM, dtype=np.uint64))).sum(axis=1, dtype=np.uint64)
    rows = _mix(keys[:, None] + np.arange(vocab, dtype=np.uint64)) % np.uint64(1 << 20)
    return rows.astype(np.float32) / np.float32(1 << 17)


def _mix(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

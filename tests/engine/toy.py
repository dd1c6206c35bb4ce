"""A runner without a model: a real KV cache, and logits that follow from what the cache holds of a sequence.

V of a token is a row of small whole numbers that follow from the token and its position, K is zero. So attention gives
the mean of V over all tokens so far, and times their number exact whole sums: a fingerprint of the text, read from the
pages. Logits follow from it. Whatever is batched, forked, preempted or shared, they must be those of the text alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fewbit.cache.kv import KVCache
from fewbit.engine.contract import Chunk
from fewbit.errors import OutOfPages
from fewbit.ops import attention

Floats = npt.NDArray[np.float32]

DIM = 32


class Toy:
    def __init__(
        self,
        pages: int = 64,
        page_tokens: int = 4,
        ctx: int = 64,
        vocab: int = 40,
        most_tokens: int = 16,
        most_wanted: int = 16,
    ) -> None:
        self.cache = KVCache(1, 1, DIM, pages=pages, page_tokens=page_tokens, k="f32", backend=attention)
        self.vocab, self.ctx, self.most_tokens, self.most_wanted = vocab, ctx, most_tokens, most_wanted
        self.batches: list[list[int]] = []  # the numbers of tokens of each call
        self.errors: list[Exception] = []  # to be raised by the next calls
        self.scarce = 0  # how many times pages run out though the cache says that there are some
        self._out = np.empty((most_wanted, vocab), np.float32)

    def forward(self, chunks: Sequence[Chunk]) -> Floats:
        self._check(chunks)
        if self.errors:
            raise self.errors.pop()
        if self.scarce and len(chunks) > 1:
            self.scarce -= 1
            raise OutOfPages(1, 0)
        self._extend(chunks)
        sequences = [chunk.sequence for chunk in chunks]
        positions = np.concatenate(
            [np.arange(self.cache.committed(chunk.sequence), self.cache.length(chunk.sequence)) for chunk in chunks]
        )
        tokens = np.concatenate([np.array(chunk.tokens) for chunk in chunks])
        v = _features(tokens, positions)
        self.cache.append(0, sequences, np.zeros_like(v), v)
        means = self.cache.attend(0, sequences, np.zeros_like(v))[:, 0]  # (tokens, DIM)
        sums = np.rint(means.astype(np.float64) * (positions[:, None] + 1)).astype(np.uint64)
        for chunk in chunks:
            self.cache.commit(chunk.sequence, chunk.tokens)
        self.batches.append([len(chunk.tokens) for chunk in chunks])
        ends = np.cumsum([len(chunk.tokens) for chunk in chunks])
        rows = [row for end, chunk in zip(ends, chunks, strict=True) for row in range(end - chunk.wanted, end)]
        self._out[:] = np.nan  # of the step before
        self._out[: len(rows)] = _logits(sums[rows], self.vocab)
        return self._out[: len(rows)]

    def _check(self, chunks: Sequence[Chunk]) -> None:
        assert chunks
        assert all(0 <= chunk.wanted <= len(chunk.tokens) for chunk in chunks)
        assert sum(len(chunk.tokens) for chunk in chunks) <= self.most_tokens
        assert sum(chunk.wanted for chunk in chunks) <= self.most_wanted
        assert all(self.cache.length(chunk.sequence) + len(chunk.tokens) <= self.ctx for chunk in chunks)

    def _extend(self, chunks: Sequence[Chunk]) -> None:
        """Room for all chunks, or for none."""
        before = [self.cache.length(chunk.sequence) for chunk in chunks]
        try:
            for chunk in chunks:
                self.cache.extend(chunk.sequence, len(chunk.tokens))
        except BaseException:
            for chunk, length in zip(chunks, before, strict=True):
                self.cache.truncate(chunk.sequence, length)
            raise


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

"""A step without an engine: for measurements, tests and those who want the rows themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import numpy as np

from ..arrays import Floats, Ints
from ..cache.cache import Cache
from ..errors import ShapeError
from ..ops.sampling import SamplingParams
from .batch import Batch, Chunk, Executor, Outputs, Sample

GREEDY = SamplingParams(temperature=0)


def make_batch(cache: Cache, chunks: Sequence[Chunk], output: str = "logits") -> Batch:
    """Room in the cache for the tokens of some sequences, and the batch that fills it."""
    view = cache.reserve([(chunk.sequence, len(chunk.tokens)) for chunk in chunks])
    if len(chunks) == 1:
        tokens = np.array(chunks[0].tokens, np.int32)
    else:
        tokens = np.fromiter(chain.from_iterable(chunk.tokens for chunk in chunks), np.int32)
    return Batch(tokens, view, _logits_indices(chunks), output)


def forward(executor: Executor, cache: Cache, chunks: Sequence[Chunk], output: str = "logits") -> Floats:
    """Run the next tokens of some sequences and commit them: the rows that were asked for, valid until the next step.

    If it raises, no sequence was changed.
    """
    check_sizes(executor, chunks)
    batch = make_batch(cache, chunks, output)
    with _committed(cache, chunks, batch):
        return executor.launch(batch).rows()


def sample_greedily(executor: Executor, cache: Cache, chunks: Sequence[Chunk]) -> Outputs:
    """The same, but each chunk asks for one row of logits and gets the likeliest token of it."""
    check_sizes(executor, chunks)
    batch = make_batch(cache, chunks)
    batch.samples = [Sample(row, GREEDY, 0.0) for row in range(len(chunks))]
    with _committed(cache, chunks, batch):
        return executor.launch(batch).fetch()


@contextmanager
def _committed(cache: Cache, chunks: Sequence[Chunk], batch: Batch) -> Iterator[None]:
    """The tokens of a step that succeeds become part of their sequences."""
    try:
        yield
    except BaseException:
        cache.rollback(batch.view)
        raise
    for chunk in chunks:
        cache.commit(chunk.sequence, chunk.tokens)


def check_sizes(executor: Executor, chunks: Sequence[Chunk]) -> None:
    tokens, rows = sum(len(chunk.tokens) for chunk in chunks), sum(chunk.num_logits for chunk in chunks)
    if tokens > executor.max_batched_tokens or rows > executor.max_logits:
        limits = f"{executor.max_batched_tokens} tokens and gives {executor.max_logits} rows of logits"
        raise ShapeError(f"a step takes {limits}, not {tokens} and {rows}")


def _logits_indices(chunks: Sequence[Chunk]) -> Ints:
    rows: list[int] = []
    end = 0
    for chunk in chunks:
        end += len(chunk.tokens)
        rows.extend(range(end - chunk.num_logits, end))
    return np.array(rows, np.int32)

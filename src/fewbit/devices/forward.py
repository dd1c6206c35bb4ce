"""A step without an engine: for measurements, tests and those who want the logits themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ..arrays import Floats
from ..cache.cache import Cache
from ..errors import ShapeError
from ..ops.sampling import SamplingParams
from .batch import Batch, Executor, Results, Row, Sample, lay_out

GREEDY = Sample(SamplingParams(temperature=0), 0.0)


def make_batch(cache: Cache, rows: Sequence[Row]) -> Batch:
    """Reserve pages for the tokens of rows, and lay them out."""
    return lay_out(rows, cache.reserve([(row.sequence, len(row.tokens)) for row in rows if len(row.tokens)]))


def forward(executor: Executor, cache: Cache, rows: Sequence[Row], output: str = "logits") -> Floats:
    """Run the next tokens of some sequences and commit them.

    Args:
        executor: What runs them.
        cache: The executor's KV cache.
        rows: The tokens. Whatever rows want but their logits or hidden states is left out.
        output: "logits" or "hidden".

    Returns:
        Logits or hidden states of all rows, `num_logits` each, valid until the next step. If it raises, no sequence was
        changed.
    """
    with _committed(executor, cache, [replace(row, hidden=output == "hidden") for row in rows]) as batch:
        return executor.launch(batch).values()


def sample_greedily(executor: Executor, cache: Cache, rows: Sequence[Row]) -> Results:
    """The same, but each row gets the likeliest token after each of those that have logits."""
    with _committed(executor, cache, [replace(row, samples=[GREEDY] * row.num_logits) for row in rows]) as batch:
        return executor.launch(batch).fetch()


@contextmanager
def _committed(executor: Executor, cache: Cache, rows: Sequence[Row]) -> Iterator[Batch]:
    """The tokens of a step that succeeds become part of their sequences."""
    tokens, logits = sum(len(row.tokens) for row in rows), sum(row.num_logits for row in rows)
    if tokens > executor.max_batched_tokens or logits > executor.max_logits:
        limits = f"{executor.max_batched_tokens} tokens and gives {executor.max_logits} rows of logits"
        raise ShapeError(f"a step takes {limits}, not {tokens} and {logits}")
    batch = make_batch(cache, rows)
    try:
        yield batch
    except BaseException:
        cache.rollback(batch.view)
        raise
    for row in rows:
        cache.commit(row.sequence, row.tokens)

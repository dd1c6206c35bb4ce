"""What is done in host memory with the rows of a step."""

from __future__ import annotations

from typing import Any

import numpy as np

from fewbit.devices.batch import Row, RowResult, Sample, Score, Top, lay_out
from fewbit.devices.host import HostHandle
from fewbit.errors import DataError
from fewbit.ops import reference_sampling as sampling
from fewbit.ops.sampling import SamplingParams

GREEDY = Sample(SamplingParams(temperature=0.0), 0.5)
VIEW: Any = None  # where pages are does not matter here


def test_each_row_gets_what_it_wants() -> None:
    """Two rows of one prompt sample from the same logits, one is scored and sampled, one wants nothing."""
    logits = np.eye(4, 8, dtype=np.float32)
    rows = [
        Row(1, [5], 1, [GREEDY]),
        Row(2, [5], 1, [GREEDY]),
        Row(2, (), samples=[GREEDY]),
        Row(3, [5, 6]),
        Row(4, [5, 6], 2, [GREEDY], Score([2], num_logprobs=1)),
    ]
    one, two, again, nothing, both = HostHandle(lay_out(rows, VIEW), logits, sampling).fetch()
    assert (one, two, again, nothing) == (RowResult((0,)), RowResult((1,)), RowResult((1,)), RowResult())
    assert isinstance(both, RowResult)
    assert both.tokens == (3,)
    own = sampling.log_probabilities(logits[2:3], [2])
    np.testing.assert_array_equal(both.scores, own)
    assert [(top.tokens.tolist(), top.logprobs.tolist()) for top in both.tops] == [([2], own.tolist())]
    assert isinstance(both.tops[0], Top)


def test_a_bad_row_ends_alone() -> None:
    logits = np.eye(3, 8, dtype=np.float32)
    logits[1] = np.nan
    rows = [Row(1, [5], 1, [GREEDY]), Row(2, [5], 1, score=Score([2])), Row(3, [5], 1, [GREEDY])]
    first, bad, last = HostHandle(lay_out(rows, VIEW), logits, sampling).fetch()
    assert (first, last) == (RowResult((0,)), RowResult((2,)))
    assert isinstance(bad, DataError)


def test_rows_of_hidden_states() -> None:
    hidden = np.arange(12, dtype=np.float32).reshape(3, 4)
    batch = lay_out([Row(1, [5, 6], 2, hidden=True), Row(2, [5]), Row(3, [5], 1, hidden=True)], VIEW)
    assert (batch.output, batch.logits_indices.tolist()) == ("hidden", [0, 1, 3])
    first, nothing, last = HostHandle(batch, hidden, sampling).fetch()
    assert isinstance(first, RowResult)
    assert isinstance(last, RowResult)
    np.testing.assert_array_equal(first.hidden, hidden[:2])
    np.testing.assert_array_equal(last.hidden, hidden[2:])
    assert nothing == RowResult()

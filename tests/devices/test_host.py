"""What is done in host memory with the rows of a step."""

from __future__ import annotations

from typing import Any

import numpy as np

from fewbit.devices.batch import Batch, Sample, Sampled, Score
from fewbit.devices.host import HostHandle
from fewbit.ops import sampling
from fewbit.ops.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


def test_each_sample_is_of_its_own_row() -> None:
    """As many samples as there are rows from the first to the last, but two of one row, and one row is scored."""
    rows = np.eye(4, 8, dtype=np.float32)
    samples = [Sample(row, GREEDY, 0.5) for row in (0, 1, 3, 3)]
    view: Any = None
    batch = Batch(np.zeros(4, np.int32), view, np.arange(4, dtype=np.int32), samples=samples, scores=[Score(2, [2])])
    outputs = HostHandle(batch, rows, sampling).fetch()
    assert outputs.samples == [Sampled(token, None) for token in (0, 1, 3, 3)]

"""Masks that come after a step was launched: the host waits for them just before it samples."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Timer

import numpy as np
import pytest

from fewbit.arrays import Words
from fewbit.devices.batch import Batch, Row, Sample, has_late_masks, lay_out
from fewbit.devices.host import HostHandle
from fewbit.ops import cpu, sampling
from fewbit.ops.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0)
LOGITS = np.array([[0, 1, 2, 3], [3, 2, 1, 0], [0, 5, 0, 4]], np.float32)


def batch_of(*masks: Words | Future[Words | None] | None) -> Batch:
    rows = [Row(number, [number], 1, [Sample(GREEDY, 0.5, mask=mask)]) for number, mask in enumerate(masks)]
    return lay_out(rows, None)  # type: ignore[arg-type]  # nothing is run


@pytest.mark.parametrize("sampler", [cpu, sampling], ids=["native", "numpy"])
def test_the_host_waits_for_masks_when_it_samples(sampler: object) -> None:
    late: Future[Words | None] = Future()
    free: Future[Words | None] = Future()
    free.set_result(None)
    batch = batch_of(late, np.array([0b1100], np.uint32), free)
    handle = HostHandle(batch, LOGITS, sampler)  # type: ignore[arg-type]
    assert has_late_masks(batch)
    timer = Timer(0.05, lambda: late.set_result(np.array([0b11], np.uint32)))
    timer.start()
    assert [result.tokens for result in handle.fetch()] == [(1,), (2,), (1,)]  # type: ignore[union-attr]
    timer.join()


def test_a_mask_that_fails_or_allows_nothing_ends_its_row_alone() -> None:
    failed: Future[Words | None] = Future()
    failed.set_exception(ValueError("no mask"))
    nothing: Future[Words | None] = Future()
    nothing.set_result(np.zeros(1, np.uint32))
    first, second, third = HostHandle(batch_of(failed, None, nothing), LOGITS, cpu).fetch()
    assert (type(first), str(first)) == (ValueError, "no mask")
    assert second.tokens == (0,)  # type: ignore[union-attr]
    assert "leave no token that can be sampled" in str(third)
    assert not has_late_masks(batch_of(None, np.array([1], np.uint32)))

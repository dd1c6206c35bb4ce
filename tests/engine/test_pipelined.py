"""An executor with several stages: as many steps in flight, and no sequence samples in two of them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fewbit.devices.batch import Batch

from ..examples import examples
from .alone import alone, make_engine, run
from .late import Late, LateHandle
from .test_ahead import PROMPT, add, kinds
from .test_schedules import Job, check_schedule, jobs, toys
from .toy import Toy

EXAMPLES = examples(usual=100, full=200)


class Pipeline(Late):
    """Steps are run in order, as late as can be."""

    runs_ahead = False

    def __init__(self, toy: Toy, depth: int) -> None:
        super().__init__(toy, toy.cache.store)
        self.depth, self.most = depth, 0

    def launch(self, batch: Batch) -> LateHandle:
        assert (batch.tokens >= 0).all()
        handle = super().launch(batch)
        events = [event for event, _ in self.log]
        self.most = max(self.most, events.count("launch") - events.count("fetch"))
        assert self.most <= self.depth
        return handle


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(toy=toys, work=st.lists(jobs, min_size=1, max_size=8), max_seqs=st.integers(3, 8), depth=st.integers(2, 4))
def test_any_schedule_gives_what_each_request_gives_alone(toy: Toy, work: list[Job], max_seqs: int, depth: int) -> None:
    check_schedule(toy, Pipeline(toy, depth), work, max_seqs)


@kinds
@pytest.mark.parametrize("depth", [2, 3])
def test_outputs_take_turns(kind: type[Toy], depth: int) -> None:
    toy = kind()
    executor = Pipeline(toy, depth)
    engine = make_engine(toy, (), 64, executor)
    requests = [add(engine, PROMPT[:i], 12, seed=i)[0] for i in range(2, 8)]
    run(engine)
    assert executor.most == depth
    for i, request in zip(range(2, 8), requests, strict=True):
        assert (request.output_tokens, request.finish_reason) == alone(PROMPT[:i], 12, i)
    sizes = [len(batch.tokens) for batch in executor.batches[4 + depth : -depth]]  # once prompts were run
    assert max(sizes) == 6 // depth


@kinds
def test_chunks_of_a_prompt_follow_each_other(kind: type[Toy]) -> None:
    toy = kind(max_batched_tokens=4, page_tokens=4)
    executor = Pipeline(toy, 3)
    engine = make_engine(toy, (), 64, executor)
    (request,) = add(engine, PROMPT, 3, seed=1)
    run(engine)
    assert executor.most == 3
    assert request.output_tokens == alone(PROMPT, 3, 1)[0]

"""Any schedule gives what each request gives alone: arrivals, priorities, clients, deadlines, prompts that begin alike,
cancels, caches too small.

`FEWBIT_EXAMPLES=20000 pytest tests/engine/test_schedules.py` runs as many examples.
"""

from __future__ import annotations

import atexit
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from shutil import rmtree
from tempfile import mkdtemp

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fewbit.arrays import Words
from fewbit.cache.disk import DiskCache
from fewbit.devices.batch import Executor
from fewbit.engine.constraint import Constraint
from fewbit.engine.engine import Engine
from fewbit.engine.reading import Scoring
from fewbit.engine.request import Generation, Request
from fewbit.engine.scheduling import SchedulingOptions
from fewbit.engine.scores import PositionScores
from fewbit.engine.speculation.speculation import Speculation
from fewbit.ops import sampling
from fewbit.ops.sampling import SamplingParams

from .alone import WARM, alone, is_clean, run
from .speculation.guessing import Guessing
from .toy import HybridToy, Toy, logits_of
from .toy_constraints import Pattern

EXAMPLES = int(os.environ.get("FEWBIT_EXAMPLES", "100"))
VOCAB = 8
ENDS = (5,)
FOLDER = mkdtemp()  # examples find each other's prompts on the disk
atexit.register(rmtree, FOLDER, ignore_errors=True)
PENALTIES = SamplingParams(
    temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.5, frequency_penalty=0.5
)


class Alternating:
    """A constraint: no token twice in a row."""

    is_finished = False

    def __init__(self) -> None:
        self._masks = [np.array([(1 << VOCAB) - 1], np.uint32)]

    def mask(self) -> Words:
        return self._masks[-1]

    def accept(self, token: int) -> None:
        self._masks.append(np.array([(1 << VOCAB) - 1 - (1 << token)], np.uint32))

    def forced(self) -> list[int]:
        return []

    def rollback(self, count: int) -> None:
        del self._masks[len(self._masks) - count :]


CHOICES = [[1], [2], range(VOCAB), [3, 4], [0], [0], [6], range(VOCAB), [7]]
CONSTRAINTS: dict[str, Callable[[], Constraint]] = {
    "alternating": Alternating,
    "forcing": lambda: Pattern(CHOICES, VOCAB, repeats=True),
    "ending": lambda: Pattern(CHOICES, VOCAB),
}


@dataclass(frozen=True)
class Job:
    """Something that is asked; its prompt may be that of another one and more. `mates` are in the same batch: the same
    prompt, and these tokens after it."""

    prompt: list[int]
    wait: int  # steps after the one before
    max_tokens: int = 8
    n: int = 1
    seed: int = 0
    params: SamplingParams = WARM
    constraint: str | None = None  # one of CONSTRAINTS
    logprobs: int | None = None
    cancel: int | None = None  # steps after its arrival
    which: int = 0  # of the outputs is cancelled; past the last: all
    scores: bool = False
    first: int = 1  # token that is scored
    mates: tuple[list[int], ...] = ()
    prompt_logprobs: int | None = None
    namespace: str = ""
    scarce: int = 0  # see Toy
    priority: int = 0
    client: str = ""
    deadline: int | None = None  # readings of the clock after its arrival

    @property
    def prompts(self) -> list[list[int]]:
        return [self.prompt, *((self.prompt + mate)[:14] for mate in self.mates)]


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=14)  # two tokens: they often begin alike
jobs = st.builds(
    Job,
    prompt=prompts,
    wait=st.integers(0, 6),
    max_tokens=st.integers(1, 12),
    n=st.integers(1, 3),
    seed=st.integers(0, 3),
    params=st.sampled_from([WARM, PENALTIES]),
    constraint=st.sampled_from([None, None, None, *CONSTRAINTS]),
    logprobs=st.sampled_from([None, None, 0, 2]),
    cancel=st.none() | st.integers(0, 8),
    which=st.integers(0, 3),
    scores=st.booleans(),
    first=st.sampled_from([1, 1, 3, 9]),
    mates=st.just(()) | st.lists(st.lists(st.integers(0, 1), max_size=6), max_size=4).map(tuple),
    prompt_logprobs=st.sampled_from([None, None, 0, 2]),
    namespace=st.sampled_from(["", "", "", "other"]),
    scarce=st.sampled_from([0, 0, 0, 1, 2]),
    priority=st.integers(-1, 1),
    client=st.sampled_from("ab"),
    deadline=st.none() | st.integers(1, 60),
)
toys = st.sampled_from([Toy, HybridToy]).flatmap(
    lambda kind: st.builds(
        kind,
        pages=st.integers(5, 24),
        page_tokens=st.sampled_from([4, 5, 6, 12]),
        ctx=st.just(30),
        vocab=st.just(VOCAB),
        max_batched_tokens=st.integers(3, 12),
        max_logits=st.integers(3, 6),
        disk=st.none() | st.builds(DiskCache, st.just(FOLDER), st.just(100_000)),
    )
)

guesses = st.none() | st.builds(
    Guessing, st.just(VOCAB), st.sampled_from([0.0, 0.7, 0.9, 1.0]), st.integers(1, 6), st.integers(0, 3)
)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(toy=toys, work=st.lists(jobs, min_size=1, max_size=8), max_seqs=st.integers(3, 8), guesses=guesses)
def test_any_schedule_gives_what_each_request_gives_alone(
    toy: Toy, work: list[Job], max_seqs: int, guesses: Guessing | None
) -> None:
    check_schedule(toy, toy, work, max_seqs, guesses)


def check_schedule(
    toy: Toy, executor: Executor, work: list[Job], max_seqs: int, guesses: Guessing | None = None
) -> None:
    speculation = None if guesses is None else Speculation(guesses, is_adaptive=False)
    engine = Engine(
        executor, toy.cache, toy.ctx, ENDS, max_seqs=max_seqs, clock=itertools.count().__next__, speculation=speculation
    )
    asked: list[tuple[Job, list[Request]]] = []
    cancels: list[tuple[int, list[Request]]] = []
    step = 0
    for job in work:
        for _ in range(job.wait):
            step += 1
            engine.step()
            for _, gone in [one for one in cancels if one[0] <= step]:
                engine.cancel(gone)
        groups = [make(engine, job, prompt) for prompt in job.prompts]
        engine.add_batch(groups)
        requests = [request for group in groups for request in group]
        asked += [(replace(job, prompt=prompt), group) for prompt, group in zip(job.prompts, groups, strict=True)]
        if job.cancel is not None:
            cancels.append((step + job.cancel, [requests[job.which]] if job.which < len(requests) else requests))
        toy.scarce += job.scarce
    for when, gone in sorted(cancels, key=lambda one: one[0]):
        while step < when:
            step += 1
            engine.step()
        engine.cancel(gone)
    run(engine)
    for job, requests in asked:
        check(job, requests, engine.max_length)
    assert is_clean(toy)
    if toy.cache.disk is not None:
        toy.cache.flush()


def make(engine: Engine, job: Job, prompt: list[int]) -> list[Request]:
    options: SchedulingOptions = {"priority": job.priority, "client": job.client, "deadline": job.deadline}
    if job.scores:
        first = max(1, min(job.first, len(prompt) - 1))
        return [engine.scoring(prompt, first=first, logprobs=job.prompt_logprobs, namespace=job.namespace, **options)]
    return engine.generation(
        prompt,
        job.params,
        prompt_logprobs=job.prompt_logprobs,
        namespace=job.namespace,
        max_tokens=job.max_tokens,
        n=job.n,
        seed=job.seed,
        logprobs=job.logprobs,
        constraint=CONSTRAINTS.get(job.constraint or ""),
        **options,
    )


def check(job: Job, requests: list[Request], limit: int) -> None:
    for i, request in enumerate(requests):
        is_whole = request.finish_reason not in ("cancelled", "deadline")
        if request.scores is not None:
            check_scores(job.prompt, request.scores, is_whole)
        if isinstance(request, Scoring):
            continue
        constraint = None if job.constraint is None else CONSTRAINTS[job.constraint]()
        output, reason = alone(
            job.prompt, job.max_tokens, job.seed + i, params=job.params, eos_ids=ENDS, limit=limit, vocab=VOCAB,
            constraint=constraint,
        )  # fmt: skip
        assert isinstance(request, Generation)
        if job.logprobs is not None:
            rows = logits_of(request.tokens, VOCAB)[len(job.prompt) - 1 : -1]
            own = sampling.log_probabilities(rows, request.output_tokens)
            assert [one.own for one in request.logprobs] == own.tolist()
        if request.finish_reason in ("cancelled", "deadline"):
            assert (job.cancel if request.finish_reason == "cancelled" else job.deadline) is not None
            assert request.output_tokens == output[: len(request.output_tokens)]
        else:
            assert (request.output_tokens, request.finish_reason) == (output, reason)


def check_scores(prompt: list[int], scores: PositionScores, is_whole: bool) -> None:
    wanted = sampling.log_probabilities(logits_of(prompt, VOCAB)[:-1], prompt[1:])[scores.first - 1 :]
    count = scores.num_scored + 1 - scores.first
    assert not is_whole or count == len(wanted)
    np.testing.assert_array_equal(scores.values[:count], wanted[:count])
    if scores.num_logprobs is not None:
        assert [len(top.tokens) for top in scores.tops] == [scores.num_logprobs] * count
    if scores.num_logprobs:
        likeliest = logits_of(prompt, VOCAB)[scores.first - 1 :][:count].argmax(axis=1)
        assert [top.tokens[0] for top in scores.tops] == likeliest.tolist()

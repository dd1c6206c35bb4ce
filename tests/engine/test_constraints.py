"""Constraints that force tokens, end outputs, fail, and compute their masks in other threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from fewbit.arrays import Words
from fewbit.engine.engine import Engine
from fewbit.engine.request import Delta, Generation
from fewbit.ops import sampling
from fewbit.ops.sampling import SamplingParams

from .alone import WARM, alone, is_clean, make_engine, run
from .test_ahead import ahead, make
from .test_schedules import PENALTIES
from .toy import HybridToy, Toy, logits_of
from .toy_constraints import Choices, Pattern, pattern, words

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
ANY = range(40)
CALL: Choices = [[7], [8], [9], ANY, ANY, [7], [9], ANY, [1], [2], [3], [4], [5], [6]]  # two calls of a function, say

kinds = pytest.mark.parametrize("kind", [Toy, HybridToy])


def add(engine: Engine, prompt: Sequence[int], **options: Any) -> list[Generation]:
    requests = engine.generation(prompt, options.pop("params", WARM), **options)
    engine.add(requests)
    return requests


def one(engine: Engine, prompt: Sequence[int] = PROMPT, **options: Any) -> Generation:
    (request,) = add(engine, prompt, **options)
    run(engine)
    return request


def expected(choices: Choices, seed: int, prompt: Sequence[int] = PROMPT, **options: Any) -> list[int]:
    """The output of a constraint that ends and never forces: one token after another."""
    return alone(prompt, len(choices), seed, constraint=Pattern(choices), **options)[0]


@kinds
@pytest.mark.parametrize(
    "params", [WARM, PENALTIES, SamplingParams(temperature=0)], ids=["warm", "penalties", "greedy"]
)
def test_forced_tokens_run_with_the_next_step(kind: type[Toy], params: SamplingParams) -> None:
    engine = make_engine(toy := kind(page_tokens=32, max_batched_tokens=32))
    constraint, made = pattern(CALL)
    request = one(engine, seed=5, constraint=constraint, params=params)
    assert (request.output_tokens, request.finish_reason) == (expected(CALL, 5, params=params), "stop")
    assert request.stop_token is None
    assert made[0].accepted == request.output_tokens
    assert made[0].threads.isdisjoint({threading.get_ident()})
    assert toy.batches == [[10], [3], [1], [3]]  # 7 and 8, 9 are forced; 7, 9; and the last six end it
    stats = engine.stats()
    assert (stats.tokens, stats.forced_tokens, stats.prompt_tokens) == (14, 10, 10)
    assert is_clean(toy)


def test_a_constraint_that_forces_nothing_gives_the_same() -> None:
    engine = make_engine(toy := Toy())
    constraint, _ = pattern(CALL, forces=False)
    assert one(engine, seed=5, constraint=constraint).output_tokens == expected(CALL, 5)
    assert toy.batches == [[10], *[[1]] * 13]
    assert engine.stats().forced_tokens == 0


def test_log_probabilities_are_those_of_each_token() -> None:
    engine = make_engine(toy := Toy())
    constraint, _ = pattern(CALL)
    request = one(engine, seed=5, constraint=constraint, logprobs=2)
    assert (request.output_tokens, request.finish_reason) == (expected(CALL, 5), "stop")
    rows = logits_of(request.tokens)[len(PROMPT) - 1 : -1]
    own = sampling.log_probabilities(rows, request.output_tokens)
    assert [one.own for one in request.logprobs] == own.tolist()
    assert toy.batches == [[10], *[[1]] * 13]


@pytest.mark.parametrize("max_tokens", range(1, 15))
def test_the_longest_output_may_end_among_forced_tokens(max_tokens: int) -> None:
    constraint, made = pattern(CALL)
    request = one(make_engine(Toy()), seed=5, constraint=constraint, max_tokens=max_tokens)
    assert request.output_tokens == made[0].accepted == expected(CALL, 5)[:max_tokens]
    assert request.finish_reason == ("stop" if max_tokens == len(CALL) else "length")


def test_an_end_token_may_be_forced() -> None:
    engine = make_engine(Toy(), eos_ids=[39])
    constraint, made = pattern([[7], [8], [39], ANY])
    request = one(engine, constraint=constraint, min_tokens=2)
    assert (request.output_tokens, request.finish_reason, request.stop_token) == ([7, 8], "stop", 39)
    assert made[0].accepted == [7, 8]
    assert engine.stats().tokens == 2


def test_no_output_ends_before_its_least_length_while_there_is_a_choice() -> None:
    engine = make_engine(Toy(), eos_ids=[39])
    constraint, _ = pattern([[7], [8], [38, 39], [1]], repeats=True)
    request = one(
        engine, constraint=constraint, min_tokens=10, params=SamplingParams(temperature=0), logit_bias={39: 9}
    )
    assert request.output_tokens == [7, 8, 38, 1, 7, 8, 38, 1, 7, 8]
    assert (request.finish_reason, request.stop_token) == ("stop", 39)


def test_a_constraint_may_allow_an_empty_output_only() -> None:
    engine = make_engine(toy := Toy())
    constraint, made = pattern([])
    request = one(engine, constraint=constraint, n=1)
    assert (request.output_tokens, request.finish_reason) == ([], "stop")
    assert not made[0].threads
    assert is_clean(toy)


def test_deltas_hold_sampled_and_forced_tokens() -> None:
    engine = make_engine(Toy())
    constraint, _ = pattern(CALL)
    (request,) = engine.generation(PROMPT, WARM, seed=5, constraint=constraint)
    deltas: list[Delta] = []
    request.sink, request.stream = deltas.append, True
    engine.add([request])
    run(engine)
    output = expected(CALL, 5)
    assert [delta.tokens for delta in deltas] == [output[:3], output[3:4], output[4:7], output[7:]]
    assert [delta.finish for delta in deltas] == [None, None, None, "stop"]


@kinds
def test_several_outputs_of_one_prompt_have_constraints_of_their_own(kind: type[Toy]) -> None:
    engine = make_engine(toy := kind())
    constraint, made = pattern(CALL)
    requests = add(engine, PROMPT, n=3, seed=20, constraint=constraint)
    free = add(engine, [1, 2], max_tokens=9, seed=1)[0]
    run(engine)
    for i, (request, held) in enumerate(zip(requests, made, strict=True)):
        assert request.output_tokens == held.accepted == expected(CALL, 20 + i)
    assert free.output_tokens == alone([1, 2], 9, 1)[0]
    assert is_clean(toy)


@kinds
def test_preempted_requests_go_on_and_count_their_tokens_once(kind: type[Toy]) -> None:
    engine = make_engine(toy := kind(pages=8, page_tokens=4, ctx=30))
    constraint, _ = pattern(CALL[3:], repeats=True)
    groups = [add(engine, [i] * 5, seed=i, max_tokens=20, constraint=constraint) for i in range(3)]
    run(engine)
    assert engine.stats().preemptions > 0
    for i, (request,) in enumerate(groups):
        reference = Pattern(CALL[3:], repeats=True)
        assert request.output_tokens == alone([i] * 5, 20, i, constraint=reference)[0]
    assert engine.stats().tokens == 60
    assert is_clean(toy)


def test_forced_tokens_do_not_wait_for_a_long_prompt() -> None:
    engine = make_engine(toy := Toy(pages=200, ctx=200, max_batched_tokens=8, max_logits=8))
    constraint, _ = pattern([[7], [8], [9], [1], ANY, [2], [3]], repeats=True)
    long = add(engine, [1] * 90, max_tokens=1)[0]
    engine.step()
    request = add(engine, [5], seed=1, max_tokens=14, constraint=constraint, client="other")[0]
    while request.finish_reason is None:
        engine.step()
    assert long.finish_reason is None
    assert [counts[1] for counts in toy.batches if len(counts) > 1][:4] == [1, 2, 2, 2]
    run(engine)
    assert request.output_tokens == alone([5], 14, 1, constraint=Pattern(constraint().choices, repeats=True))[0]


def test_cancelled_requests_leave_nothing() -> None:
    engine = make_engine(toy := Toy())
    constraint, made = pattern(CALL)
    requests = add(engine, PROMPT, n=2, seed=20, constraint=constraint)
    engine.step()
    engine.cancel(requests[:1])
    run(engine)
    assert (requests[0].finish_reason, requests[1].finish_reason) == ("cancelled", "stop")
    assert requests[0].output_tokens == made[0].accepted == CALL[0:1][0] + [8, 9]
    assert requests[1].output_tokens == expected(CALL, 21)
    assert is_clean(toy)


class Failing(Pattern):
    """Raises in one of its methods, at its fifth token."""

    def __init__(self, where: str) -> None:
        super().__init__([ANY], repeats=True)
        self.where = where

    def mask(self) -> Words:
        self._fail("mask")
        return super().mask()

    def accept(self, token: int) -> None:
        self._fail("accept")
        super().accept(token)

    def forced(self) -> list[int]:
        self._fail("forced")
        return []

    def _fail(self, where: str) -> None:
        if where == self.where and len(self.accepted) == 4:
            raise ValueError(f"no {where}")


@pytest.mark.parametrize("where", ["mask", "accept", "forced"])
@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_constraint_that_fails_ends_its_request_alone(where: str, runs_ahead: bool) -> None:
    toy = Toy()
    engine = make(toy)[0] if runs_ahead else make_engine(toy)
    (bad,) = add(engine, PROMPT, seed=1, max_tokens=9, constraint=lambda: Failing(where))
    good = add(engine, [1, 2], seed=2, max_tokens=9, constraint=pattern(CALL)[0])[0]
    free = add(engine, [2], seed=3, max_tokens=9)[0]
    run(engine)
    assert (bad.finish_reason, str(bad.error)) == ("error", f"no {where}")
    assert bad.output_tokens == alone(PROMPT, 4 + (where == "accept"), 1)[0]
    assert good.output_tokens == expected(CALL, 2, [1, 2])[:9]
    assert free.output_tokens == alone([2], 9, 3)[0]
    assert is_clean(toy)


class Held(Pattern):
    """Its masks wait until somebody lets them go."""

    def __init__(self) -> None:
        super().__init__([[1, 2], [3, 4]], repeats=True)
        self.gate = threading.Event()

    def mask(self) -> Words:
        assert self.gate.wait(60)
        return super().mask()


def test_a_mask_is_awaited_after_the_forward_pass() -> None:
    """The step of a request whose mask is still computed is run; only sampling waits."""

    class Opening(Toy):
        def logits(self, sums: Any, batch: Any) -> Any:
            held.gate.set()
            return super().logits(sums, batch)

    held = Held()
    engine = make_engine(toy := Opening())
    request = one(engine, seed=4, max_tokens=3, constraint=lambda: held)
    assert request.output_tokens == alone(PROMPT, 3, 4, constraint=Pattern([[1, 2], [3, 4]], repeats=True))[0]
    assert is_clean(toy)


@kinds
def test_seven_unconstrained_requests_run_ahead_beside_a_constrained_one(kind: type[Toy]) -> None:
    engine, late = make(kind(page_tokens=32, max_batched_tokens=32))
    free = [add(engine, [i, 2], seed=i, max_tokens=24)[0] for i in range(7)]
    request = add(engine, [1, 2], seed=9, constraint=pattern(CALL)[0])[0]
    run(engine)
    for i, other in enumerate(free):
        assert other.output_tokens == alone([i, 2], 24, i)[0]
    assert request.output_tokens == expected(CALL, 9, [1, 2])
    assert ahead(late) == list(range(1, 24))
    assert all(len(batch.rows) >= 7 for batch in late.batches)
    assert [len(batch.tokens) - 7 for batch in late.batches[2:7:2]] == [3, 1, 3]


def test_words_are_bits_of_tokens() -> None:
    assert words([0, 33], 40).tolist() == [1, 2]

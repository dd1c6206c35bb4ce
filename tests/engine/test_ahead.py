"""An executor that runs ahead: the next step is launched before the tokens of the last one are known."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fewbit as fb
from fewbit import devices
from fewbit.devices.cpu import CpuDevice
from fewbit.engine.engine import Engine
from fewbit.engine.request import Delta, Generation
from fewbit.engine.worker import Worker

from ..examples import examples
from .alone import WARM, alone, is_clean, make_engine, run
from .late import Late
from .speculation.guessing import Guessing
from .test_schedules import PENALTIES, VOCAB, Alternating, Job, check_schedule, guesses, jobs, toys
from .toy import HybridToy, Toy, logits_of

EXAMPLES = examples(usual=100, full=200)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
ZOO = Path(__file__).parents[1] / "zoo"

kinds = pytest.mark.parametrize("kind", [Toy, HybridToy])


def make(toy: Toy, eos_ids: Sequence[int] = (), max_seqs: int = 64) -> tuple[Engine, Late]:
    late = Late(toy, toy.cache.store)
    return make_engine(toy, eos_ids, max_seqs, late), late


def add(engine: Engine, prompt: Sequence[int], max_tokens: int, **options: Any) -> list[Generation]:
    requests = engine.generation(prompt, options.pop("params", WARM), max_tokens=max_tokens, **options)
    engine.add(requests)
    return requests


def ahead(late: Late) -> list[int]:
    """The steps that were launched before the one before was fetched."""
    places = {event: place for place, event in enumerate(late.log)}
    never = len(late.log)
    return [
        number
        for number in range(1, len(late.batches))
        if places["launch", number] < places.get(("fetch", number - 1), never)
    ]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(toy=toys, work=st.lists(jobs, min_size=1, max_size=8), max_seqs=st.integers(3, 8), guesses=guesses)
def test_any_schedule_gives_what_each_request_gives_alone(
    toy: Toy, work: list[Job], max_seqs: int, guesses: Guessing | None
) -> None:
    check_schedule(toy, Late(toy, toy.cache.store), work, max_seqs, guesses)


@kinds
def test_the_next_step_is_launched_before_one_is_fetched(kind: type[Toy]) -> None:
    engine, late = make(kind())
    requests = [add(engine, PROMPT[:i], 6, seed=i)[0] for i in (2, 3)]
    run(engine)
    events = ["launch", *["launch", "fetch"] * 5, "fetch"]
    assert [what for what, _ in late.log] == events
    assert [number for what, number in late.log if what == "fetch"] == list(range(6))
    assert [batch.tokens.tolist() for batch in late.batches[1:]] == [[-1, -2]] * 5
    for i, request in zip((2, 3), requests, strict=True):
        assert (request.output_tokens, request.finish_reason) == alone(PROMPT[:i], 6, i)
    assert engine.stats().steps == 6
    assert engine.stats().tokens == 12


@kinds
def test_chunks_of_a_prompt_are_launched_ahead_too(kind: type[Toy]) -> None:
    engine, late = make(kind(max_batched_tokens=4, page_tokens=4))
    (request,) = add(engine, PROMPT, 3, seed=1)
    run(engine)
    assert ahead(late) == [1, 2, 3, 4]
    assert request.output_tokens == alone(PROMPT, 3, 1)[0]


@kinds
def test_what_comes_after_the_end_is_thrown_away(kind: type[Toy]) -> None:
    prompt = PROMPT[:8]
    free = alone(prompt, 12, 3)[0]
    engine, late = make(toy := kind(), eos_ids=[free[4]])
    (request,) = add(engine, prompt, 12, seed=3)
    deltas: list[Delta] = []
    request.sink, request.stream = deltas.append, True
    run(engine)
    output = free[: free.index(free[4])]
    assert (request.output_tokens, request.finish_reason) == (output, "stop")
    assert [(delta.tokens, delta.finish) for delta in deltas] == [*(([token], None) for token in output), ([], "stop")]
    assert len(late.batches) == len(output) + 2  # the prompt, a step for each token, and one too many
    assert toy.cache.lookup([*prompt, *output, free[4], 0, 0, 0]) <= len(prompt) + len(output)
    assert is_clean(toy)


@kinds
def test_pages_are_given_to_others_while_a_step_still_writes_to_them(kind: type[Toy]) -> None:
    """Steps run in order: what a step writes for a request that is gone comes before what others write there."""
    engine, late = make(toy := kind(pages=6, page_tokens=4, ctx=24))
    (gone,) = add(engine, [1] * 7, 12)
    engine.step()
    engine.cancel([gone])
    late_slots = set(late.batches[1].view.slots(0).tolist())
    (request,) = add(engine, [2] * 7, 12, seed=5)
    engine.step()
    assert ("fetch", 1) in late.log
    assert late_slots & set(late.batches[2].view.slots(0).tolist())
    run(engine)
    assert (request.output_tokens, request.finish_reason) == alone([2] * 7, 12, 5)
    assert is_clean(toy)


def test_a_constraint_sees_each_token_first() -> None:
    engine, late = make(Toy(vocab=VOCAB))
    (free,) = add(engine, [1, 2], 4, seed=1)
    (request,) = add(engine, [1, 2], 8, seed=2, constraint=Alternating)
    run(engine)
    assert request.output_tokens == alone([1, 2], 8, 2, vocab=VOCAB, constraint=Alternating())[0]
    assert free.output_tokens == alone([1, 2], 4, 1, vocab=VOCAB)[0]
    masked = [any(one.mask is not None for _, one in batch.samples) for batch in late.batches]
    assert [step for step in range(1, len(masked)) if masked[step] and masked[step - 1] and step in ahead(late)] == []


@kinds
def test_a_constrained_request_sits_out_steps_that_the_others_run_ahead(kind: type[Toy]) -> None:
    engine, late = make(kind(vocab=VOCAB))
    free = [add(engine, [i, 2], 12, seed=i)[0] for i in range(7)]
    (request,) = add(engine, [1, 2], 6, seed=9, constraint=Alternating)
    run(engine)
    for i, one in enumerate(free):
        assert one.output_tokens == alone([i, 2], 12, i, vocab=VOCAB)[0]
    assert request.output_tokens == alone([1, 2], 6, 9, vocab=VOCAB, constraint=Alternating())[0]
    assert ahead(late) == list(range(1, 12))
    assert [len(batch.rows) for batch in late.batches] == [8, 7] * 5 + [8, 7]


def test_a_scored_text_sits_out_while_an_output_goes_on() -> None:
    engine, late = make(toy := Toy(max_batched_tokens=8, max_logits=8))
    (request,) = add(engine, [1], 12, seed=3)
    scoring = engine.scoring(PROMPT)
    engine.add([scoring])
    run(engine)
    assert request.output_tokens == alone([1], 12, 3)[0]
    wanted = fb.ops.sampling.log_probabilities(logits_of(PROMPT)[:-1], PROMPT[1:])
    np.testing.assert_array_equal(scoring.scores.values, wanted)
    assert ahead(late) == list(range(1, 12))
    assert [len(batch.rows) for batch in late.batches[:4]] == [2, 1, 2, 1]
    assert is_clean(toy)


def test_penalties_count_the_token_that_is_not_known_yet() -> None:
    engine, late = make(Toy(vocab=VOCAB))
    add(engine, [7], 9)
    (request,) = add(engine, [1, 2], 9, seed=2, params=PENALTIES)
    run(engine)
    assert request.output_tokens == alone([1, 2], 9, 2, params=PENALTIES, vocab=VOCAB)[0]
    lasts = [[one.last for _, one in batch.samples] for batch in late.batches[:3]]
    assert lasts == [[None, None], [None, 1], [None, 1]]


def test_outputs_of_one_prompt_part_before_they_go_on() -> None:
    engine, late = make(toy := Toy())
    requests = add(engine, PROMPT, 6, n=3, seed=20)
    run(engine)
    for i, request in enumerate(requests):
        assert (request.output_tokens, request.finish_reason) == alone(PROMPT, 6, 20 + i)
    assert ahead(late) == [2, 3, 4, 5]
    assert toy.cache.lookup(PROMPT) == 8
    assert is_clean(toy)


def test_some_of_several_outputs_are_cancelled_while_the_prompt_is_in_flight() -> None:
    for gone in ([0], [1], [0, 2], [0, 1, 2]):
        engine, late = make(toy := Toy(max_batched_tokens=5))
        requests = add(engine, PROMPT, 6, n=3, seed=20)
        engine.step()
        assert late.log == [("launch", 0), ("launch", 1), ("fetch", 0)]
        engine.cancel([requests[i] for i in gone])
        run(engine)
        for i, request in enumerate(requests):
            wanted = ([], "cancelled") if i in gone else alone(PROMPT, 6, 20 + i)
            assert (request.output_tokens, request.finish_reason) == wanted
        assert is_clean(toy)


@kinds
def test_a_deadline_while_a_step_is_in_flight(kind: type[Toy]) -> None:
    toy, clock = kind(), itertools.count()
    engine = Engine(Late(toy, toy.cache.store), toy.cache, toy.ctx, clock=clock.__next__)
    late, other = add(engine, PROMPT, 40, deadline=12), add(engine, [2], 9, seed=4)
    run(engine)
    assert late[0].finish_reason == "deadline"
    assert late[0].output_tokens
    assert other[0].output_tokens == alone([2], 9, 4)[0]
    assert is_clean(toy)


@kinds
def test_nobody_is_preempted_while_a_step_is_in_flight(kind: type[Toy], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, late = make(toy := kind(pages=8, page_tokens=4, ctx=30))
    preempt = engine._scheduler.preempt

    def checked() -> None:
        assert [what for what, _ in late.log].count("fetch") == len(late.batches)
        preempt()

    monkeypatch.setattr(engine._scheduler, "preempt", checked)
    requests = [add(engine, [i] * 5, 20, seed=i)[0] for i in range(3)]
    run(engine)
    assert engine.stats().preemptions > 0
    assert ahead(late)
    for i, request in enumerate(requests):
        assert (request.output_tokens, request.finish_reason) == alone([i] * 5, 20, i, limit=30)
    assert is_clean(toy)


def test_a_step_that_cannot_be_launched_ahead_is_tried_again() -> None:
    engine, late = make(toy := Toy())
    requests = [add(engine, [i] * 5, 9, seed=i)[0] for i in range(2)]
    engine.step()
    late.errors.append(RuntimeError("no luck"))
    engine.step()
    run(engine)
    for i, request in enumerate(requests):
        assert (request.output_tokens, request.finish_reason) == alone([i] * 5, 9, i)
    assert is_clean(toy)


@kinds
def test_a_step_that_fails_ends_its_requests_and_the_next_one_is_given_up(kind: type[Toy]) -> None:
    engine, _ = make(toy := kind(max_batched_tokens=8))
    first = add(engine, [1] * 8, 9)
    engine.step()
    other = add(engine, [2] * 3, 9, seed=4)  # comes with the step after the one that fails
    toy.errors.append(RuntimeError("no luck"))
    engine.step()
    assert (first[0].finish_reason, str(first[0].error)) == ("error", "no luck")
    assert len(first[0].output_tokens) == 1
    run(engine)
    assert (other[0].output_tokens, other[0].finish_reason) == alone([2] * 3, 9, 4)
    assert is_clean(toy)


def test_a_row_that_cannot_be_sampled_ends_its_request_alone() -> None:
    engine, _ = make(toy := Toy())
    logits = toy.logits

    def spoiled(sums: Any, batch: Any) -> Any:
        rows = logits(sums, batch)
        if len(rows) == 2:
            rows[0] = np.nan
        return rows

    toy.logits = spoiled  # type: ignore[method-assign]
    bad, good = add(engine, [1], 9), add(engine, [2], 9, seed=4)
    run(engine)
    assert bad[0].finish_reason == "error"
    assert good[0].output_tokens == alone([2], 9, 4)[0]
    assert is_clean(toy)


def test_all_fail_and_nothing_is_left_running() -> None:
    engine, late = make(toy := Toy())
    requests = add(engine, PROMPT, 9)
    engine.step()
    engine.fail(RuntimeError("closed"))
    assert requests[0].finish_reason == "error"
    assert late.log[-1] == ("fetch", len(late.batches) - 1)
    assert not engine.step()
    assert is_clean(toy)


def test_a_worker_that_is_closed_leaves_nothing_running() -> None:
    engine, late = make(toy := Toy(ctx=64))
    worker = Worker(engine)
    requests = engine.generation(PROMPT, WARM)
    worker.submit(requests, lambda event: None)
    worker.close()
    assert requests[0].finish_reason in ("error", "length")
    assert [what for what, _ in late.log].count("fetch") == len(late.batches)
    assert is_clean(toy)


def test_scores_and_rows_beside_outputs() -> None:
    engine, _ = make(toy := Toy(max_batched_tokens=16, max_logits=8))
    text = [i * i % 40 for i in range(30)]
    (request,) = add(engine, PROMPT, 20, seed=8, logprobs=2)
    scoring, embedding = engine.scoring(text), engine.embedding(text)
    engine.add([scoring])
    engine.add([embedding])
    run(engine)
    assert request.output_tokens == alone(PROMPT, 20, 8)[0]
    own = fb.ops.sampling.log_probabilities(logits_of(request.tokens)[9:-1], request.output_tokens)
    assert [one.own for one in request.logprobs] == own.tolist()
    np.testing.assert_array_equal(
        scoring.scores.values, fb.ops.sampling.log_probabilities(logits_of(text)[:-1], text[1:])
    )
    assert embedding.hidden is not None
    assert len(embedding.hidden) == len(text)
    assert is_clean(toy)


def test_a_prompt_that_begins_alike_waits_until_the_pages_are_there() -> None:
    engine, late = make(Toy(pages=400, page_tokens=4, ctx=500, max_batched_tokens=16, max_logits=16))
    prompt = list(range(33))
    first = add(engine, prompt, 3, seed=0)[0]
    second = add(engine, [*prompt, 5], 3, seed=1)[0]
    run(engine)
    assert second.cached_tokens == 33
    assert first.output_tokens == alone(prompt, 3)[0]
    assert second.output_tokens == alone([*prompt, 5], 3, 1)[0]
    assert len(ahead(late)) == len(late.batches) - 1


class LateDevice(CpuDevice):
    """The CPU, as if it ran ahead."""

    def make_executor(self, graph: Any, store: Any, vocab: int) -> Any:
        return Late(super().make_executor(graph, store, vocab), store)


@pytest.fixture
def late_device() -> Iterator[str]:
    devices.register("late", LateDevice)
    yield "late"
    devices.unregister("late")


@pytest.mark.parametrize("name", ["llama", "qwen35"])
def test_texts_of_a_model_are_the_same(name: str, late_device: str) -> None:
    prompts = ["the sky is blue", "the sky is", "a"]
    texts = []
    for device in ("cpu", late_device):
        with fb.LLM(ZOO / name / "model.gguf", batch_invariant=True, device=device) as llm:
            several = llm.generate(prompts, max_tokens=12, seed=1, temperature=0.8)
            stop = several[0].text[3:5]
            stopped = llm.generate(prompts[0], max_tokens=12, seed=1, temperature=0.8, stop=[stop])
            texts.append([*(one.text for one in several), stopped.text, stopped.finish_reason])
            assert llm.loaded.executor.runs_ahead == (device == "late")
    assert texts[0] == texts[1]
    assert texts[0][3] == texts[0][0].split(stop)[0]

"""Drafts in an engine: fewer steps, the same text. tests/engine/test_schedules.py tries them in any schedule."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fewbit.engine.engine import Engine
from fewbit.engine.request import Generation
from fewbit.engine.speculation.draft_model import ModelDrafter
from fewbit.engine.speculation.drafter import Drafter
from fewbit.engine.speculation.speculation import Speculation
from fewbit.errors import RequestError

from ..alone import WARM, alone, is_clean, run
from ..toy import HybridToy, Toy
from .guessing import Guessing

PROMPT = [3, 1, 4, 1, 5]
kinds = pytest.mark.parametrize("kind", [Toy, HybridToy])


def make(toy: Toy, drafter: Drafter, is_adaptive: bool = False) -> Engine:
    return Engine(toy, toy.cache, toy.ctx, speculation=Speculation(drafter, is_adaptive))


@kinds
def test_right_guesses_save_steps(kind: type[Toy]) -> None:
    toy = kind()
    drafter = Guessing(toy.vocab, chance=1.0, max_tokens=4)
    engine = make(toy, drafter)
    requests = [engine.generation(PROMPT[:i], WARM, max_tokens=20, seed=i)[0] for i in (2, 5)]
    for request in requests:
        engine.add([request])
    run(engine)
    stats = engine.stats()
    for i, request in zip((2, 5), requests, strict=True):
        assert (request.output_tokens, request.finish_reason) == alone(PROMPT[:i], 20, i)
        assert request.draft_tokens == request.accepted_tokens > 5
    assert stats.draft_tokens == stats.accepted_tokens == sum(one.accepted_tokens for one in requests)
    assert stats.steps < 20
    assert stats.tokens == 40
    assert {*drafter.finished} == {*requests}
    assert is_clean(toy)


@kinds
def test_wrong_guesses_change_nothing(kind: type[Toy]) -> None:
    toy = kind()
    engine = make(toy, Guessing(toy.vocab, chance=0.0, max_tokens=3))
    (request,) = engine.generation(PROMPT, WARM, max_tokens=20, seed=7, logprobs=2)
    engine.add([request])
    run(engine)
    assert (request.output_tokens, request.finish_reason) == alone(PROMPT, 20, 7)
    assert request.draft_tokens > request.accepted_tokens
    assert len(request.logprobs) == 20
    assert is_clean(toy)


def test_bad_guesses_are_given_up() -> None:
    toy = Toy(ctx=200, pages=200)
    engine = make(toy, Guessing(toy.vocab, chance=0.0, max_tokens=3), is_adaptive=True)
    (request,) = engine.generation(PROMPT, WARM, max_tokens=190, seed=7)
    engine.add([request])
    run(engine)
    assert request.output_tokens == alone(PROMPT, 190, 7, limit=200)[0]
    assert request.draft_tokens < 190


def test_a_model_that_drafts_for_itself_is_always_right() -> None:
    toy, small = Toy(), Toy()
    engine = make(toy, ModelDrafter(small, small.cache, toy.vocab, max_tokens=3))
    requests = [engine.generation(PROMPT[:i], WARM, max_tokens=20, seed=i)[0] for i in (1, 3, 5)]
    for request in requests:
        engine.add([request])
    run(engine)
    for i, request in zip((1, 3, 5), requests, strict=True):
        assert request.output_tokens == alone(PROMPT[:i], 20, i)[0]
        assert request.draft_tokens == request.accepted_tokens > 10
    assert is_clean(toy)
    assert is_clean(small)


def test_a_draft_model_may_run_out_of_pages() -> None:
    toy, small = Toy(), Toy(pages=3)
    engine = make(toy, ModelDrafter(small, small.cache, toy.vocab, max_tokens=3))
    requests = [engine.generation(PROMPT[:i], WARM, max_tokens=20, seed=i)[0] for i in (1, 3, 5)]
    for request in requests:
        engine.add([request])
    run(engine)
    for i, request in zip((1, 3, 5), requests, strict=True):
        assert request.output_tokens == alone(PROMPT[:i], 20, i)[0]
    assert is_clean(small)


def test_a_draft_model_with_recurrent_layers_is_refused() -> None:
    small = HybridToy()
    with pytest.raises(RequestError, match="recurrent layers"):
        ModelDrafter(small, small.cache, 40)


def test_a_drafter_that_fails_ends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(requests: Sequence[Generation], lengths: Sequence[int]) -> list[Sequence[int]]:
        raise RuntimeError("the draft model is gone")

    toy = Toy()
    drafter = Guessing(toy.vocab)
    monkeypatch.setattr(drafter, "propose", fail)
    engine = make(toy, drafter)
    (request,) = engine.generation(PROMPT, WARM, max_tokens=20, seed=7)
    engine.add([request])
    with pytest.warns(RuntimeWarning, match="nothing is guessed any more: the draft model is gone"):
        run(engine)
    assert (request.output_tokens, request.finish_reason) == alone(PROMPT, 20, 7)
    assert is_clean(toy)


def test_what_guessing_takes_is_no_cost_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only guesses let go on, each by a millisecond."""
    now = [0.0]

    class Slow(Guessing):
        def propose(self, requests: Sequence[Generation], lengths: Sequence[int]) -> list[Sequence[int]]:
            now[0] += 0.001
            return super().propose(requests, lengths)

    for module in ("engine", "speculation.speculation"):
        monkeypatch.setattr(f"fewbit.engine.{module}.perf_counter", lambda: now[0])
    toy = Toy()
    engine = make(toy, Slow(toy.vocab, chance=0.5, max_tokens=3))
    (request,) = engine.generation(PROMPT, WARM, max_tokens=30, seed=1)
    engine.add([request])
    run(engine)
    assert now[0] > 0.005
    assert engine._speculation is not None
    assert engine._speculation.costs._times
    assert all(seconds < 1e-9 for seconds, _ in engine._speculation.costs._times.values())

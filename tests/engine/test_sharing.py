"""Prompts that begin alike and come together are computed once."""

from __future__ import annotations

import pytest

from .alone import WARM, alone, is_clean, make_engine, run
from .toy import HybridToy, Toy

PREFIX = [i * i % 37 for i in range(1024)]


@pytest.mark.parametrize("kind", [Toy, HybridToy])
def test_32_prompts_with_one_long_beginning_compute_it_once(kind: type[Toy]) -> None:
    toy = kind(pages=400, page_tokens=32, ctx=1200, max_batched_tokens=256, max_logits=64)
    engine = make_engine(toy)
    prompts = [[*PREFIX, i, *range(20)] for i in range(32)]
    requests = [engine.generation(prompt, WARM, max_tokens=3, seed=i)[0] for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.add([request])
    run(engine)
    assert engine.stats().prompt_tokens <= 1024 + 32 * 21 + 32
    for i, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
        assert (request.output_tokens, request.finish_reason) == alone(prompt, 3, i, limit=1200)
        assert request.cached_tokens == (1024 if i else 0)
    assert is_clean(toy)


def test_others_go_past_those_that_follow() -> None:
    engine = make_engine(toy := Toy(pages=400, page_tokens=4, ctx=500, max_batched_tokens=16, max_logits=16))
    first, second = (engine.generation([*PREFIX[:200], i], WARM, max_tokens=1)[0] for i in range(2))
    other = engine.generation([5, 6], WARM, max_tokens=1, client="other")[0]
    for request in (first, second, other):
        engine.add([request])
    engine.step()
    engine.step()
    assert (other.finish_reason, second.sequence) == ("length", 0)
    run(engine)
    assert sum(map(sum, toy.batches)) == 201 + 1 + 2


def test_when_the_first_is_cancelled_the_next_one_goes_on_from_there() -> None:
    engine = make_engine(toy := Toy(pages=400, page_tokens=4, ctx=500, max_batched_tokens=16, max_logits=16))
    requests = [engine.generation([*PREFIX[:200], i], WARM, max_tokens=2, seed=i)[0] for i in range(3)]
    for request in requests:
        engine.add([request])
    for _ in range(5):
        engine.step()
    engine.cancel(requests[:1])
    run(engine)
    assert engine.stats().prompt_tokens == 80 + 121 + 1
    for i in (1, 2):
        assert requests[i].output_tokens == alone([*PREFIX[:200], i], 2, i, limit=500)[0]
    assert is_clean(toy)


def test_nobody_follows_a_request_of_a_lower_priority_or_another_namespace() -> None:
    engine = make_engine(Toy(pages=400, page_tokens=4, ctx=500, max_batched_tokens=16, max_logits=16))
    low = engine.generation(PREFIX[:200], WARM, max_tokens=1, priority=-1)[0]
    engine.add([low])
    engine.step()
    others = [
        engine.generation(PREFIX[:200], WARM, max_tokens=1, client="b")[0],
        engine.generation(PREFIX[:200], WARM, max_tokens=1, client="c", namespace="c")[0],
    ]
    for other in others:
        engine.add([other])
        engine.step()
        assert other.sequence
    run(engine)
    assert all(request.finish_reason == "length" for request in (low, *others))

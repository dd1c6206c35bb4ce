"""The engine on a toy executor: batches, chunks, forks, preemption, cancelling, errors."""

from __future__ import annotations

import numpy as np
import pytest

from fewbit.engine.request import Delta
from fewbit.errors import DtypeError, FewbitError, OutOfPages, RequestError
from fewbit.ops import sampling
from fewbit.ops.sampling import SamplingParams

from .alone import WARM, alone, is_clean, make_engine, run
from .toy import Toy, logits_of

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def test_one_request_gives_what_the_whole_text_gives() -> None:
    engine = make_engine(toy := Toy())
    requests = engine.generation(PROMPT, WARM, max_tokens=12, seed=7)
    engine.add(requests)
    run(engine)
    assert (requests[0].output_tokens, requests[0].finish_reason) == alone(PROMPT, 12, 7)
    assert toy.batches == [[10], *[[1]] * 11]
    assert is_clean(toy)


def test_requests_run_together_as_they_would_alone() -> None:
    engine = make_engine(toy := Toy(), eos_ids=[7])
    prompts = [PROMPT[:length] for length in range(1, 9)]
    requests = [engine.generation(prompt, WARM, max_tokens=9, seed=i)[0] for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.add([request])
    run(engine)
    for i, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
        assert (request.output_tokens, request.finish_reason) == alone(prompt, 9, i, eos_ids=[7])
    assert max(map(len, toy.batches)) == 8


def test_prompts_come_in_chunks_behind_the_tokens_of_those_who_write() -> None:
    engine = make_engine(toy := Toy(max_batched_tokens=8))
    writing, reading = (
        engine.generation([1], WARM, max_tokens=9)[0],
        engine.generation(range(20), WARM, max_tokens=1)[0],
    )
    engine.add([writing])
    engine.step()
    engine.add([reading])
    run(engine)
    assert toy.batches[:4] == [[1], [1, 7], [1, 7], [1, 6]]
    assert (reading.output_tokens, reading.finish_reason) == (reading.tokens[20:], "length")


def test_a_prompt_that_is_known_is_not_run_again() -> None:
    engine = make_engine(toy := Toy(page_tokens=4))
    first = engine.generation(PROMPT, WARM, max_tokens=1)[0]
    engine.add([first])
    run(engine)
    again = engine.generation([*PROMPT[:8], 30, 31], WARM, max_tokens=3, seed=1)[0]
    engine.add([again])
    run(engine)
    assert (first.cached_tokens, again.cached_tokens) == (0, 8)
    assert toy.batches[1] == [2]
    assert again.output_tokens == alone([*PROMPT[:8], 30, 31], 3, 1)[0]


def test_the_last_token_of_a_known_prompt_is_run() -> None:
    engine = make_engine(toy := Toy(page_tokens=4))
    for _ in range(2):
        request = engine.generation(PROMPT[:8], WARM, max_tokens=2, seed=5)[0]
        engine.add([request])
        run(engine)
        assert request.output_tokens == alone(PROMPT[:8], 2, 5)[0]
    assert request.cached_tokens == 4
    assert toy.batches[2] == [4]


def test_several_outputs_share_one_prompt() -> None:
    engine = make_engine(toy := Toy())
    requests = engine.generation(PROMPT, WARM, max_tokens=6, n=4, seed=20)
    engine.add(requests)
    run(engine)
    assert toy.batches == [[10], *[[1, 1, 1, 1]] * 5]
    for i, request in enumerate(requests):
        assert (request.output_tokens, request.finish_reason) == alone(PROMPT, 6, 20 + i)
        assert request.prompt_tokens == 10
    assert is_clean(toy)


def test_some_of_several_outputs_are_cancelled_before_the_prompt_was_run() -> None:
    for gone in ([0], [1], [0, 2], [0, 1, 2]):
        engine = make_engine(toy := Toy(max_batched_tokens=4))
        requests = engine.generation(PROMPT, WARM, max_tokens=6, n=3, seed=20)
        engine.add(requests)
        engine.step()
        engine.cancel([requests[i] for i in gone])
        run(engine)
        for i, request in enumerate(requests):
            wanted = ([], "cancelled") if i in gone else alone(PROMPT, 6, 20 + i)
            assert (request.output_tokens, request.finish_reason) == wanted
        assert is_clean(toy)


def test_the_youngest_gives_way_and_loses_nothing() -> None:
    engine = make_engine(toy := Toy(pages=8, page_tokens=4, ctx=30))
    requests = [engine.generation([i] * 5, WARM, max_tokens=20, seed=i)[0] for i in range(3)]
    for request in requests:
        engine.add([request])
    run(engine)
    assert engine.stats().preemptions > 0
    assert requests[0].finish_time < requests[1].finish_time < requests[2].finish_time
    for i, request in enumerate(requests):
        assert (request.output_tokens, request.finish_reason) == alone([i] * 5, 20, i, limit=30)
    assert is_clean(toy)


def test_pages_that_somebody_pinned() -> None:
    """The scheduler counts on available pages; when they are fewer than it thought, the youngest waits."""
    engine = make_engine(toy := Toy(pages=6, page_tokens=4, ctx=24))
    mine = toy.cache.new()
    first = engine.generation([1] * 5, WARM, max_tokens=12, seed=1)[0]
    second = engine.generation([2] * 5, WARM, max_tokens=12, seed=2)[0]
    engine.add([first])
    engine.add([second])
    engine.step()
    toy.errors.append(OutOfPages(1, 0))
    engine.step()
    assert engine.stats().active == 1
    assert engine.stats().waiting == 1
    run(engine)
    assert first.output_tokens == alone([1] * 5, 12, 1)[0]
    assert second.output_tokens == alone([2] * 5, 12, 2)[0]
    toy.cache.free(mine)


def test_when_nobody_can_make_room_the_request_fails() -> None:
    engine = make_engine(toy := Toy(pages=6, page_tokens=4, ctx=24))
    mine = toy.cache.new()
    toy.cache.reserve([(mine, 12)])
    request = engine.generation([1] * 5, WARM, max_tokens=12)[0]
    engine.add([request])
    run(engine)
    assert request.finish_reason == "error"
    assert isinstance(request.error, OutOfPages)
    assert len(request.output_tokens) == 8
    toy.cache.free(mine)
    assert is_clean(toy)


def test_the_context_is_full() -> None:
    engine = make_engine(Toy(ctx=14))
    request = engine.generation(PROMPT, WARM)[0]
    engine.add([request])
    run(engine)
    assert (len(request.tokens), request.finish_reason) == (14, "length")


def test_the_cache_is_smaller_than_the_context() -> None:
    engine = make_engine(Toy(ctx=100, pages=3, page_tokens=4))
    request = engine.generation(PROMPT, WARM)[0]
    engine.add([request])
    run(engine)
    assert (len(request.tokens), request.finish_reason) == (12, "length")
    with pytest.raises(RequestError, match="a prompt of 12 tokens leaves no room for an output: the cache holds 12"):
        engine.generation(range(12))


def test_an_end_token_is_no_part_of_the_output() -> None:
    free = alone(PROMPT, 12, 3)[0]
    engine = make_engine(toy := Toy(), eos_ids=[free[4]])
    request = engine.generation(PROMPT, WARM, max_tokens=12, seed=3)[0]
    engine.add([request])
    run(engine)
    assert (request.output_tokens, request.finish_reason) == (free[: free.index(free[4])], "stop")
    assert is_clean(toy)


def test_penalties_see_the_prompt_and_the_output() -> None:
    params = SamplingParams(
        temperature=1.5,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        repetition_penalty=1.7,
        presence_penalty=0.5,
        frequency_penalty=0.9,
    )
    engine = make_engine(Toy(pages=6, page_tokens=4, vocab=12))
    requests = [engine.generation([i, 3, 3], params, max_tokens=15, seed=i)[0] for i in range(3)]
    other = engine.generation([7], WARM, max_tokens=15, seed=9)[0]
    for request in (*requests, other):
        engine.add([request])
    run(engine)
    for i, request in enumerate(requests):
        assert request.output_tokens == alone([i, 3, 3], 15, i, params=params, vocab=12, limit=24)[0]
    assert other.output_tokens == alone([7], 15, 9, vocab=12)[0]


def test_deltas() -> None:
    """A stream gets its tokens step by step, all others get them together at the end."""
    engine = make_engine(Toy())
    streamed, last = (
        engine.generation(PROMPT, WARM, max_tokens=3, seed=1)[0],
        engine.generation([1], WARM, max_tokens=3)[0],
    )
    deltas: list[Delta] = []
    streamed.sink = last.sink = deltas.append
    streamed.stream = True
    engine.add([streamed])
    engine.add([last])
    run(engine)
    first, second, third = streamed.output_tokens
    assert [delta[1:] for delta in deltas if delta.request is streamed] == [
        ([first], None), ([second], None), ([third], "length"),
    ]  # fmt: skip
    assert [delta[1:] for delta in deltas if delta.request is last] == [(last.output_tokens, "length")]


def test_a_sink_that_fails_cancels_its_request() -> None:
    engine = make_engine(toy := Toy())
    deaf, other = (
        engine.generation(PROMPT, WARM, max_tokens=3)[0],
        engine.generation([1], WARM, max_tokens=3, seed=2)[0],
    )
    deaf.sink, deaf.stream = lambda delta: 1 / 0, True
    engine.add([deaf])
    engine.add([other])
    run(engine)
    assert deaf.finish_reason == "cancelled"
    assert other.output_tokens == alone([1], 3, 2)[0]
    assert is_clean(toy)


def test_an_error_in_a_step_ends_its_requests_and_no_others() -> None:
    engine = make_engine(toy := Toy(), max_seqs=2)
    failing = engine.generation(PROMPT, WARM, n=2)
    waiting = engine.generation(PROMPT, WARM, max_tokens=4, seed=3)[0]
    engine.add(failing)
    engine.add([waiting])
    toy.errors.append(RuntimeError("no luck"))
    run(engine)
    assert [request.finish_reason for request in failing] == ["error", "error"]
    assert all(isinstance(request.error, RuntimeError) for request in failing)
    assert waiting.output_tokens == alone(PROMPT, 4, 3)[0]
    assert is_clean(toy)


def test_an_error_while_sampling_ends_the_requests_too() -> None:
    engine = make_engine(toy := Toy(vocab=40))
    request = engine.generation(PROMPT, WARM)[0]
    engine.add([request])
    engine.step()
    toy.logits = lambda sums, batch: np.full((len(sums), 40), np.nan, np.float32)  # type: ignore[method-assign]
    run(engine)
    assert request.finish_reason == "error"
    assert is_clean(toy)


def test_cancel_at_any_time() -> None:
    for when in range(6):
        engine = make_engine(toy := Toy(max_batched_tokens=4))
        request, other = (
            engine.generation(PROMPT, WARM, max_tokens=4)[0],
            engine.generation([2], WARM, max_tokens=9, seed=4)[0],
        )
        engine.add([request])
        engine.add([other])
        for _ in range(when):
            engine.step()
        engine.cancel([request, request])
        run(engine)
        assert request.finish_reason == "cancelled"
        assert other.output_tokens == alone([2], 9, 4)[0]
        assert is_clean(toy)


def test_cancel_after_the_end_changes_nothing() -> None:
    engine = make_engine(Toy())
    request = engine.generation(PROMPT, WARM, max_tokens=1)[0]
    engine.add([request])
    run(engine)
    engine.cancel([request])
    assert request.finish_reason == "length"


def test_no_more_requests_at_once_than_there_is_room_for() -> None:
    engine = make_engine(toy := Toy(), max_seqs=3)
    for i in range(5):
        engine.add(engine.generation([i], WARM, max_tokens=4, n=2))
    run(engine)
    assert max(map(len, toy.batches)) == 2
    with pytest.raises(RequestError, match="n must be from 1 to 3, got 4"):
        engine.generation([1], n=4)


@pytest.mark.parametrize("length", [1, 2, 3, 17, 64])
def test_scores(length: int) -> None:
    text = [i * i % 40 for i in range(length)]
    engine = make_engine(toy := Toy(max_batched_tokens=16, max_logits=8))
    other = engine.generation(PROMPT, WARM, max_tokens=20, seed=8)[0]
    scoring = engine.scoring(text)
    engine.add([other])
    engine.add([scoring])
    run(engine)
    wanted = sampling.log_probabilities(logits_of(text)[:-1], text[1:])
    assert scoring.finish_reason == "stop"
    np.testing.assert_array_equal(scoring.scores.values, wanted)
    assert other.output_tokens == alone(PROMPT, 20, 8)[0]
    assert is_clean(toy)


def test_scores_when_pages_run_out() -> None:
    text = [i * i % 40 for i in range(20)]
    engine = make_engine(toy := Toy(pages=6, page_tokens=4, ctx=24, max_batched_tokens=6))
    writing = engine.generation([1, 2, 3], WARM, max_tokens=20, seed=1)[0]
    scoring = engine.scoring(text)
    engine.add([writing])
    engine.add([scoring])
    run(engine)
    np.testing.assert_array_equal(scoring.scores.values, sampling.log_probabilities(logits_of(text)[:-1], text[1:]))
    assert writing.output_tokens == alone([1, 2, 3], 20, 1)[0]
    assert is_clean(toy)


def test_logprobs() -> None:
    engine = make_engine(Toy())
    requests = engine.generation(PROMPT, WARM, max_tokens=4, seed=2, logprobs=3, n=2)
    plain = engine.generation(PROMPT, WARM, max_tokens=4, seed=2, logprobs=0)
    engine.add(requests)
    engine.add(plain)
    run(engine)
    for request in requests:
        logits = logits_of(request.tokens)[len(PROMPT) - 1 : -1]
        own = sampling.log_probabilities(logits, request.output_tokens)
        assert [one.own for one in request.logprobs] == own.tolist()
        for row, one in zip(logits, request.logprobs, strict=True):
            tokens, logprobs = sampling.top_tokens(row, 3)
            assert one.tokens.tolist() == tokens.tolist()
            assert one.logprobs.tolist() == logprobs.tolist()
    assert [one.own for one in plain[0].logprobs] == [one.own for one in requests[0].logprobs]
    assert [len(one.tokens) for one in plain[0].logprobs] == [0] * 4


def test_stats() -> None:
    engine = make_engine(Toy(page_tokens=4))
    for _ in range(2):
        engine.add(engine.generation(PROMPT, WARM, max_tokens=3, seed=1))
        run(engine)
    stats = engine.stats()
    assert (stats.steps, stats.tokens, stats.prompt_tokens) == (6, 6, 12)
    assert stats.step_seconds >= stats.launch_seconds + stats.fetch_seconds > 0
    assert stats.active == stats.waiting == stats.preemptions == 0


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"prompt": []}, RequestError, "the text is empty: it has no tokens"),
        ({"prompt": [1, 40]}, RequestError, "tokens must be from 0 to 39, got 40"),
        ({"prompt": [-1]}, FewbitError, "tokens must be from 0"),
        ({"prompt": [0.5]}, DtypeError, "tokens must be integers"),
        ({"prompt": "text"}, DtypeError, "tokens must be integers"),
        (
            {"prompt": [1] * 64},
            RequestError,
            "a prompt of 64 tokens leaves no room for an output: the context holds 64",
        ),
        ({"max_tokens": 0}, RequestError, "max_tokens must be at least 1, got 0"),
        ({"max_tokens": 1.5}, DtypeError, "max_tokens must be an integer, not float"),
        ({"n": 0}, RequestError, "n must be from 1 to 16, got 0"),
        ({"seed": -1}, RequestError, "seed must be at least 0, got -1"),
        ({"seed": "1"}, DtypeError, "seed must be an integer, not str"),
        ({"logprobs": -1}, RequestError, "logprobs must be from 0 to 40, the size of the vocabulary, got"),
        ({"logprobs": 41}, RequestError, "logprobs must be from 0 to 40, the size of the vocabulary, got"),
    ],
)
def test_what_is_refused(arguments: dict[str, object], kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        make_engine(Toy()).generation(**{"prompt": [1], **arguments})  # type: ignore[arg-type]


def test_a_text_to_score_that_is_refused() -> None:
    engine = make_engine(Toy())
    with pytest.raises(RequestError, match="a text of 65 tokens is too long: the context holds 64"):
        engine.scoring([1] * 65)
    with pytest.raises(RequestError, match="it has no tokens"):
        engine.scoring([])


def test_without_a_seed_outputs_differ() -> None:
    engine = make_engine(Toy())
    requests = engine.generation(PROMPT, WARM, max_tokens=20, n=2)
    engine.add(requests)
    run(engine)
    assert requests[0].output_tokens != requests[1].output_tokens

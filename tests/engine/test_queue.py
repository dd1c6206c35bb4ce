"""Who is next: priorities, clients, aging, deadlines, limits and who is preempted."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from fewbit.engine.engine import Engine
from fewbit.engine.queue import AGING_SECONDS
from fewbit.engine.request import Request
from fewbit.engine.worker import Worker
from fewbit.errors import DtypeError, QueueFull, RequestError

from .alone import WARM, alone, is_clean, run
from .toy import Toy


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(toy: Toy, clock: Clock | None = None, max_seqs: int = 1, **limits: Any) -> Engine:
    return Engine(toy, toy.cache, toy.ctx, (), max_seqs=max_seqs, clock=clock or Clock(), **limits)


def ask(engine: Engine, prompt: list[int], max_tokens: int = 4, **terms: Any) -> Request:
    request = engine.generation(prompt, WARM, max_tokens=max_tokens, seed=1, **terms)[0]
    engine.add([request])
    return request


def order(engine: Engine, requests: dict[str, Request]) -> list[str]:
    """The names of requests in the order in which they end."""
    ended: list[str] = []
    for name, request in requests.items():
        request.sink = lambda delta, name=name: ended.append(name) if delta.finish else None
    run(engine)
    return ended


def test_higher_priorities_come_first_and_equal_ones_as_they_came() -> None:
    engine = make(Toy())
    requests = {
        str(i): ask(engine, [i], priority=priority, client=str(i)) for i, priority in enumerate([0, -1, 5, 0, 5])
    }
    assert order(engine, requests) == ["2", "4", "0", "3", "1"]


def test_a_client_with_one_request_does_not_wait_for_the_hundred_of_another() -> None:
    engine = make(Toy(), max_seqs=2)
    many = {f"a{i}": ask(engine, [i % 40, 7], client="a") for i in range(100)}
    engine.step()
    one = {"b": ask(engine, [1, 2], client="b")}
    ended = order(engine, many | one)
    assert ended.index("b") <= 3
    assert len(ended) == 101


def test_clients_that_wait_for_each_other_get_the_same_number_of_tokens() -> None:
    engine = make(Toy(), max_seqs=1)
    long = {f"a{i}": ask(engine, [i], max_tokens=20, client="a") for i in range(6)}
    short = {f"b{i}": ask(engine, [i + 10], max_tokens=5, client="b") for i in range(24)}
    ended = order(engine, long | short)
    for end in range(5, len(ended)):
        tokens = {client: sum(21 if name < "b" else 6 for name in ended[:end] if name[0] == client) for client in "ab"}
        if {"a", "b"} == {name[0] for name in ended[end:]}:
            assert abs(tokens["a"] - tokens["b"]) <= 21 + 6


def test_who_comes_back_after_a_pause_has_saved_up_nothing() -> None:
    engine = make(Toy(), max_seqs=1)
    for i in range(5):
        ask(engine, [i], max_tokens=20, client="a")
    run(engine)
    requests = {f"b{i}": ask(engine, [i], max_tokens=20, client="b") for i in range(4)}
    requests |= {f"a{i}": ask(engine, [i + 9], max_tokens=20, client="a") for i in range(4)}
    ended = order(engine, requests)
    assert ended.index("a0") <= 2


def test_the_lowest_priority_is_served_in_the_end() -> None:
    engine = make(Toy(), clock := Clock())
    low = ask(engine, [1], priority=-3, client="low")
    steps = 0
    while low.finish_reason is None:
        ask(engine, [steps % 40], max_tokens=1, priority=0, client="high")
        engine.step()
        clock.now += AGING_SECONDS / 5
        steps += 1
        assert steps < 40
    assert low.output_tokens == alone([1], 4, 1)[0]


def test_a_place_is_made_for_a_higher_priority() -> None:
    engine = make(toy := Toy(), max_seqs=2)
    slow = [ask(engine, [i], max_tokens=40) for i in range(2)]
    engine.step()
    urgent = ask(engine, [9], max_tokens=3, priority=1)
    for _ in range(3):
        engine.step()
    assert urgent.output_tokens == alone([9], 3, 1)[0]
    run(engine)
    assert [request.output_tokens for request in slow] == [alone([i], 40, 1)[0] for i in range(2)]
    assert engine.stats().preemptions == 1
    assert is_clean(toy)


def test_the_lowest_priority_is_preempted_first_then_the_youngest() -> None:
    engine = make(toy := Toy(pages=9, page_tokens=4, ctx=30), max_seqs=8)
    names = {"first": 1, "low": 0, "young": 1}
    requests = {name: ask(engine, [i] * 5, 20, priority=p) for i, (name, p) in enumerate(names.items())}
    assert order(engine, requests) == ["first", "young", "low"]
    assert engine.stats().preemptions > 0
    for i, request in enumerate(requests.values()):
        assert request.output_tokens == alone([i] * 5, 20, 1, limit=30)[0]
    assert is_clean(toy)


def test_a_long_prompt_does_not_keep_the_prompts_of_other_clients_waiting() -> None:
    engine = make(Toy(ctx=2000, pages=600, max_batched_tokens=8), max_seqs=4)
    ask(engine, [1] * 1000, client="a")
    engine.step()
    short = ask(engine, [2, 3], max_tokens=1, client="b")
    engine.step()
    assert short.finish_reason == "length"


def test_deadlines() -> None:
    engine = make(toy := Toy(), clock := Clock(), max_seqs=1)
    running, waiting = ask(engine, [1], 40, deadline=5), ask(engine, [2], 40, deadline=7.5)
    other = ask(engine, [3], 4)
    for _ in range(3):
        engine.step()
    clock.now += 5
    engine.step()
    assert (running.finish_reason, running.output_tokens) == ("deadline", alone([1], 3, 1)[0])
    assert waiting.finish_reason is None
    clock.now += 2.5
    run(engine)
    assert waiting.finish_reason == "deadline"
    assert (other.output_tokens, other.finish_reason) == alone([3], 4, 1)
    assert is_clean(toy)


def test_a_request_that_waits_past_its_deadline_never_starts() -> None:
    engine = make(toy := Toy(), clock := Clock(), max_seqs=1)
    ask(engine, [1], 10)
    late = engine.generation([2] * 9, WARM, n=1, deadline=1)
    engine.add(late)
    engine.step()
    clock.now += 1
    run(engine)
    assert (late[0].finish_reason, late[0].start_time, late[0].output_tokens) == ("deadline", 0.0, [])
    assert all(len(batch) == 1 for batch in toy.batches)


def test_queue_limits() -> None:
    engine = make(Toy(), max_seqs=2, max_waiting=1)
    requests = [ask(engine, [i]) for i in range(3)]
    with pytest.raises(QueueFull, match="the queue is full: 3 requests run or wait; try again later") as caught:
        ask(engine, [3])
    assert not caught.value.of_client
    engine.cancel(requests[:1])
    ask(engine, [3])
    run(engine)
    for i in range(3):
        ask(engine, [i])


def test_limits_of_a_client() -> None:
    engine = make(Toy(), max_seqs=8, max_per_client=2)
    engine.add(engine.generation([1], WARM, max_tokens=2, n=2, client="a"))
    with pytest.raises(QueueFull, match="a client may have 2 requests at once, this one has 2; wait") as caught:
        ask(engine, [3], client="a")
    assert caught.value.of_client
    assert pickle.loads(pickle.dumps(caught.value)).of_client
    ask(engine, [3], client="b")
    run(engine)
    ask(engine, [3], client="a")


def test_the_caller_of_a_worker_is_told_that_the_queue_is_full() -> None:
    worker = Worker(make(Toy(ctx=200_000, pages=50_000), max_seqs=1, max_waiting=0))
    first = worker.engine.generation([1], WARM)
    worker.submit(first, lambda delta: None)
    with pytest.raises(QueueFull):
        worker.submit(worker.engine.generation([2], WARM), lambda delta: None)
    worker.close()


@pytest.mark.parametrize(
    ("terms", "kind", "match"),
    [
        ({"priority": 101}, RequestError, "priority must be from -100 to 100, got 101"),
        ({"priority": 0.5}, DtypeError, "priority must be an integer, not float"),
        ({"client": 7}, DtypeError, "client must be str, not int"),
        ({"deadline": float("nan")}, RequestError, "deadline must be a number of seconds greater than 0, got nan"),
        ({"deadline": -1}, RequestError, "deadline must be a number of seconds greater than 0, got -1"),
        ({"deadline": "1"}, DtypeError, "deadline must be a number of seconds, not str"),
    ],
)
def test_what_is_refused(terms: dict[str, Any], kind: type[Exception], match: str) -> None:
    engine = make(Toy())
    for make_request in (engine.generation, engine.scoring, engine.embedding):
        with pytest.raises(kind, match=match):
            make_request([1, 2], **terms)

"""The engine's thread: many callers, sleep, closing, errors, the end of the program."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from queue import SimpleQueue

import pytest

from fewbit.devices.batch import Batch
from fewbit.devices.host import HostHandle
from fewbit.engine import worker as worker_module
from fewbit.engine.engine import Engine
from fewbit.engine.request import Delta, Request, StepRows
from fewbit.engine.worker import Worker
from fewbit.errors import FewbitError

from .alone import WARM, alone, is_clean, make_engine
from .toy import Toy

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
ROOT = Path(__file__).parents[2]


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fewbit-engine"]


def outputs(worker: Worker, requests: list[Request]) -> list[tuple[list[int], str | None]]:
    queue: SimpleQueue[Delta] = SimpleQueue()
    worker.submit(requests, queue.put)
    for _ in requests:
        queue.get(timeout=60)
    return [(request.output_tokens, request.finish_reason) for request in requests]


def test_callers_from_many_threads() -> None:
    toy = Toy(pages=12, page_tokens=4)
    worker = Worker(make_engine(toy))
    found: dict[int, list[tuple[list[int], str | None]]] = {}

    def ask(i: int) -> None:
        for round in range(3):
            requests = worker.engine.generation([i, *PROMPT], WARM, max_tokens=8, n=2, seed=i)
            found[3 * i + round] = outputs(worker, requests)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 24
    for number, given in found.items():
        i = number // 3
        assert given == [alone([i, *PROMPT], 8, i + k, limit=48) for k in range(2)]
    worker.close()
    assert is_clean(toy)


def test_the_thread_starts_with_the_first_request_and_sleeps_after_the_last() -> None:
    before = len(engine_threads())
    worker = Worker(make_engine(Toy()))
    assert len(engine_threads()) == before
    outputs(worker, worker.engine.generation(PROMPT, WARM, max_tokens=3))
    assert len(engine_threads()) == before + 1
    outputs(worker, worker.engine.generation(PROMPT, WARM, max_tokens=3))
    time.sleep(0.05)
    steps = worker.engine.stats().steps
    time.sleep(0.05)
    assert worker.engine.stats().steps == steps == 6
    worker.close()
    assert len(engine_threads()) == before


def test_close_ends_what_is_not_complete() -> None:
    worker = Worker(make_engine(toy := Toy(ctx=200_000, pages=50_000)))
    requests = [worker.engine.generation(PROMPT, WARM)[0] for _ in range(3)]
    queue: SimpleQueue[Delta] = SimpleQueue()
    for request in requests:
        worker.submit([request], queue.put, stream=True)
    queue.get(timeout=60)
    worker.close()
    worker.close()
    assert [request.finish_reason for request in requests] == ["error"] * 3
    assert str(requests[0].error) == "the model was closed before the output was complete"
    with pytest.raises(FewbitError, match="the model was closed; it takes no more requests"):
        worker.submit(requests, queue.put)
    assert is_clean(toy)


def test_close_without_a_request() -> None:
    Worker(make_engine(Toy())).close()


def test_a_worker_that_nobody_holds_goes() -> None:
    gc.collect()  # workers of other tests
    before = len(engine_threads())
    worker = Worker(make_engine(toy := Toy()))
    outputs(worker, worker.engine.generation(PROMPT, WARM, max_tokens=3))
    held = weakref.ref(toy)
    del worker, toy
    gc.collect()
    assert held() is None
    assert len(engine_threads()) == before


def test_a_worker_is_dropped_where_a_lock_is_held_that_its_thread_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "DROP_SECONDS", 0.1)
    worker = Worker(make_engine(toy := Toy(ctx=200_000, pages=50_000)))
    in_sink, lock = threading.Event(), threading.Lock()

    def sink(delta: Delta) -> None:
        in_sink.set()
        with lock:
            pass

    with lock:
        worker.submit(worker.engine.generation(PROMPT, WARM), sink, stream=True)
        assert in_sink.wait(60)
        held, thread, garbage = weakref.ref(worker), worker._thread, [worker]
        del worker
        dropping = threading.Thread(target=garbage.clear, daemon=True)
        dropping.start()
        dropping.join(10)
        assert not dropping.is_alive()
    assert thread
    thread.join(60)
    assert not thread.is_alive()
    assert held() is None
    assert is_clean(toy)


def test_a_worker_is_dropped_in_its_own_thread() -> None:
    worker = Worker(make_engine(toy := Toy(ctx=200_000, pages=50_000)))
    thread_alone = threading.Event()

    def sink(delta: Delta) -> None:
        thread_alone.wait(60)
        garbage.clear()

    worker.submit(worker.engine.generation(PROMPT, WARM), sink, stream=True)
    held, thread, garbage = weakref.ref(worker), worker._thread, [worker]
    del worker
    thread_alone.set()
    assert thread
    thread.join(60)
    assert not thread.is_alive()
    assert held() is None
    assert is_clean(toy)


def test_cancel_from_another_thread() -> None:
    worker = Worker(make_engine(toy := Toy(ctx=200_000, pages=50_000)))
    request = worker.engine.generation(PROMPT, WARM)[0]
    queue: SimpleQueue[Delta] = SimpleQueue()
    worker.submit([request], queue.put, stream=True)
    queue.get(timeout=60)
    worker.cancel([request])
    while queue.get(timeout=60).finish is None:
        pass
    assert request.finish_reason == "cancelled"
    assert outputs(worker, worker.engine.generation(PROMPT, WARM, max_tokens=3, seed=1)) == [alone(PROMPT, 3, 1)]
    worker.close()
    assert is_clean(toy)


def test_cancelling_during_a_step_frees_pages_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(make_engine(toy := Toy(ctx=200_000, pages=50_000)))
    running, may_end, used = threading.Event(), threading.Event(), SimpleQueue[int]()
    launch, schedule = toy.launch, worker.engine._scheduler.schedule

    def slow(batch: Batch) -> HostHandle:
        running.set()
        assert may_end.wait(60)
        return launch(batch)

    def next_step() -> StepRows:
        used.put(toy.cache.stats().used)
        return schedule()

    monkeypatch.setattr(toy, "launch", slow)
    gone, queue = worker.engine.generation(PROMPT * 2, WARM)[0], SimpleQueue[Delta]()
    worker.submit([gone], queue.put)
    assert running.wait(60)
    monkeypatch.setattr(worker.engine._scheduler, "schedule", next_step)
    worker.cancel([gone])
    worker.submit(worker.engine.generation([1], WARM, max_tokens=1), queue.put)
    may_end.set()
    assert queue.get(timeout=60) == (gone, [], "cancelled")
    assert used.get(timeout=60) == 0
    worker.close()


def test_an_error_in_a_step_leaves_the_worker_usable() -> None:
    worker = Worker(make_engine(toy := Toy()))
    toy.errors.append(RuntimeError("no luck"))
    assert outputs(worker, worker.engine.generation(PROMPT, WARM, max_tokens=3)) == [([], "error")]
    assert outputs(worker, worker.engine.generation(PROMPT, WARM, max_tokens=3, seed=1)) == [alone(PROMPT, 3, 1)]
    worker.close()


def test_an_error_outside_of_a_step_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(make_engine(Toy()))
    schedule = worker.engine._scheduler.schedule
    monkeypatch.setattr(worker.engine._scheduler, "schedule", lambda: 1 / 0)
    assert outputs(worker, worker.engine.generation(PROMPT, WARM, max_tokens=3)) == [([], "error")]
    monkeypatch.setattr(worker.engine._scheduler, "schedule", schedule)
    assert outputs(worker, worker.engine.generation(PROMPT, WARM, max_tokens=3, seed=1)) == [alone(PROMPT, 3, 1)]
    worker.close()


@pytest.mark.parametrize("error", [ValueError("no luck"), SystemExit(3)], ids=["exception", "exit"])
@pytest.mark.parametrize("action", ["add_batch", "cancel"])
def test_an_error_in_an_action_ends_neither_the_thread_nor_the_callers(
    action: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(make_engine(toy := Toy()))
    outputs(worker, worker.engine.generation(PROMPT, WARM, max_tokens=3))
    thread = worker._thread

    def failing(engine: Engine, requests: list[Request]) -> None:
        raise error

    bad, queue = worker.engine.generation(PROMPT, WARM, max_tokens=3, n=2), SimpleQueue[Delta]()
    with monkeypatch.context() as patch:
        patch.setattr(Engine, action, failing)
        worker.submit(bad, queue.put)
        if action == "cancel":
            worker.cancel(bad)
        assert all(queue.get(timeout=10).finish for _ in bad)
    if action == "add_batch":
        assert [request.finish_reason for request in bad] == ["error", "error"]
        assert "no luck" in str(bad[0].error) or "SystemExit: 3" in str(bad[0].error)
    assert outputs(worker, worker.engine.generation(PROMPT, WARM, max_tokens=3, seed=1)) == [alone(PROMPT, 3, 1)]
    assert worker._thread is thread
    worker.close()
    assert is_clean(toy)


def test_an_error_while_requests_are_dropped_ends_neither_the_thread_nor_the_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker(make_engine(toy := Toy()))
    free = toy.cache.free
    monkeypatch.setattr(toy.cache, "free", lambda sequence: 1 / 0)
    outputs(worker, worker.engine.generation(PROMPT, WARM, max_tokens=3))
    outputs(worker, worker.engine.generation(PROMPT, WARM, max_tokens=3))
    monkeypatch.setattr(toy.cache, "free", free)
    assert outputs(worker, worker.engine.generation(PROMPT, WARM, max_tokens=3, seed=1)) == [alone(PROMPT, 3, 1)]
    worker.close()
    assert is_clean(toy)


@pytest.mark.parametrize("state", ["idle", "busy", "dropped"])
def test_the_program_ends_while_the_thread_is(state: str) -> None:
    program = f"""
import sys
from queue import SimpleQueue
from fewbit.engine.worker import Worker
from tests.engine.alone import WARM, make_engine
from tests.engine.toy import Toy
worker = Worker(make_engine(Toy(ctx=200_000, pages=50_000)))
queue = SimpleQueue()
requests = worker.engine.generation([1, 2, 3], WARM, max_tokens={"3" if state == "idle" else "None"})
worker.submit(requests, queue.put, True)
queue.get()
{"del worker" if state == "dropped" else ""}
print("end")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_forked_process_is_told_that_the_thread_is_gone() -> None:
    program = """
import os
from queue import SimpleQueue
from fewbit.engine.worker import Worker
from tests.engine.alone import WARM, make_engine
from tests.engine.toy import Toy
worker = Worker(make_engine(Toy()))
queue = SimpleQueue()
worker.submit(worker.engine.generation([1, 2, 3], WARM, max_tokens=3), queue.put)
queue.get()
if os.fork():
    print(os.waitstatus_to_exitcode(os.wait()[1]))
else:
    try:
        worker.submit(worker.engine.generation([1, 2, 3], WARM, max_tokens=3), queue.put)
    except Exception as error:
        print(error, flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert done.stdout == "the model's thread is gone, as in a forked process; load the model again\n0\n", done.stderr

"""An engine over a cache with a disk: prompts that were evicted, and prompts from before a restart."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue

import pytest

from fewbit.cache.disk import DiskCache
from fewbit.engine.engine import Engine
from fewbit.engine.request import Delta
from fewbit.engine.worker import Worker
from fewbit.llm import LLM

from ..cli.tiny import write_tiny
from .alone import WARM, alone, is_clean, make_engine, run
from .toy import HybridToy, Toy

PREFIX = [i * i % 37 for i in range(40)]


def make(kind: type[Toy], folder: Path, pages: int = 64, max_batched_tokens: int = 16) -> Toy:
    return kind(pages=pages, page_tokens=4, max_batched_tokens=max_batched_tokens, disk=DiskCache(folder))


def ask(engine: Engine, prompt: list[int], max_tokens: int = 4, seed: int = 1) -> list[int]:
    request = engine.generation(prompt, WARM, max_tokens=max_tokens, seed=seed)[0]
    engine.add([request])
    run(engine)
    return request.output_tokens


@pytest.mark.parametrize("kind", [Toy, HybridToy])
def test_a_prompt_from_before_a_restart_is_not_run_again(kind: type[Toy], tmp_path: Path) -> None:
    before = make(kind, tmp_path)
    ask(make_engine(before), PREFIX)
    before.cache.flush()
    engine = make_engine(after := make(kind, tmp_path))
    request = engine.generation([*PREFIX, 7], WARM, max_tokens=4, seed=2)[0]
    engine.add([request])
    run(engine)
    assert request.output_tokens == alone([*PREFIX, 7], 4, 2)[0]
    assert request.cached_tokens == 40
    assert after.batches[0] == [1]
    assert is_clean(after)


@pytest.mark.parametrize("kind", [Toy, HybridToy])
def test_prompts_that_memory_has_no_room_for_come_from_the_disk(kind: type[Toy], tmp_path: Path) -> None:
    engine = make_engine(toy := make(kind, tmp_path, pages=16))
    prompts = [[i, *PREFIX] for i in range(5)]
    for turn in range(2):
        for i, prompt in enumerate(prompts):
            assert ask(engine, prompt, seed=i + turn) == alone(prompt, 4, i + turn)[0]
    assert is_clean(toy)
    assert toy.cache.disk is not None
    assert toy.cache.disk.stats().read > 0
    if kind is Toy:
        assert engine.stats().prompt_tokens < 1.2 * 5 * 41


def test_others_go_on_while_a_prompt_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = make(Toy, tmp_path)
    ask(make_engine(before), PREFIX)
    before.cache.flush()
    toy = make(Toy, tmp_path)
    fetch = toy.cache.fetch
    monkeypatch.setattr(toy.cache, "fetch", lambda tokens, namespace, seconds: fetch(tokens, namespace, -1.0))
    engine = make_engine(toy)
    writing = engine.generation([9], WARM, max_tokens=30, seed=3)[0]
    engine.add([writing])
    engine.step()
    reading = engine.generation([*PREFIX, 7], WARM, max_tokens=1, seed=2)[0]
    engine.add([reading])
    while not reading.start_time:
        engine.step()
        assert toy.batches[-1][0] == 1
    assert 5 < len(writing.output_tokens) < 15
    run(engine)
    assert reading.cached_tokens == 40
    assert reading.output_tokens == alone([*PREFIX, 7], 1, 2)[0]
    assert writing.output_tokens == alone([9], 30, 3)[0]


def test_a_worker_does_things_between_two_steps() -> None:
    worker = Worker(make_engine(Toy(ctx=200_000, pages=50_000)))
    seen: list[Engine] = []
    worker.call(seen.append)
    queue: SimpleQueue[Delta] = SimpleQueue()
    worker.submit(worker.engine.generation([1], WARM), queue.put)
    worker.call(seen.append)
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda engine: seen.append(engine) or 1 / 0)  # type: ignore[arg-type,return-value]
    assert queue.empty()
    worker.close()
    worker.call(seen.append)
    assert seen == [worker.engine] * 4


def test_a_model_finds_its_prompts_again(tmp_path: Path) -> None:
    path, text = write_tiny(tmp_path / "tiny.gguf"), "once upon a time " * 20
    options = {"cache_dir": tmp_path / "cache", "ctx": 1024, "threads": 1, "batch_invariant": True}
    found = []
    for close in (True, False, False):
        llm = LLM(path, **options)
        found.append(llm.generate(text, max_tokens=5, temperature=0))
        if close:
            llm.close()
        else:
            llm.flush()
    assert [one.cached_tokens for one in found] == [0, 320, 320]
    assert found[0].tokens == found[1].tokens == found[2].tokens
    with LLM(path, **{**options, "batch_invariant": False}) as llm:
        assert llm.generate(text, max_tokens=1).cached_tokens == 0

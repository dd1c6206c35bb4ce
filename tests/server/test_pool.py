from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from fewbit.errors import FetchError, FileError, OutOfMemory
from fewbit.llm import LLM
from fewbit.server import pool as pools
from fewbit.server.errors import ApiError
from fewbit.server.pool import Pool


class Fake:
    """A model that can be loaded and closed."""

    def __init__(self, source: str) -> None:
        self.source, self.is_closed = source, False

    def close(self) -> None:
        self.is_closed = True


def make(names: str, load: Callable[[str], Any] = Fake, **options: Any) -> Pool:
    return Pool({name: f"{name}.gguf" for name in names}, cast(Any, load), **options)


def names(pool: Pool) -> str:
    return "".join(name for name, _ in pool.loaded())


async def touch(pool: Pool, name: str) -> None:
    async with pool.use(name):
        pass


def test_models_are_loaded_on_demand_and_once() -> None:
    count: list[str] = []

    async def main() -> None:
        pool = make("ab", lambda source: (count.append(source), Fake(source))[1])
        await asyncio.gather(*(touch(pool, "a") for _ in range(5)))
        assert count == ["a.gguf"]
        assert names(pool) == "a"
        await touch(pool, "b")
        assert names(pool) == "ab"
        await pool.close()
        assert names(pool) == ""

    asyncio.run(main())


def test_the_least_recently_used_goes_and_pinned_ones_stay() -> None:
    async def main() -> None:
        pool = make("abcd", max_models=2, pinned=["a"])
        for name in "abcd":
            await touch(pool, name)
            assert len(pool.loaded()) <= 2
        assert names(pool) == "ad"
        pool = make("abc", max_models=2)
        for name in "abac":
            await touch(pool, name)
        assert names(pool) == "ac"

    asyncio.run(main())


def test_a_model_goes_when_its_time_is_over_and_nobody_uses_it() -> None:
    async def main() -> None:
        pool = make("ab")
        async with pool.use("a"):
            await touch(pool, "a")
            pool.keep("a", 0.0)
            await touch(pool, "a")
            await asyncio.sleep(0.05)
            assert names(pool) == "a"  # the first still uses it
        while names(pool):
            await asyncio.sleep(0.01)
        await touch(pool, "a")
        pool.keep("a", 0.01)  # it is idle
        while names(pool):
            await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_model_that_is_to_be_kept_goes_last() -> None:
    async def main() -> None:
        pool = make("abc", max_models=2)
        await touch(pool, "a")
        pool.keep("a", float("inf"))
        await touch(pool, "b")
        await touch(pool, "c")
        assert names(pool) == "ac"
        pool.keep("c", float("inf"))
        await touch(pool, "b")  # it must go somewhere
        assert names(pool) == "bc"

    asyncio.run(main())


def test_a_model_in_use_stays_and_others_wait_for_it() -> None:
    async def main() -> None:
        pool = make("ab", max_models=1)
        async with pool.use("a") as llm:
            waiting = asyncio.create_task(touch(pool, "b"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            assert not cast(Any, llm).llm.is_closed
        await asyncio.wait_for(waiting, 5)
        assert cast(Any, llm).llm.is_closed
        assert names(pool) == "b"

    asyncio.run(main())


def test_idle_models_go_when_memory_is_short() -> None:
    async def main() -> None:
        def load(source: str) -> Fake:
            if source == "b.gguf" and names(pool):
                raise OutOfMemory("too little")
            return Fake(source)

        pool = make("ab", load)
        await touch(pool, "a")
        await touch(pool, "b")
        assert names(pool) == "b"
        async with pool.use("b"):
            pool.entries["b"].name  # noqa: B018
        pool = make("ab", load)
        async with pool.use("a"):
            with pytest.raises(ApiError, match="not enough memory"):
                await touch(pool, "b")

    asyncio.run(main())


def test_one_that_fails_disturbs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "RETRY_SECONDS", 0.0)
    begun, tries = threading.Event(), []

    def load(source: str) -> Fake:
        if source == "a.gguf":
            begun.set()
            tries.append(source)
            if len(tries) == 1:
                raise FileError("the file is damaged")
        return Fake(source)

    async def main() -> None:
        pool = make("ab", load)
        failing = asyncio.gather(*(touch(pool, "a") for _ in range(3)), return_exceptions=True)
        await touch(pool, "b")
        errors = await failing
        assert all(isinstance(error, ApiError) and error.status == 503 for error in errors)
        assert "damaged" in str(errors[0])
        assert names(pool) == "b"
        await touch(pool, "a")  # it may have been repaired
        assert names(pool) == "ab"

    asyncio.run(main())


def test_who_waits_for_a_load_may_go() -> None:
    gate = threading.Event()

    async def main() -> None:
        pool = make("a", lambda source: (gate.wait(10), Fake(source))[1])
        first, second = asyncio.create_task(touch(pool, "a")), asyncio.create_task(touch(pool, "a"))
        await asyncio.sleep(0.05)
        first.cancel()
        gate.set()
        await asyncio.wait_for(second, 5)
        assert first.cancelled()
        assert pool.entries["a"].users == 0

    asyncio.run(main())


def test_names(llm: LLM) -> None:
    pool = Pool.of(llm)
    assert pool.find(None).name == pool.find("tiny").name == pool.find("tiny:latest").name == "tiny"
    with pytest.raises(ApiError, match="there are: tiny"):
        pool.find("other")


def test_a_busy_model_gives_way_to_one_that_waits() -> None:
    order: list[str] = []

    async def ask(pool: Pool, name: str, number: int) -> None:
        async with pool.use(name):
            order.append(f"{name}{number}")
            await asyncio.sleep(0.02)

    async def main() -> None:
        pool = make("ab", max_models=1, turn_seconds=0.05)
        is_over = False

        async def keep_busy() -> None:  # two at a time, so that it is never idle
            number = 0
            while not is_over:
                number += 1
                await ask(pool, "a", number)

        busy = [asyncio.create_task(keep_busy()), asyncio.create_task(keep_busy())]
        await asyncio.sleep(0.01)
        busy.append(asyncio.create_task(keep_busy()))
        async with asyncio.timeout(30):
            await ask(pool, "b", 0)
            while order[-1].startswith("b"):  # and then it is its turn again
                await asyncio.sleep(0.01)
        is_over = True
        await asyncio.gather(*busy)
        await pool.close()

    asyncio.run(main())
    assert "b0" in order


def test_whoever_holds_a_model_that_gives_way_may_use_it_again() -> None:
    async def main() -> None:
        pool = make("ab", max_models=1, turn_seconds=0.0)
        async with pool.use("a"):
            other = asyncio.create_task(touch(pool, "b"))
            while pool.entries["a"].gives_way is None:
                await asyncio.sleep(0.01)
            async with pool.use("a", is_held=True) as llm:
                assert cast(Any, llm).llm.source == "a.gguf"
        await other
        assert names(pool) == "b"

    asyncio.run(main())


def test_errors_of_a_load_tell_no_path(capfd: pytest.CaptureFixture[str]) -> None:
    def load(source: str) -> Any:
        raise FileError("/secret/folder/a.gguf: damaged")

    async def main() -> None:
        with pytest.raises(ApiError, match="could not be loaded") as found:
            await touch(make("a", load), "a")
        assert "secret" not in found.value.message

    asyncio.run(main())
    assert "/secret/folder/a.gguf" in capfd.readouterr().err


def test_a_model_that_comes_too_late_is_closed() -> None:
    gate, made = threading.Event(), list[Fake]()

    def load(source: str) -> Any:
        assert gate.wait(60)
        made.append(Fake(source))
        return made[0]

    async def main() -> None:
        pool = make("a", load, load_seconds=0.05)
        with pytest.raises(ApiError, match="took too long"):
            await touch(pool, "a")
        gate.set()
        while not made or not made[0].is_closed:
            await asyncio.sleep(0.01)

    asyncio.run(main())


def test_waiting_for_room_is_not_loading_time() -> None:
    async def main() -> None:
        pool = make("ab", load_seconds=0.2, max_models=1, turn_seconds=0.0)
        async with pool.use("a"):
            waiting = asyncio.create_task(touch(pool, "b"))
            await asyncio.sleep(0.5)
            assert not waiting.done()
        await waiting
        assert [name for name, _ in pool.loaded()] == ["b"]

    asyncio.run(main())


def test_pinned_models_leave_no_room() -> None:
    async def main() -> None:
        pool = make("ab", pinned=["a"], max_models=1)
        await touch(pool, "a")
        with pytest.raises(ApiError, match="no room for another model"):
            await touch(pool, "b")

    asyncio.run(main())


def test_fetching_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = pools.fetch_within(100.0)
    progress("a model", 1, 2)
    now = pools.time.monotonic()
    monkeypatch.setattr(pools.time, "monotonic", lambda: now + 101.0)
    with pytest.raises(FetchError, match="longer than 100 s"):
        progress("a model", 2, 2)

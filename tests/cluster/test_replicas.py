"""Frontend and engines in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from fewbit.cluster import engine_host
from fewbit.cluster.messages import portable
from fewbit.cluster.replicas import ReplicaBackend
from fewbit.errors import ArgumentError, FewbitError, RequestError, TooLong
from fewbit.llm import LLM
from fewbit.server.backend import Asker
from fewbit.server.errors import ApiError, Interrupted
from fewbit.server.jobs import Finished, Job, OutputDelta, RunEvent, Started
from fewbit.server.local import LocalBackend
from fewbit.server.text_work import TextWork

from ..cli.tiny import write_tiny
from .in_process import LocalEngine, LocalReplicas, replicas_of


@pytest.fixture(scope="module")
def llms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LLM]]:
    path = write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf")
    found = [LLM(path, ctx=2048, threads=1, batch_invariant=True) for _ in range(2)]
    yield found
    for llm in found:
        llm.close()


def job(text: str = "hello", **options: Any) -> Job:
    given = {"temperature": 0, "max_tokens": 20}
    return Job(messages=[{"role": "user", "content": text}], options={**given, **options})


async def events(backend: Any, one: Job) -> list[RunEvent]:
    async with aclosing(backend.run(one, Asker(TextWork()))) as found:
        return [event async for event in found]


def text_of(found: list[RunEvent]) -> str:
    return "".join(event.text for event in found if isinstance(event, OutputDelta))


def engines(backend: ReplicaBackend) -> list[LocalEngine]:
    replicas = backend._replicas
    assert isinstance(replicas, LocalReplicas)
    return [*replicas.engines.values()]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.005)


def test_events_are_those_of_one_engine(llms: list[LLM]) -> None:
    async def main() -> None:
        backend, local = replicas_of(*llms), LocalBackend(llms[0], "tiny")
        try:
            found = await asyncio.gather(*(events(backend, job(f"hello {i}")) for i in range(12)))
            for number, one in enumerate(found):
                expected = await events(local, job(f"hello {number}"))
                assert isinstance(one[0], Started)
                assert one[0].prompts == next(event for event in expected if isinstance(event, Started)).prompts
                assert text_of(one) == text_of(expected)
                assert one[-1].total_tokens == expected[-1].total_tokens  # type: ignore[union-attr]
            counts = await backend.counts()
            assert {*counts} == {"replica0", "replica1"}
            assert all(one.tokens for one in counts.values())
            assert backend.facts.max_seqs == 2 * local.facts.max_seqs
        finally:
            backend.close()

    asyncio.run(main())


def test_errors_come_as_they_are(llms: list[LLM]) -> None:
    async def main() -> None:
        backend = replicas_of(*llms)
        try:
            with pytest.raises(TooLong) as long:
                await events(backend, job("x" * 4000))
            assert long.value.limit == 2048
            with pytest.raises(ArgumentError, match="top_k"):
                await events(backend, job(top_k=-3))
            with pytest.raises(RequestError, match="no"):
                await backend.work(Asker(TextWork()), refuse)
            assert await backend.work(Asker(TextWork()), add, 2, 3) == 5
            rows = await backend.embed([[1, 2], [3]])
            np.testing.assert_allclose(rows, llms[0].embed([[1, 2], [3]]), rtol=1e-5)
        finally:
            backend.close()

    asyncio.run(main())


def add(llm: LLM, a: int, b: int) -> int:
    return a + b


def refuse(llm: LLM) -> None:
    raise RequestError("no")


def test_a_job_that_is_closed_ends_on_its_replica(llms: list[LLM]) -> None:
    async def main() -> None:
        backend = replicas_of(*llms)
        try:
            running = backend.run(job(max_tokens=2000), Asker(TextWork()))
            async with aclosing(running):
                async for event in running:
                    if isinstance(event, OutputDelta):
                        break
            await until(lambda: not any(llm.engine.stats().active for llm in llms))
            assert sum(len(outbox.jobs) for one in engines(backend) for outbox in one.host._outboxes.values()) == 0
        finally:
            backend.close()

    asyncio.run(main())


def test_a_job_that_had_not_begun_goes_elsewhere(llms: list[LLM]) -> None:
    async def main() -> None:
        backend = replicas_of(*llms)
        try:
            expected = text_of(await events(LocalBackend(llms[0], "tiny"), job()))
            await events(backend, job())
            used = next(one for one in engines(backend) if "start" in one.calls)
            used.is_dead = True
            assert text_of(await events(backend, job())) == expected
            assert [*await backend.counts()] == [name for name, one in backend._replicas.engines.items()  # type: ignore[attr-defined]
                                                 if not one.is_dead]  # fmt: skip
        finally:
            backend.close()

    asyncio.run(main())


def test_a_stream_that_had_begun_ends_with_an_error_and_others_go_on(llms: list[LLM]) -> None:
    async def main() -> None:
        backend = replicas_of(*llms)

        async def one(number: int) -> tuple[list[RunEvent], ApiError | None]:
            found: list[RunEvent] = []
            try:
                async with aclosing(backend.run(job(f"{number}", max_tokens=300), Asker(TextWork()))) as running:
                    async for event in running:
                        found.append(event)
                        if len(found) == 2:
                            begun.append(number)
            except ApiError as error:
                return found, error
            return found, None

        begun: list[int] = []
        try:
            running = [asyncio.ensure_future(one(number)) for number in range(8)]
            await until(lambda: len(begun) == 8)
            engines(backend)[0].is_dead = True
            ended = await asyncio.gather(*running)
            lost = [error for _, error in ended if error is not None]
            assert 1 <= len(lost) < 8
            assert all(isinstance(error, Interrupted) and error.code == "replica_lost" for error in lost)
            whole = [found for found, error in ended if error is None]
            assert all(any(isinstance(event, Finished) for event in found) for found in whole)
        finally:
            backend.close()

    asyncio.run(main())


def test_jobs_of_a_frontend_that_is_gone_are_ended(llms: list[LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_host, "GONE_SECONDS", 0.05)

    async def main() -> None:
        from fewbit.cluster.messages import JobRequest, dumps

        host = engine_host.EngineHost(LocalBackend(llms[0], "tiny"))
        await host.start("gone", 0, dumps(JobRequest(job(max_tokens=2000), "", 0)))
        assert await host.num_open() == 1
        await asyncio.sleep(0.1)
        monkeypatch.setattr(engine_host, "WAIT_SECONDS", 0.01)
        await host.events("another")
        await until(lambda: not llms[0].engine.stats().active)
        assert await host.num_open() == 0

    asyncio.run(main())


def test_without_a_replica_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, llms: list[LLM]) -> None:
    monkeypatch.setattr("fewbit.cluster.replicas.WAIT_SECONDS", 0.05)

    async def main() -> None:
        backend = replicas_of(*llms)
        for engine in engines(backend):
            engine.is_dead = True
        try:
            with pytest.raises(ApiError, match="no replica of the model") as error:
                await events(backend, job())
            assert error.value.status == 503
        finally:
            backend.close()

    asyncio.run(main())


def test_errors_that_cannot_be_pickled_keep_their_words() -> None:
    class Local(Exception):
        pass

    found = portable(Local("it broke"))
    assert isinstance(found, FewbitError)
    assert str(found) == "it broke"
    error = portable(ApiError(404, "none", "model", "gone", 3))
    assert isinstance(error, ApiError)
    assert (error.status, error.param, error.retry_after) == (404, "model", 3)

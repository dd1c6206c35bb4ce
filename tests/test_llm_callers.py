"""LLM on a toy executor, from threads and event loops; its end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from fewbit.errors import FewbitError, RequestError
from fewbit.llm import LLM, AsyncStream, TextDelta

from .engine.toy import Toy
from .llm_toy import (
    TOKENS,
    WARM,
    Endless,
    make,
    many,
    one,
)


@pytest.fixture
def llm() -> Any:
    with make() as llm:
        yield llm


def test_threads(llm: LLM) -> None:
    alone = [one(llm.generate(f"prompt {i}", max_tokens=20, seed=i, **WARM)).text for i in range(8)]
    found: dict[int, list[str]] = {}

    def ask(i: int) -> None:
        stream = llm.stream(f"prompt {i}", max_tokens=20, seed=i, **WARM)
        whole = one(llm.generate(f"prompt {i}", max_tokens=20, seed=i, **WARM)).text
        found[i] = ["".join(stream), whole]
        llm.score(llm.tokenize("some text"))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: [alone[i]] * 2 for i in range(8)}


def test_async(llm: LLM) -> None:
    alone = [one(llm.generate(f"prompt {i}", max_tokens=20, seed=i, **WARM)).text for i in range(6)]
    messages = [{"role": "user", "content": "hi"}]
    chat = one(llm.chat(messages, max_tokens=20, seed=1, **WARM)).text

    async def stream(i: int) -> str:
        async with llm.astream(f"prompt {i}", max_tokens=20, seed=i, **WARM) as pieces:
            text = "".join([piece async for piece in pieces])
        assert pieces.completion.text == text
        return text

    async def whole(i: int) -> str:
        return one(await llm.agenerate(f"prompt {i}", max_tokens=20, seed=i, **WARM)).text

    async def main() -> list[str]:
        talk = await llm.achat(messages, max_tokens=20, seed=1, stream=True, **WARM)
        assert isinstance(talk, AsyncStream)
        assert "".join([piece async for piece in talk]) == chat
        assert str(await llm.achat(messages, max_tokens=20, seed=1, **WARM)) == chat
        assert len(many(await llm.agenerate(["a", "b"], max_tokens=2, stop="never"))) == 2
        return await asyncio.gather(*map(stream, range(6)), *map(whole, range(6)))

    assert asyncio.run(main()) == alone * 2


def test_the_event_loop_goes_on_while_text_is_tokenized(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer waits for something that the event loop does."""
    went_on = threading.Event()
    encode = llm.tokenizer.encode

    def slow(*args: Any, **options: Any) -> list[int]:
        assert went_on.wait(60)
        return encode(*args, **options)

    async def main(ask: Any) -> None:
        went_on.clear()
        asyncio.get_running_loop().call_soon(went_on.set)
        await ask()

    messages = [{"role": "user", "content": "hi"}]
    monkeypatch.setattr(llm.tokenizer, "encode", slow)
    for ask in (
        lambda: llm.agenerate("Once", max_tokens=1),
        lambda: llm.achat(messages, max_tokens=1),
        lambda: llm.achat(messages, max_tokens=1, stream=True),
        lambda: anext(llm.astream("Once", max_tokens=9, **WARM)),
    ):
        asyncio.run(main(ask))


def test_async_with() -> None:
    async def main() -> LLM:
        async with make() as llm:
            assert len(one(await llm.agenerate("Once", max_tokens=2)).tokens) == 2
        return llm

    with pytest.raises(FewbitError, match="the model was closed"):
        asyncio.run(main()).generate("Once")


def test_an_async_stream_refuses_when_it_begins(llm: LLM) -> None:
    stream = llm.astream("x" * 1000)
    with pytest.raises(FewbitError, match="the output is not complete yet"):
        _ = stream.completion

    async def main() -> str:
        return await anext(stream)

    with pytest.raises(RequestError, match="leaves no room"):
        asyncio.run(main())


def test_async_cancelling_stops_the_request() -> None:
    llm = make(Endless())

    async def main() -> None:
        task = asyncio.create_task(llm.agenerate("Once", max_tokens=None, **WARM))
        stream = llm.astream("Once", max_tokens=None, **WARM)
        await anext(stream)
        task.cancel()
        await stream.aclose()
        assert stream.completion.finish_reason == "cancelled"
        assert [piece async for piece in stream] == []
        with pytest.raises(asyncio.CancelledError):
            await task

    with llm:
        asyncio.run(main())
        one(llm.generate("Twice", max_tokens=1))
        assert llm.engine.stats().active == 0


def test_async_when_the_event_loop_is_gone() -> None:
    async def main(llm: LLM) -> AsyncStream:
        stream = llm.astream("Once", max_tokens=None, **WARM)
        await anext(stream)
        return stream

    with make(Endless()) as llm:
        stream = asyncio.run(main(llm))
        one(llm.generate("Twice", max_tokens=1))
        one(llm.generate("Twice", max_tokens=1))
        assert llm.engine.stats().active == 0
        del stream


def test_an_async_stream_that_never_began(llm: LLM) -> None:
    stream = llm.astream("Once")
    asyncio.run(stream.aclose())
    assert stream.completion.tokens == []
    del stream


def test_errors_of_the_model_reach_who_asked() -> None:
    toy = Toy(vocab=len(TOKENS))
    with make(toy) as llm:
        for ask in (llm.generate, lambda prompt: list(llm.stream(prompt)), lambda prompt: llm.score([1, 2])):
            toy.errors.append(RuntimeError("no luck"))
            with pytest.raises(FewbitError, match="the model failed: RuntimeError: no luck"):
                ask("Once")
        one(llm.generate("Once", max_tokens=1))


def test_ctrl_c_ends_the_answer_and_not_the_model() -> None:
    program = """
import os, signal, threading
from tests.llm_toy import Endless, make
llm = make(Endless())
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    llm.generate("Once", max_tokens=None)
except KeyboardInterrupt:
    llm.generate("Twice", max_tokens=1)
    print(llm.engine.stats().active)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[1],
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_a_closed_model() -> None:
    llm = make(Endless())
    stream = llm.stream("Once", max_tokens=None, **WARM)
    next(stream)
    llm.close()
    with pytest.raises(FewbitError, match="the model was closed before the output was complete"):
        list(stream)
    assert stream.completion.finish_reason == "error"
    with pytest.raises(FewbitError, match="the model was closed; it takes no more requests"):
        llm.generate("Once")


def test_threads_that_read_one_stream_share_its_text(llm: LLM) -> None:
    """Each part goes to one of them, and all of them come to the end."""
    whole = one(llm.generate("Once", max_tokens=40, seed=1, **WARM)).text
    stream = llm.stream("Once", max_tokens=40, seed=1, **WARM)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.extend(stream)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted("".join(found)) == sorted(whole)
    assert stream.completion.text == whole


def test_a_stream_is_closed_while_another_thread_waits_for_it() -> None:
    class Slow(Endless):
        """It writes a token, and the next when it may."""

        may_go_on = threading.Event()

        def logits(self, sums: Any, batch: Any) -> Any:
            if len(self.batches) > 1:
                assert self.may_go_on.wait(60)
            return super().logits(sums, batch)

    with make(toy := Slow()) as llm:
        stream, found = llm.stream("a", max_tokens=None, **WARM), list[str]()
        reader = threading.Thread(target=lambda: found.extend(stream))
        reader.start()
        stream.close()
        toy.may_go_on.set()
        reader.join(60)
        assert not reader.is_alive()
        assert stream.completion.finish_reason == "cancelled"
        assert stream.completion.text == "".join(found)


def test_an_error_of_the_consumer_cancels_the_rest() -> None:
    """Of a batch, of a stream, and of deltas."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async def read(llm: LLM) -> None:
        async with aclosing(await llm.aparts(["Once", "Twice"], max_tokens=None, **WARM)) as deltas:
            async for _ in deltas:
                fail()

    with make(Endless()) as llm:
        with pytest.raises(ZeroDivisionError):
            llm.embed(["a", "b", "c"], progress=fail)
        with pytest.raises(ZeroDivisionError), llm.stream("Once", max_tokens=None, **WARM) as stream:
            fail(next(stream))
        with pytest.raises(ZeroDivisionError):
            asyncio.run(read(llm))
        one(llm.generate("Twice", max_tokens=1))
        assert llm.engine.stats().active == 0


def test_deltas_of_an_event_loop_that_is_gone() -> None:
    """Nobody takes what was put before the loop was closed, and the requests end all the same."""

    async def begin(llm: LLM) -> AsyncGenerator[TextDelta, None]:
        deltas = await llm.aparts(["Once", "Twice"], max_tokens=None, **WARM)
        await anext(deltas)
        return deltas

    with make(Endless()) as llm:
        loop = asyncio.new_event_loop()
        deltas = loop.run_until_complete(begin(llm))
        loop.close()  # as it is, with generators that are not closed
        while llm.engine.stats().active:
            one(llm.generate("Twice", max_tokens=1))
        del deltas


def test_deltas_that_come_while_nobody_waits_are_one(llm: LLM) -> None:
    async def main() -> list[TextDelta]:
        async with aclosing(await llm.aparts("Once", max_tokens=30, seed=1, **WARM)) as deltas:
            found = [await anext(deltas)]
            await asyncio.to_thread(llm.generate, "Twice", max_tokens=60)
            return found + [delta async for delta in deltas]

    found = asyncio.run(main())
    whole = llm.generate("Once", max_tokens=30, seed=1, **WARM)
    assert [token for delta in found for token in delta.tokens] == whole.tokens
    assert found[-1].completion == "".join(delta.text for delta in found) == whole
    assert len(found) < 30

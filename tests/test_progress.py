"""Progress of batches: callbacks, the line on a terminal, and silence elsewhere."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest

from fewbit.errors import DtypeError, RequestError
from fewbit.llm import LLM
from fewbit.llm.progress import LOG_SECONDS, Line, Meter

from .llm_toy import make

HI = [{"role": "user", "content": "hi"}]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def llm() -> Any:
    with make() as llm:
        yield llm


def test_a_function_is_called_for_each_output(llm: LLM) -> None:
    for total, ask in (
        (6, lambda progress: llm.generate(["a", "b", "c"], n=2, max_tokens=3, progress=progress)),
        (2, lambda progress: llm.chat([HI, HI], max_tokens=3, progress=progress)),
        (1, lambda progress: llm.chat(HI, max_tokens=3, progress=progress)),
        (3, lambda progress: llm.embed(["a", "bb", "c"], progress=progress)),
        (2, lambda progress: asyncio.run(llm.agenerate(["a", "b"], max_tokens=3, progress=progress))),
        (2, lambda progress: asyncio.run(llm.achat([HI, HI], max_tokens=3, progress=progress))),
        (2, lambda progress: asyncio.run(llm.aembed(["a", "b"], progress=progress))),
    ):
        calls: list[tuple[int, int]] = []
        ask(lambda done, total, calls=calls: calls.append((done, total)))
        assert calls == [(done, total) for done in range(1, total + 1)]


def test_a_function_that_fails_ends_the_batch(llm: LLM) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], max_tokens=3, progress=stop)
    llm.generate("a", max_tokens=1)
    assert llm.engine.stats().active == 0


def test_nothing_is_shown_without_a_terminal_or_unasked(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], max_tokens=3, progress=True)
    llm.embed(["a", "b"], progress=True)
    llm.generate(["a", "b"], max_tokens=3)
    assert capsys.readouterr() == ("", "")


def test_a_line_on_a_terminal(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr("sys.stderr", out)
    llm.generate(["a", "b"], max_tokens=3, progress=True)
    text = out.getvalue()
    assert text.startswith("\r\x1b[Koutputs: 1/2 [")
    assert "outputs: 2/2 [####################]" in text
    assert "tokens/s" in text
    assert (text.count("\n"), text[-1]) == (1, "\n")


def test_a_line_is_overwritten_ten_times_a_second_at_most() -> None:
    out, clock = Terminal(), Clock()
    line = Line("texts", out, clock)
    for done in range(1, 101):
        clock.now += 0.01
        line.update(done, 100, done * 5)
    line.close()
    assert 10 <= out.getvalue().count("\r") <= 12
    assert "texts: 100/100" in out.getvalue().splitlines()[-1]


def test_a_log_gets_a_line_now_and_then() -> None:
    out, clock = io.StringIO(), Clock()
    line = Line("texts", out, clock)
    for done in range(1, 101):
        clock.now += LOG_SECONDS / 40
        line.update(done, 100, done * 5)
    line.close()
    assert [text.split(" [")[0] for text in out.getvalue().splitlines()] == [
        "texts: 40/100", "texts: 80/100", "texts: 100/100",
    ]  # fmt: skip


def test_a_line_that_is_left_is_ended() -> None:
    out = Terminal()
    line = Line("texts", out)
    line.close()
    assert out.getvalue() == ""
    line.update(1, 100, 5)
    line.close()
    assert out.getvalue().endswith("\n")


def test_what_is_refused(llm: LLM) -> None:
    with pytest.raises(DtypeError, match=r"progress must be True, False or a function of \(done, total\), got 'bar'"):
        llm.generate("a", progress="bar")  # type: ignore[call-overload]
    with pytest.raises(DtypeError, match="progress must be True"):
        Meter(3, 1, "texts")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="progress must be False"):
        llm.chat(HI, stream=True, progress=True)  # type: ignore[call-overload]

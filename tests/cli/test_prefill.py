"""How far a prompt is: a line on a terminal that is gone when the answer comes."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator

import pytest
from click.testing import CliRunner

from fewbit.cli import main
from fewbit.cli.progress import Prefill, after_prefill
from fewbit.llm import LLM


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def wait_for(out: io.StringIO, text: str) -> None:
    end = time.monotonic() + 60
    while text not in out.getvalue():
        assert time.monotonic() < end, out.getvalue()
        time.sleep(0.001)


def shown_on(written: str) -> str:
    """What stands in the line in the end: a return goes to its start, and what comes is written over it."""
    line = ""
    for part in written.split("\r"):
        line = part + line[len(part) :]
    return line


def test_a_terminal_shows_how_far_it_is_and_is_wiped() -> None:
    out = Screen()
    with Prefill(lambda: 0.25, out, patience=0):
        wait_for(out, "reading the prompt: 25%")
    assert shown_on(out.getvalue()).strip() == ""
    assert out.getvalue().endswith("\r")


def test_a_shorter_line_leaves_nothing_of_a_longer_one() -> None:
    out, shares = Screen(), iter([1.0, *[0.05] * 10_000])
    with Prefill(lambda: next(shares), out, patience=0):
        wait_for(out, " 5%")
        assert shown_on(out.getvalue()).rstrip().endswith("reading the prompt: 5%")


@pytest.mark.parametrize("out", [Screen(), io.StringIO()])
def test_nothing_is_shown_in_the_first_moment_or_elsewhere(out: io.StringIO) -> None:
    with Prefill(lambda: 0.5, out, patience=1000 if out.isatty() else 0):
        time.sleep(0.02)
    assert out.getvalue() == ""


def test_it_ends_when_the_prompt_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Screen()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setattr("fewbit.cli.progress.PROMPT_PATIENCE", 0.0)

    def failing() -> Iterator[str]:
        raise KeyboardInterrupt
        yield ""

    with pytest.raises(KeyboardInterrupt):
        list(after_prefill(failing(), lambda: 0.5))
    assert shown_on(out.getvalue()).strip() == ""


def test_all_texts_come_through() -> None:
    assert list(after_prefill(["a", "b"], lambda: 0.0)) == ["a", "b"]
    assert list(after_prefill([], lambda: 0.0)) == []


def test_a_stream_tells_how_much_of_its_prompt_was_run(tiny: str) -> None:
    with LLM(tiny) as llm, llm.stream("a prompt", max_tokens=3) as stream:
        assert 0 <= stream.prompt_done <= 1
        assert "".join(stream)
        assert stream.prompt_done == 1


@pytest.mark.parametrize(("command", "module"), [("run", "run"), ("chat", "screen")])
def test_commands_show_how_far_the_prompt_is(
    tiny: str, monkeypatch: pytest.MonkeyPatch, command: str, module: str
) -> None:
    shares: list[float] = []

    def watched(texts: Iterable[str], done: Callable[[], float]) -> Iterator[str]:
        for text in texts:
            shares.append(done())
            yield text

    monkeypatch.setattr(f"fewbit.cli.{module}.after_prefill", watched)
    result = CliRunner().invoke(main, [command, tiny, "--max-tokens", "4"], input="hi\n")
    assert result.exit_code == 0, result.output
    assert set(shares) == {1.0}

"""What is printed: tables, progress, and answers that a terminal must not obey."""

from __future__ import annotations

import io
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.cli.output import harmless, measuring
from fewbit.cli.printer import Printer
from fewbit.cli.progress import Bar, Lines, Waiting


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@given(st.text())
def test_a_terminal_gets_nothing_that_it_would_obey(text: str) -> None:
    out = Screen()
    printer = Printer(out)
    printer.write(text)
    printer.end_line()
    assert "".join(out.getvalue().split()) == "".join(harmless(text).split())
    assert all(c in "\t\n" or (c >= " " and not "\x7f" <= c < "\xa0") for c in out.getvalue())
    kept = [c for c in text if c.isprintable() and c != " "]
    assert kept == [c for c in out.getvalue() if c.isprintable() and c != " "]


@given(st.lists(st.text()))
def test_elsewhere_text_is_passed_as_it_is(texts: list[str]) -> None:
    out = io.StringIO()
    printer = Printer(out)
    for text in texts:
        printer.write(text)
    assert out.getvalue() == "".join(texts)


@pytest.mark.parametrize(("text", "ended"), [("a", "a\n"), ("a\n", "a\n"), ("", "")])
def test_a_line_is_ended_once(text: str, ended: str) -> None:
    out = io.StringIO()
    printer = Printer(out)
    printer.write(text)
    printer.end_line()
    assert out.getvalue() == ended


def test_what_an_encoding_has_not_is_replaced() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, "ascii")
    Printer(out).write("ä!")
    assert raw.getvalue() == b"?!"


def test_measuring_gives_all_cases(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(measuring(iter("abc"), 3)) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(measuring(iter("abc"), 3)) == ["a", "b", "c"]


def test_lines_come_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(seconds=1000)
    for done in (0, 1024, 2048):
        lines.update("fetching a\x1b.gguf", done, 4096)
    lines.update("reading", 0, None)
    lines.update("counting", 5, None)
    lines.stop()
    expected = ["fewbit: fetching a\\x1b.gguf: 0 bytes of 4 KiB", "fewbit: reading", "fewbit: counting: 5 bytes"]
    assert capsys.readouterr().err.splitlines() == expected


def test_the_bar_shows_what_and_how_much(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    bar = Bar()
    bar.update("loading [b]", 0, None)
    bar.update("fetching a.gguf", 1_000_000, 2_000_000)
    bar.stop()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "loading [b]" in text
    assert "fetching a.gguf" in text
    assert "1.0/2.0 MB" in text


def test_waiting_says_nothing_in_the_first_moment(capsys: pytest.CaptureFixture[str]) -> None:
    with Waiting("loading", patience=1000) as waiting:
        waiting("fetching", 1, 2)
    assert capsys.readouterr().err == ""


def test_waiting_tells_after_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    told = ""
    with Waiting("loading", patience=0) as waiting:
        while not told:
            time.sleep(0.001)
            told = capsys.readouterr().err
        waiting("fetching", 1, 2)
    assert told + capsys.readouterr().err == "fewbit: loading\nfewbit: fetching: 1 bytes of 2 bytes\n"


def test_waiting_ends_when_its_block_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Waiting("loading", patience=0.05):
        raise KeyboardInterrupt
    time.sleep(0.1)
    assert capsys.readouterr().err == ""

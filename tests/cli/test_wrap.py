"""Answers on a terminal end their lines between words; elsewhere they are printed as they come."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.cli.wrap import Wrapper, columns

from .terminal import Terminal
from .tiny import write_tiny

WIDTH = 24


def wrapped(*parts: str, width: int = WIDTH) -> str:
    wrapper = Wrapper(lambda: width)
    return "".join(map(wrapper.feed, parts)) + wrapper.flush()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three four five six seven", ["one two three four five", "six seven"]),
        ("exactly twenty-four wide and", ["exactly twenty-four wide", "and"]),
        ("a\n\nb", ["a", "", "b"]),
        ("  - an item of a list that is long", ["  - an item of a list", "that is long"]),
        ("see https://example.org/a/very/long/path ok", ["see", "https://example.org/a/very/long/path ok"]),
        ("a\tb and then it goes on", ["a\tb and then it", "goes on"]),
        ("天空是蓝色的\uff0c因为阳光被空气散射了。", ["天空是蓝色的\uff0c因为阳光被", "空气散射了。"]),
        ("天空是蓝色的因为阳光被空\uff0c气", ["天空是蓝色的因为阳光被", "空\uff0c气"]),
        ("mixed 漢字 and words 漢字漢字漢字", ["mixed 漢字 and words 漢", "字漢字漢字"]),
        ("cafe\u0301 cafe\u0301 cafe\u0301 cafe\u0301 four", ["cafe\u0301 cafe\u0301 cafe\u0301 cafe\u0301 four"]),
    ],
)  # fmt: skip
def test_lines_end_between_words(text: str, lines: list[str]) -> None:
    assert wrapped(text).split("\n") == lines
    assert wrapped(*text).split("\n") == lines


def test_code_blocks_stay_as_they_are() -> None:
    code = "```python\nprint('a line of code that is longer than the terminal is wide')\n\n  x = 1\n```\n"
    before = "text before it that must be broken\n"
    assert wrapped(before + code + before) == wrapped(before) + code + wrapped(before)
    assert wrapped(*(before + code + before)) == wrapped(before) + code + wrapped(before)
    assert wrapped("   ~~~\n" + "x " * 30 + "\n~~~\n") == "   ~~~\n" + "x " * 30 + "\n~~~\n"


def test_a_word_is_held_back_until_it_is_known_to_fit() -> None:
    wrapper = Wrapper(lambda: 20)
    assert wrapper.feed("The first words wra") == "The first words"
    assert wrapper.feed("pped") == ""
    assert wrapper.feed(" here") == "\nwrapped"
    assert wrapper.flush() == " here"


def test_the_width_is_asked_for_at_every_line() -> None:
    widths = iter([20, 40, 40])
    wrapper = Wrapper(lambda: next(widths))
    text = "this is a line of about forty columns"
    assert wrapper.feed(f"{text}\n{text}\n") == f"this is a line of\nabout forty columns\n{text}\n"


def test_a_terminal_that_is_too_narrow_does_it_itself() -> None:
    assert wrapped("a few words that go on and on", width=10) == "a few words that go on and on"


@given(st.text(alphabet="ab 漢。\uff08\n\t`~-é\u0301", max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_parts_make_no_difference_and_nothing_is_lost(text: str, cuts: list[int]) -> None:
    at = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [text[start:end] for start, end in pairwise(at)]
    out = wrapped(*parts)
    assert out == wrapped(text)
    assert re.sub(r"\s", "", out) == re.sub(r"\s", "", text)


@given(st.text(alphabet="abc 漢\n", max_size=300))
def test_no_line_is_too_long_but_for_a_word_that_is(text: str) -> None:
    for line in wrapped(text).split("\n"):
        assert columns(line.rstrip()) <= WIDTH or " " not in line.strip() or columns(line.split()[0]) > WIDTH


def test_an_answer_on_a_terminal_is_wrapped(tmp_path: Path) -> None:
    model = str(write_tiny(tmp_path / "m.gguf"))
    args = ["run", model, "hi", "--max-tokens", "400", "--seed", "1", "--temp", "3", "--top-k", "0", "--top-p", "1"]
    terminal = Terminal(*args, "--min-p", "0", COLUMNS="30", TERM="xterm")
    assert terminal.end() == 0
    answer = terminal.seen.decode().replace("\r\n", "\n").partition("model: m\n")[2].partition("prompt: ")[0]
    lines = answer.split("\n")
    assert len(lines) > 5
    assert all(columns(line.rstrip()) <= 30 or " " not in line.strip() for line in lines)

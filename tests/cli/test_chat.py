"""`fewbit chat`, with a small model: on a terminal, and with lines from a pipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fewbit.cli import main

from .terminal import Terminal, history

CTRL_D = "\x04"
SHORT = ["--max-tokens", "8", "--seed", "3"]
ENDLESS = ["--max-tokens", "60000", "--ctx", "65536", "--temp", "0"]


def chat(*args: str, stdin: str) -> Result:
    return CliRunner().invoke(main, ["chat", *args], input=stdin)


def test_each_line_of_a_pipe_is_a_message(tiny: str, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    lines = f'one\n\n"""two\nthree"""\n/stats\n/save {saved}\n'
    result = chat(tiny, "--system", "Be brief.", *SHORT, stdin=lines)
    assert result.exit_code == 0, result.output
    messages = json.loads(saved.read_text())
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert [m["content"] for m in messages if m["role"] == "user"] == ["one", "two\nthree"]
    answers = [m["content"].removesuffix("\n") + "\n" for m in messages if m["role"] == "assistant"]
    assert result.stdout == "".join(answers)
    assert "of 8192 tokens of context" in result.stderr


def test_json_is_a_line_for_each_answer(tiny: str) -> None:
    result = chat(tiny, *SHORT, "--json", stdin="one\n/stats\ntwo\n")
    assert result.exit_code == 0, result.output
    first, second = map(json.loads, result.stdout.splitlines())
    assert (first["model"], len(first["tokens"]), first["finish_reason"]) == ("tiny", 8, "length")
    assert second["prompt_tokens"] > first["prompt_tokens"]
    assert first["text"].splitlines()[0] in chat(tiny, *SHORT, stdin="one\n").stdout


def test_a_long_talk_goes_on(tiny: str) -> None:
    lines = "".join(f"message number {i}, and some words more\n" for i in range(6))
    result = chat(tiny, *SHORT, "--ctx", "200", "--json", stdin=lines)
    assert result.exit_code == 0, result.output
    counts = [json.loads(line)["prompt_tokens"] for line in result.stdout.splitlines()]
    assert len(counts) == 6
    assert max(counts) <= 200 - 8
    assert "the context is full: the model no longer sees the oldest" in result.stderr


def test_the_same_seed_says_the_same(tiny: str) -> None:
    first, second = (chat(tiny, *SHORT, stdin="one\n/retry\n").stdout for _ in range(2))
    assert first == second


def test_a_mistake_in_a_pipe_is_one_line_and_status_1(tiny: str) -> None:
    result = chat(tiny, stdin="/nope\none\n")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("fewbit: there is no command /nope")
    assert result.stderr.count("\n") == 1


def test_a_model_without_template_cannot_talk(no_template: str) -> None:
    result = chat(no_template, stdin="one\n")
    assert result.exit_code == 1
    assert "the model has no chat template, so it cannot chat" in result.stderr


def test_lines_that_are_no_text(tiny: str) -> None:
    result = CliRunner().invoke(main, ["chat", tiny], input=b"a\xff\n")
    assert result.exit_code == 1
    assert "standard input is not UTF-8 text" in result.stderr


def test_notes_end_between_words_on_a_narrow_terminal(tiny: str, tmp_path: Path) -> None:
    terminal = Terminal("chat", tiny, FEWBIT_CACHE=str(tmp_path), COLUMNS="40")
    assert "tiny, 8192 tokens of context; /help\nlists the commands, /bye leaves\n" in terminal.until("> ")
    terminal.type("/help\n")
    terminal.until("/temp X ")
    assert terminal.until("/seed").endswith("always takes the likeliest\n              token\n")
    terminal.type("/bye\n")
    assert terminal.end() == 0


def test_on_a_terminal(tiny: str, tmp_path: Path) -> None:
    terminal = Terminal("chat", tiny, *ENDLESS, FEWBIT_CACHE=str(tmp_path))
    assert "/help lists the commands" in terminal.until("> ")
    terminal.type("hello\n")
    terminal.until("hello\r\n")
    terminal.more(20)  # of an answer without an end
    terminal.interrupt()
    terminal.until("\r\n> ")
    terminal.type("/undo\n")
    terminal.until("removed the last message; 0 messages are left\r\n> ")
    terminal.type("/nope\n")
    terminal.until("there is no command /nope")
    terminal.until("\r\n> ")
    terminal.type("dropped")
    terminal.until("dropped")
    terminal.interrupt()
    terminal.until("\r\n> ")
    terminal.interrupt()
    terminal.until("Ctrl-C again or Ctrl-D to leave\r\n> ")
    terminal.type("/temp\n")
    terminal.until("temperature: 0.0\r\n> ")
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    assert history(tmp_path) == ["hello", "/undo", "/nope", "/temp"]
    assert (tmp_path / "history").stat().st_mode & 0o077 == 0


def typed(terminal: Terminal, path: Path) -> list[str]:
    """What the model was told, by `/save`."""
    terminal.until("> ")
    terminal.type(f"/save {path}\r")
    terminal.until("saved")
    terminal.until("> ")
    terminal.type("/bye\r")
    assert terminal.end() == 0
    return [message["content"] for message in json.loads(path.read_text()) if message["role"] == "user"]


def test_a_paste_that_the_terminal_marks_is_one_message(tiny: str, tmp_path: Path) -> None:
    terminal = Terminal("chat", tiny, *SHORT, FEWBIT_CACHE=str(tmp_path), TERM="xterm")
    terminal.until("> ")
    terminal.type("\x1b[200~one\rtwo\r\rthree\x1b[201~\r")
    terminal.until("cut after 8 tokens")
    assert typed(terminal, tmp_path / "talk.json") == ["one\ntwo\n\nthree"]


@pytest.mark.parametrize("end", ["\r", ""])
def test_a_paste_that_the_terminal_does_not_mark_is_one_message(tiny: str, tmp_path: Path, end: str) -> None:
    terminal = Terminal("chat", tiny, *SHORT, FEWBIT_CACHE=str(tmp_path))
    terminal.until("> ")
    terminal.type(f"one\rtwo\rthree{end}")
    if not end:
        terminal.until("three")
        terminal.type("\r")
    terminal.until("cut after 8 tokens")
    assert typed(terminal, tmp_path / "talk.json") == ["one\ntwo\nthree"]


def test_what_was_typed_is_remembered(tiny: str, tmp_path: Path) -> None:
    (tmp_path / "history").write_text("/seed 7\n")
    terminal = Terminal("chat", tiny, FEWBIT_CACHE=str(tmp_path), TERM="xterm")
    terminal.until("> ")
    terminal.type("\x10\n")  # Ctrl-P: the line before
    terminal.until("seed: 7")
    terminal.until("> ")
    terminal.interrupt()
    terminal.until("to leave")
    terminal.until("> ")
    terminal.interrupt()
    assert terminal.end() == 0

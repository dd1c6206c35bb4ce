"""A conversation on a terminal: Tab completes, keys typed during an answer are kept, `/save` asks, long pastes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fewbit.cli.conversation import Conversation
from fewbit.cli.keyboard import completions
from fewbit.cli.slash import COMMANDS
from fewbit.cli.talk import talk

from .script import Script, Typist
from .terminal import Terminal

SHORT = ["--max-tokens", "8", "--seed", "3"]
ENDLESS = ["--max-tokens", "60000", "--ctx", "65536", "--temp", "0"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("/st", ["/stats"]),
        ("/s", ["/save ", "/seed ", "/stats", "/system "]),
        ("/bye", ["/bye"]),
        ("/nope", []),
        ("//", []),
        ("hello", []),
        ("", []),
        ("/stats ", []),
        ("/system ta", []),
    ],
)
def test_commands_complete(line: str, found: list[str]) -> None:
    assert completions(line) == found


def test_every_command_completes() -> None:
    assert {name.strip("/ ") for name in completions("/")} >= set(COMMANDS)


def test_files_complete_behind_commands_that_take_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "talks").mkdir()
    for name in ("talk.json", "a talk.json", "a test.json", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / "talks" / "one.json").touch()
    assert completions("/load ta") == ["talk.json", "talks/"]
    assert completions("/save talks/") == ["talks/one.json"]
    assert completions("/load a t") == ["talk.json", "test.json"]  # what stands for the last word
    assert completions("/load .h") == [".hidden"]
    assert completions("/load ~/talk.") == ["~/talk.json"]
    assert completions("/load no/such/") == []
    assert "talk.json" in completions("/load ")


def test_tab_on_a_terminal(tiny: str, tmp_path: Path) -> None:
    terminal = Terminal("chat", tiny, *SHORT, FEWBIT_CACHE=str(tmp_path), TERM="xterm")
    terminal.until("> ")
    terminal.type("/see\t7\r")
    terminal.until("seed: 7")
    terminal.until("> ")
    terminal.type("one\ttwo\r")
    terminal.until("cut after 8 tokens")
    path = tmp_path / "talk.json"
    terminal.until("> ")
    terminal.type(f"/sav\t{path}\r")
    terminal.until("saved 2 messages")
    terminal.until("> ")
    terminal.type("/by\t\r")
    assert terminal.end() == 0
    assert json.loads(path.read_text())[0]["content"] == "one\ttwo"


def test_keys_during_an_answer_are_kept_for_the_next_message(tiny: str, tmp_path: Path) -> None:
    terminal = Terminal("chat", tiny, *ENDLESS, FEWBIT_CACHE=str(tmp_path))
    terminal.until("> ")
    terminal.type("hello\r")
    terminal.until("hello\r\n")
    terminal.more(20)
    terminal.type("/seed 12345")
    terminal.more(200)
    assert b"/seed" not in terminal.seen  # nothing is echoed into the answer
    terminal.interrupt()
    terminal.until("\r\n> ")
    terminal.until("/seed 12345")
    terminal.type("\r")
    terminal.until("seed: 12345")
    terminal.until("> ")
    terminal.type("/bye\r")
    assert terminal.end() == 0


def test_save_asks_before_it_overwrites(tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_text("[]")
    terminal = Terminal("chat", tiny, "--system", "Be brief.", *SHORT, FEWBIT_CACHE=str(tmp_path))
    terminal.until("> ")
    terminal.type(f"/save {path}\r")
    terminal.until("overwrite it?")
    terminal.until("[y/N] ")
    terminal.type("\r")
    terminal.until("nothing was written")
    assert path.read_text() == "[]"
    terminal.until("> ")
    terminal.type(f"/save {path}\r")
    terminal.until("[y/N] ")
    terminal.type("y\r")
    terminal.until("saved 1 messages")
    terminal.until("> ")
    terminal.type("/bye\r")
    assert terminal.end() == 0
    assert len(json.loads(path.read_text())) == 1


@pytest.mark.parametrize(("answer", "is_written"), [("y", True), ("n", False), ("", False)])
def test_an_answer_to_a_question(tmp_path: Path, answer: str, is_written: bool) -> None:
    path = tmp_path / "talk.json"
    path.write_text("[]")
    typist = Typist(f"/save {path}", answer)
    talk(Conversation(Script(), "Be brief."), typist)
    assert typist.notes[-1] == ("saved 1 messages" if is_written else "nothing was written")
    assert (path.read_text() != "[]") is is_written


def test_a_long_message_is_counted() -> None:
    lines = [f"line {number}" for number in range(120)]
    typist = Typist(*lines, pasted=119)
    talk(Conversation(Script([["ok"]])), typist)
    assert typist.notes[0] == "120 lines, 969 characters"


def test_run_without_a_prompt_on_a_terminal_is_a_conversation(tiny: str, tmp_path: Path) -> None:
    terminal = Terminal("run", tiny, "--system", "Be brief.", *SHORT, FEWBIT_CACHE=str(tmp_path))
    assert "/help lists the commands" in terminal.until("> ")
    terminal.type("/system\r")
    terminal.until("system: Be brief.")
    terminal.until("> ")
    terminal.type("hello\r")
    terminal.until("cut after 8 tokens")
    terminal.until("> ")
    terminal.type("/bye\r")
    assert terminal.end() == 0


@pytest.mark.parametrize("option", ["--raw", "--json"])
def test_run_without_a_prompt_for_a_program(tiny: str, option: str) -> None:
    terminal = Terminal("run", tiny, option)
    terminal.until("there is no prompt")
    assert terminal.end() == 2

"""Conversations: what is kept of them, and what the commands do."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.cli.conversation import Conversation
from fewbit.cli.slash import COMMANDS, respond
from fewbit.errors import FewbitError, PathError

from .script import Script


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def said(conversation: Conversation, text: str) -> str:
    """What comes of a line: the answer, or the note."""
    reply = respond(conversation, text)
    return reply.note if reply.stream is None else "".join(reply.stream)


def test_messages_are_remembered() -> None:
    script = Script([["A", " b"], ["c"]])
    talk = Conversation(script, "Be brief.", {"temperature": 0.5})
    assert said(talk, "one") == "A b"
    assert said(talk, "two") == "c"
    assert script.asked[1] == ([system("Be brief."), user("one"), assistant("A b"), user("two")], {"temperature": 0.5})
    assert all(answer.closed for answer in script.given)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), FewbitError("no room")])
def test_an_answer_that_broke_off_counts_as_far_as_it_came(error: BaseException) -> None:
    script = Script([["half", error], ["whole"]])
    talk = Conversation(script)
    with pytest.raises(type(error)):
        said(talk, "one")
    assert script.given[0].closed
    said(talk, "two")
    assert talk.messages == [user("one"), assistant("half"), user("two"), assistant("whole")]


def test_a_question_without_any_answer_is_forgotten() -> None:
    talk = Conversation(Script([[FewbitError("too long")]]), "Be brief.")
    with pytest.raises(FewbitError, match="too long"):
        said(talk, "one")
    assert talk.messages == [system("Be brief.")]


def test_an_empty_answer_counts() -> None:
    talk = Conversation(Script([[]]))
    assert said(talk, "one") == ""
    assert talk.messages == [user("one"), assistant("")]


def test_one_who_stops_listening_keeps_what_was_heard() -> None:
    script = Script([["a", "b", "c"]])
    talk = Conversation(script)
    stream = talk.ask("one")
    next(stream)
    stream.close()
    assert script.given[0].closed
    assert talk.messages == [user("one"), assistant("a")]


def test_retry_takes_another_seed() -> None:
    script = Script([["a"], ["b"], ["c"], ["d"]])
    talk = Conversation(script, settings={"seed": 5})
    assert [said(talk, line) for line in ("one", "/retry", "/retry", "two")] == ["a", "b", "c", "d"]
    assert [settings["seed"] for _, settings in script.asked] == [5, 6, 7, 5]
    assert [messages for messages, _ in script.asked[:3]] == [[user("one")]] * 3
    assert talk.messages == [user("one"), assistant("c"), user("two"), assistant("d")]


def test_a_retry_that_fails_leaves_the_answer() -> None:
    talk = Conversation(Script([["a"], [FewbitError("no")]]))
    said(talk, "one")
    with pytest.raises(FewbitError):
        said(talk, "/retry")
    assert talk.messages == [user("one"), assistant("a")]


def test_undo_and_reset() -> None:
    talk = Conversation(Script([["a"], ["b"]]), "Be brief.")
    said(talk, "one")
    said(talk, "two")
    assert said(talk, "/undo") == "removed the last message; 3 messages are left"
    assert talk.messages == [system("Be brief."), user("one"), assistant("a")]
    said(talk, "/reset")
    assert talk.messages == [system("Be brief.")]


@pytest.mark.parametrize("line", ["/undo", "/retry"])
def test_nothing_to_take_back(line: str) -> None:
    with pytest.raises(FewbitError, match="nothing was asked yet"):
        said(Conversation(Script(), "Be brief."), line)


def test_system() -> None:
    talk = Conversation(Script([["a"]]))
    assert said(talk, "/system") == "system: none"
    said(talk, "one")
    assert said(talk, "/system Be kind.") == "system: Be kind."
    said(talk, "/system   Be brief.  ")
    assert talk.messages == [system("Be brief."), user("one"), assistant("a")]


def test_settings() -> None:
    script = Script([["a"]])
    talk = Conversation(script)
    assert said(talk, "/temp") == "temperature: the model's own"
    assert said(talk, "/seed") == "seed: random"
    assert said(talk, "/temp 0.25") == "temperature: 0.25"
    assert said(talk, "/seed 42") == "seed: 42"
    said(talk, "one")
    assert script.asked[0][1] == {"temperature": 0.25, "seed": 42}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/temp hot", "temperature must be a number of at least 0, got 'hot'"),
        ("/temp -1", "got '-1'"),
        ("/temp nan", "got 'nan'"),
        ("/temp inf", "got 'inf'"),
        ("/seed x", "seed must be a whole number of at least 0, got 'x'"),
        ("/seed -1", "got '-1'"),
        ("/seed " + "9" * 5000, "seed must be"),
        ("/nope", "there is no command /nope"),
        ("/", "there is no command /;"),
        ("/undo 3", "/undo takes no argument, got '3'"),
        ("/save", "/save needs the name of a file"),
        ("/load", "/load needs the name of a file"),
    ],
)
def test_wrong_commands_change_nothing(line: str, message: str) -> None:
    talk = Conversation(Script())
    with pytest.raises(FewbitError) as info:
        said(talk, line)
    assert message in str(info.value)
    assert (talk.messages, talk.settings) == ([], {})


def test_two_slashes_are_one_for_the_model() -> None:
    script = Script([["a"]])
    said(Conversation(script), "//etc is a folder?")
    assert script.asked[0][0] == [user("/etc is a folder?")]


def test_stats() -> None:
    talk = Conversation(Script([["a", "b"]]))
    assert said(talk, "/stats") == "no answer yet"
    said(talk, "one")
    assert said(talk, "/stats").endswith("answer: 2 tokens, 10.0 tokens/s; 9 of 100 tokens of context")


def test_help_has_every_command() -> None:
    lines = said(Conversation(Script()), "/help").splitlines()
    assert [line.split()[0] for line in lines] == [*(f"/{name}" for name in COMMANDS), '"""']


@pytest.mark.parametrize("line", ["/quit", "/bye", "/exit"])
def test_quit(line: str) -> None:
    assert respond(Conversation(Script()), line).over


def test_a_question_mark_is_help() -> None:
    talk = Conversation(Script())
    assert said(talk, "/?") == said(talk, "/help")


def test_several_lines_that_begin_with_a_slash_are_a_message_unless_they_are_a_command() -> None:
    script = Script([["a"]])
    talk = Conversation(script)
    said(talk, "/* a comment */\nint x;")
    assert script.asked[0][0] == [user("/* a comment */\nint x;")]
    assert said(talk, "/system one\ntwo") == "system: one\ntwo"


def letters(messages: list[dict[str, str]]) -> int:
    return sum(len(message["content"]) for message in messages)


def test_the_oldest_turns_go_when_the_context_is_full() -> None:
    script = Script([["a" * 10] for _ in range(6)], ctx=100)
    talk = Conversation(script, "s" * 5, {"max_tokens": 25}, letters)
    for name in "pqrt":
        said(talk, name * 15)
    assert talk.dropped == 4
    assert script.asked[2][0] == talk.messages[:6]
    assert script.asked[3][0] == [system("s" * 5), user("r" * 15), assistant("a" * 10), user("t" * 15)]
    assert len(talk.messages) == 9, "all of it can still be saved"
    said(talk, "/reset")
    assert talk.dropped == 0
    said(talk, "u")
    assert script.asked[4][0] == [system("s" * 5), user("u")]


def test_a_message_that_alone_is_too_long() -> None:
    talk = Conversation(Script([["a"], ["b"]], ctx=50), count=letters)
    said(talk, "one")
    with pytest.raises(FewbitError, match=r"the message is too long: 50 tokens .* larger --ctx"):
        said(talk, "x" * 50)
    assert talk.messages == [user("one"), assistant("a")]


@given(st.lists(st.one_of(st.integers(1, 60), st.sampled_from(["/undo", "/retry", "/system s"])), max_size=20))
def test_what_the_model_is_told_fits_and_ends_with_the_question(lines: list[int | str]) -> None:
    script = Script([["a" * (i % 30)] for i in range(30)], ctx=100)
    talk = Conversation(script, settings={"max_tokens": 30}, count=letters)
    for line in lines:
        with contextlib.suppress(FewbitError):
            said(talk, "q" * line if isinstance(line, int) else line)
    for messages, _ in script.asked:
        rest = [message for message in messages if message["role"] != "system"]
        assert letters(messages) < 100
        assert [message["role"] for message in rest] == (["user", "assistant"] * len(rest))[: len(rest)]
        assert rest[-1]["role"] == "user"


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "a talk.json"
    talk = Conversation(Script([["ä"]]), "Be brief.")
    said(talk, "one\ntwo")
    assert said(talk, f"/save {path}") == "saved 3 messages"
    assert json.loads(path.read_text("utf-8")) == talk.messages
    other = Conversation(Script(), "Be kind.")
    assert said(other, f"/load {path}") == "loaded 3 messages"
    assert other.messages == talk.messages
    said(other, "/undo")
    reply = respond(other, f"/save {path}")
    assert reply.question == f"{path} has a conversation of 3 messages; overwrite it?"
    assert json.loads(path.read_text("utf-8")) == talk.messages
    assert reply.then
    assert reply.then().note == "saved 1 messages"
    assert json.loads(path.read_text("utf-8")) == [system("Be brief.")]


@pytest.mark.parametrize(
    "content",
    [b"GGUF", b"{}", b"[1]", b'[{"role": "user"}]', b'[{"role": "king", "content": "a"}]', b"\xff", b"[" * 100_000,
     b'[{"role": "user", "content": 1}]', b'[{"role": ["user"], "content": "a"}]'],
)  # fmt: skip
def test_what_is_no_conversation_is_neither_read_nor_overwritten(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    talk = Conversation(Script(), "Be brief.")
    for line in (f"/load {path}", f"/save {path}"):
        with pytest.raises(FewbitError, match="not a saved conversation"):
            said(talk, line)
    assert path.read_bytes() == content
    assert talk.messages == [system("Be brief.")]


@pytest.mark.parametrize("place", [lambda p: p / "no" / "such", lambda p: p, lambda p: f"{p}/a\0b"])
def test_files_that_cannot_be(place: Callable[[Path], object], tmp_path: Path) -> None:
    for command in ("/save", "/load"):
        with pytest.raises(PathError, match="cannot be"):
            said(Conversation(Script()), f"{command} {place(tmp_path)}")


@given(st.lists(st.sampled_from(["x", "/undo", "/retry", "/reset", "/system y", "/stats", "/temp 1"]), max_size=12))
def test_questions_and_answers_alternate(lines: list[str]) -> None:
    answers: list[Any] = [["a"] if i % 3 else [FewbitError("no")] for i in range(12)]
    talk = Conversation(Script(answers))
    for line in lines:
        with contextlib.suppress(FewbitError):
            said(talk, line)
        roles = [message["role"] for message in talk.messages if message["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)

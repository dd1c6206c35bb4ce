"""The loop of a conversation: messages in, answers out, Ctrl-C and mistakes."""

from __future__ import annotations

import pytest

from fewbit.cli.conversation import Conversation
from fewbit.cli.talk import LineDropped, talk
from fewbit.errors import FewbitError

from .script import Script, Typist

STOP = KeyboardInterrupt()


def test_answers_are_printed_each_on_its_lines() -> None:
    typist = Typist("one", "", "   ", "two")
    talk(Conversation(Script([["A", " b"], ["c\n"]])), typist)
    assert typist.out == "A b\nc\n"
    assert typist.notes == []


def test_quit_ends_before_the_rest() -> None:
    script = Script([["a"]])
    talk(Conversation(script), Typist("/quit", "one"))
    assert script.asked == []


def test_ctrl_c_stops_the_answer_and_not_the_program() -> None:
    typist = Typist("one", "two")
    conversation = Conversation(Script([["half", STOP], ["whole"]]))
    talk(conversation, typist)
    assert typist.out == "half\nwhole\n"
    assert len(conversation.messages) == 4


def test_ctrl_c_twice_in_a_row_leaves() -> None:
    script = Script([["a"], ["b"]])
    typist = Typist(STOP, "one", STOP, STOP, "two")
    talk(Conversation(script), typist)
    assert typist.out == "a\n"
    assert len(typist.notes) == 2


def test_ctrl_c_on_a_line_with_something_in_it_does_not_count() -> None:
    typist = Typist(STOP, LineDropped(), STOP, "one")
    talk(Conversation(Script([["a"]])), typist)
    assert typist.out == "a\n"


def test_ctrl_c_leaves_at_once_where_nobody_types() -> None:
    with pytest.raises(KeyboardInterrupt):
        talk(Conversation(Script([["half", STOP]])), Typist("one", "two", interactive=False))


def test_mistakes_are_told_and_the_talk_goes_on() -> None:
    typist = Typist("/nope", "one", "two")
    talk(Conversation(Script([[FewbitError("no\nroom")], ["a"]])), typist)
    assert typist.out.strip() == "a"
    assert typist.notes == ["there is no command /nope; /help lists them, // begins a message with a slash", "no room"]


def test_mistakes_end_it_where_nobody_types() -> None:
    with pytest.raises(FewbitError, match="no command /nope"):
        talk(Conversation(Script()), Typist("/nope", interactive=False))


@pytest.mark.parametrize(
    ("max_tokens", "note"),
    [
        (2, "the answer was cut after 2 tokens; a larger --max-tokens lets it go on"),
        (9, "the answer was cut: the context of 100 tokens is full; a larger --ctx makes room"),
        (None, "the answer was cut: the context of 100 tokens is full; a larger --ctx makes room"),
    ],
)
def test_which_limit_cut_an_answer_is_said(max_tokens: int | None, note: str) -> None:
    typist = Typist("one")
    script = Script([["a", "b"]], finish_reason="length")
    talk(Conversation(script, settings={"max_tokens": max_tokens}), typist)
    assert typist.notes == [note]


def test_the_screen_is_told_how_far_the_prompt_is_and_of_the_end() -> None:
    typist = Typist("one")
    conversation = Conversation(Script([["a", "b"]]))
    talk(conversation, typist)
    assert typist.progress == [0.5, 0.5]
    assert typist.completions == [conversation.last]
    assert conversation.prompt_done == 0


def test_pasted_lines_are_one_message() -> None:
    script = Script([["x"], ["y"]])
    talk(Conversation(script), Typist("def f():", "    return 1  ", "", "f()", "two", pasted=3))
    assert script.asked[0][0] == [{"role": "user", "content": "def f():\n    return 1\n\nf()"}]
    assert script.asked[1][0][-1] == {"role": "user", "content": "two"}


def test_a_message_before_the_end_is_answered() -> None:
    script = Script([["x"]])
    talk(Conversation(script), Typist("one", "two", pasted=9))
    assert script.asked[0][0] == [{"role": "user", "content": "one\ntwo"}]


def test_a_command_is_one_line_whatever_waits_behind_it() -> None:
    script = Script([["x"]])
    talk(Conversation(script), Typist("/temp 0.5", "one", "two", pasted=1))
    assert script.asked == [([{"role": "user", "content": "one\ntwo"}], {"temperature": 0.5})]


def test_what_is_forgotten_is_noted_before_the_answer() -> None:
    typist = Typist("one", "two")
    script = Script([["a"], ["b"]], ctx=6)
    talk(Conversation(script, count=lambda messages: 2 * len(messages)), typist)
    assert typist.notes == [
        "the context is full: the model no longer sees the oldest 2 messages; "
        "/reset starts over, a larger --ctx makes room"
    ]
    assert script.asked[1][0] == [{"role": "user", "content": "two"}]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['"""', "a", "  b", '"""'], "a\n  b"),
        (['"""a', 'b"""'], "a\nb"),
        (['"""a"""'], "a"),
        (['"""a', "", 'b"""  '], "a\n\nb"),
        (['  """/help', 'me"""'], "/help\nme"),
        (['"""a', "b"], "a\nb"),
    ],
)
def test_messages_of_several_lines(lines: list[str], message: str) -> None:
    script = Script([["x"]])
    talk(Conversation(script), Typist(*lines))
    assert script.asked[0][0] == [{"role": "user", "content": message}]


def test_ctrl_c_gives_up_a_message_of_several_lines() -> None:
    script = Script([["x"]])
    talk(Conversation(script), Typist('"""a', STOP, "b"))
    assert script.asked[0][0] == [{"role": "user", "content": "b"}]

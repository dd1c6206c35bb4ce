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


def test_an_answer_that_was_cut_is_noted() -> None:
    typist = Typist("one")
    talk(Conversation(Script([["a"]], finish_reason="length")), typist)
    assert "cut" in typist.notes[0]


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

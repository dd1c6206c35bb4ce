from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.text.reply import HERMES, CallDropped, ReplyParser

from .reading import cut, events_of, fold, read
from .transcripts import FAMILIES, TOOLS, Transcript, transcripts

CASES = {
    f"{name}: {what}": (FAMILIES[name], transcript)
    for name in FAMILIES
    for what, transcript in transcripts(FAMILIES[name]).items()
}
CALLED = Transcript("", (("add", {"x": 3, "y": 4}),))
SPECIAL = ["<", "|", ">", "{", "}", "[", "]", '"', "'", "\\", "\n", " ", ":", ",", "(", ")", "=", "a", "1", "-", "é"]


@pytest.mark.parametrize("case", CASES)
def test_replies_are_read_whole(case: str) -> None:
    family, transcript = CASES[case]
    reply = read(family.format, transcript.text)
    assert reply.calls == transcript.calls
    assert reply.thought == transcript.thought
    if transcript.answer is not None:
        assert reply.answer == transcript.answer


SIMILAR = ("the same call twice", "numbers", "text before", "whitespace around", "unknown tool after a call")


@pytest.mark.parametrize("case", [case for case in CASES if not case.endswith(SIMILAR)])
def test_it_does_not_matter_where_a_reply_is_cut(case: str) -> None:
    family, transcript = CASES[case]
    text = transcript.text
    whole = events_of(family.format, [text])
    assert events_of(family.format, text) == whole
    for place in range(1, len(text)):
        assert events_of(family.format, cut(text, [place])) == whole, place


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_it_does_not_matter_in_which_pieces_a_reply_comes(name: str, data: st.DataObject) -> None:
    family = FAMILIES[name]
    texts = [transcript.text for transcript in transcripts(family).values()]
    markers = [*family.format.calls.literals, *(["<think>", "</think>"] if family.format.thought else [])]
    parts = st.lists(st.sampled_from([*texts, *markers, *SPECIAL]) | st.text(max_size=5), max_size=6)
    text = "".join(data.draw(parts))
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    opens_thought = family.format.thought is not None and data.draw(st.booleans())
    whole = events_of(family.format, [text], opens_thought=opens_thought)
    assert events_of(family.format, cut(text, places), opens_thought=opens_thought) == whole
    assert events_of(family.format, text, opens_thought=opens_thought) == whole
    for _, arguments in fold(whole).calls:
        assert isinstance(arguments, dict)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("what", ["unknown tool", "cut off"])
def test_nothing_is_lost_of_what_is_no_call(name: str, what: str) -> None:
    family = FAMILIES[name]
    transcript = transcripts(family)[what]
    reply = read(family.format, transcript.text)
    assert not reply.calls
    text = transcript.text
    if family.format.thought is None:  # the mark that ends a message
        text = text.removesuffix("<|call|>")
    assert reply.answer == text


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_text_without_marks_is_the_answer(name: str, data: st.DataObject) -> None:
    text = data.draw(st.text(alphabet=st.characters(exclude_characters="<[{f\x1f", exclude_categories=["Cs"])))
    assert fold(events_of(FAMILIES[name].format, text)).answer == text


@pytest.mark.parametrize("name", FAMILIES)
def test_broken_arguments_are_text(name: str) -> None:
    family = FAMILIES[name]
    text = family.write(("add", {"x": 1})).replace("1", "1 1", 1)
    if text.count("1 1") == 0 or read(family.format, text).calls:  # some have no syntax inside a value
        text = family.write(("add", {"x": 1}))[: -max(1, len(family.end)) - 3]
    reply = read(family.format, text)
    assert not reply.calls
    assert "add" in reply.answer


def test_a_call_that_had_begun_is_dropped_before_its_text() -> None:
    events = events_of(HERMES, '<tool_call>{"name": "add", "arguments": {"x": oops}}</tool_call>')
    assert CallDropped(0) in events
    assert fold(events).answer == '<tool_call>{"name": "add", "arguments": {"x": oops}}</tool_call>'


@pytest.mark.parametrize("name", FAMILIES)
def test_without_tools_calls_are_text(name: str) -> None:
    family = FAMILIES[name]
    if family.format.thought is not None:
        text = family.write(("add", {"x": 1, "y": 2}))
        assert read(family.format, text, []).answer == text


@pytest.mark.parametrize("name", FAMILIES)
def test_no_more_calls_than_wanted(name: str) -> None:
    family = FAMILIES[name]
    reply = read(family.format, transcripts(family)["several calls"].text, max_calls=1)
    assert reply.calls == (("weather", {"city": "Zürich"}),)
    assert reply.answer == ""


def test_feeding_after_the_end_changes_nothing() -> None:
    parser = ReplyParser(HERMES, TOOLS)
    assert fold([*parser.feed("a"), *parser.finish(), *parser.feed("b"), *parser.finish()]).answer == "a"


THOUGHTS = {
    "not closed": (Transcript("<think>I wonder", thought="I wonder"), False),
    "opened by the template": (Transcript("I wonder\n</think>\n\nYes.", answer="Yes.", thought="I wonder"), True),
    "opened twice": (Transcript("\n<think>\nHm</think>Yes.", answer="Yes.", thought="Hm"), True),
    "opened, never closed": (Transcript("I wonder ", thought="I wonder"), True),
    "empty": (Transcript("<think>\n\n</think>\n\nYes.", answer="Yes."), False),
    "two": (Transcript("<think>a</think>\n<think>b</think>c", answer="c", thought="a\nb"), False),
    "in the answer": (Transcript("Write <think> and </think>.", answer="Write <think> and </think>."), False),
    "a call inside": (Transcript("<think><tool_call>{}</think>x", answer="x", thought="<tool_call>{}"), False),
    "half a tag": (Transcript("<thin", answer="<thin"), False),
    "half an end": (Transcript("a</thin", thought="a</thin"), True),
}


@pytest.mark.parametrize("what", THOUGHTS)
def test_thoughts(what: str) -> None:
    transcript, opens_thought = THOUGHTS[what]
    for pieces in ([transcript.text], transcript.text):
        reply = fold(events_of(HERMES, pieces, opens_thought=opens_thought))
        assert (reply.answer, reply.thought) == (transcript.answer, transcript.thought)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_long_and_hostile_text_is_read_once(name: str, size: int) -> None:
    family = FAMILIES[name]
    opening = (family.format.calls.openings or ("[",))[0]
    count = 200 if size == 1 else 2_000
    for unit in (opening, "<", "{", "[", '{"name": "add", "arguments": {"x": [', " ", "\\", f"{opening}add(", "\n\n"):
        text = opening + unit * count
        reply = fold(events_of(family.format, cut(text, range(0, len(text), size))))
        assert not reply.calls


def test_qwen_forgets_what_ends_an_argument() -> None:
    text = "<tool_call>\n<function=add>\n<parameter=x>\n1\n<parameter=y>\n2\n</function>\n</tool_call>"
    for pieces in ([text], text):
        assert fold(events_of(FAMILIES["Qwen3-Coder"].format, pieces)).calls == (("add", {"x": 1, "y": 2}),)


def test_llama_writes_calls_among_text() -> None:
    text = 'It is {"a": 1}. {"name": "add", "parameters": {"x": 1, "y": 2}}'
    for pieces in ([text], text):
        reply = fold(events_of(FAMILIES["Llama 3"].format, pieces))
        assert (reply.answer, reply.calls) == ('It is {"a": 1}.', (("add", {"x": 1, "y": 2}),))


@pytest.mark.parametrize(
    "text", ['{"name": "add", "parameters": {}', 'So: {"name": "Bob", "age": 3}', '{"name": "ping"}']
)
def test_json_that_is_an_answer(text: str) -> None:
    for pieces in ([text], text):
        reply = fold(events_of(FAMILIES["Llama 3"].format, pieces))
        assert (reply.answer, reply.calls) == (text, ())


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        (' to=functions.add<|channel|>commentary <|constrain|>json<|message|>{"x": 3, "y": 4}<|call|>', CALLED),
        (' to=functions.add<|channel|>analysis<|message|>{"x": 3, "y": 4}', CALLED),
        ("<|channel|>commentary<|channel|>analysis<|message|>Sums<|end|>", Transcript("", thought="Sums")),
        (" to= be or not to be", Transcript("", answer=" to= be or not to be")),
        (" to=functions.launch<|message|>{}", Transcript("", answer=" to=functions.launch<|message|>{}")),
    ],
)
def test_harmony_headers_begin_in_the_prompt_and_may_name_channels_twice(text: str, reply: Transcript) -> None:
    for pieces in ([text], text):
        found = fold(events_of(FAMILIES["Harmony"].format, pieces))
        assert (found.answer, found.thought, found.calls) == (reply.answer, reply.thought, reply.calls)


@pytest.mark.parametrize("name", [name for name in FAMILIES if FAMILIES[name].format.calls_in_thoughts])
def test_calls_in_thoughts(name: str) -> None:
    family = FAMILIES[name]
    call, opening = family.write(("add", {"x": 3, "y": 4})), family.format.calls.openings[0]
    cases = {
        f"<think>Sums.\n{call}": Transcript("", CALLED.calls, thought="Sums."),
        f"<think>Sums.\n{call}\nMore.</think>Seven.": Transcript("", CALLED.calls, "Seven.", "Sums.\nMore."),
        f"<think>Is {opening} right?</think>Yes.": Transcript("", (), "Yes.", f"Is {opening} right?"),
        f"<think>{call[: -len(family.end) - 20]}</think>No.": Transcript(
            "", (), "No.", call[: -len(family.end) - 20].strip()
        ),
    }
    for text, reply in cases.items():
        for pieces in ([text], text):
            found = fold(events_of(family.format, pieces))
            assert (found.answer, found.thought, found.calls) == (reply.answer, reply.thought, reply.calls), text


def test_a_second_end_of_a_thought_is_left_out() -> None:
    text = "<|channel>thought\nHm<channel|>Seven.<channel|> Or eight.<channel|>"
    for pieces in ([text], text):
        reply = fold(events_of(FAMILIES["Gemma 4"].format, pieces))
        assert (reply.answer, reply.thought) == ("Seven. Or eight.", "Hm")


@pytest.mark.parametrize("call", ["<tool_calls>[{}]</tool_calls>", "<|function_call|>{}"])
def test_what_stands_in_place_of_the_hermes_form(call: str) -> None:
    text = "Sums. " + call.format('{"name": "add", "arguments": {"x": 3, "y": 4}}')
    for pieces in ([text], text):
        reply = fold(events_of(HERMES, pieces))
        assert (reply.answer, reply.calls) == ("Sums.", CALLED.calls)

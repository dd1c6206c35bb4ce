from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.server.tool_calls import ToolParser

ARGUMENTS = {"city": "Zürich", "days": [1, 2]}
CALL = json.dumps({"name": "weather", "arguments": ARGUMENTS}, ensure_ascii=False)
LLAMA = json.dumps({"name": "weather", "parameters": ARGUMENTS})
SHAPES = {
    "hermes": f"Let me see.\n<tool_call>\n{CALL}\n</tool_call>",
    "two": f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>",
    "mistral": f"[TOOL_CALLS][{CALL}, {CALL}]",
    "mistral, the mark was a control token": f"[{CALL}]",
    "llama": LLAMA,
    "llama, with a tag": f"<|python_tag|>{LLAMA}; {LLAMA}",
    "openai": json.dumps({"type": "function", "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS)}}),
}
COUNTS = {"two": 2, "mistral": 2, "llama, with a tag": 2}


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_calls_are_found_however_the_text_is_cut(shape: str, data: st.DataObject) -> None:
    text, parser, shown = SHAPES[shape], ToolParser(["weather"]), ""
    while text:
        size = data.draw(st.integers(1, len(text)))
        shown += parser.feed(text[:size])
        text = text[size:]
    rest, calls = parser.finish()
    assert [call.name for call in calls] == ["weather"] * COUNTS.get(shape, 1)
    assert all(json.loads(call.arguments) == ARGUMENTS for call in calls)
    assert (shown + rest).strip() == ("Let me see." if shape == "hermes" else "")


@pytest.mark.parametrize(
    "text",
    [
        "plain text with < and [",
        "<tool_call>no json",
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '{"answer": 42}',
        "[1, 2, 3]",
        "<tool_ca",
        "{" * 5000,
        "",
    ],
)
def test_text_that_is_no_call_stays_text(text: str) -> None:
    parser = ToolParser(["weather"])
    shown = "".join(parser.feed(letter) for letter in text)
    rest, calls = parser.finish()
    assert (shown + rest, calls) == (text, [])


def test_without_tools_nothing_is_held_back() -> None:
    parser = ToolParser([])
    assert parser.feed(SHAPES["hermes"]) == SHAPES["hermes"]
    assert parser.finish() == ("", [])


def test_one_call_where_no_more_are_wanted() -> None:
    parser = ToolParser(["weather"], most=1)
    parser.feed(SHAPES["two"])
    assert len(parser.finish()[1]) == 1

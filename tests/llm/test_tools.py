from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from fewbit.errors import DtypeError, RequestError
from fewbit.llm import LLM, ToolCall
from fewbit.llm.tools import call_function, describe, read_docstring
from fewbit.text.byte_level import BYTE_CHARS
from fewbit.text.grammar import Grammar
from fewbit.text.tokenizer import Tokenizer

from ..engine.toy import Toy
from ..llm_toy import TOKENS, byte_tokenizer, one
from ..text.samples import metadata

llguidance = pytest.importorskip("llguidance")

ASKED = [{"role": "user", "content": "How is the weather in Rome?"}]


class Unit(enum.Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


@dataclass
class Place:
    city: str
    country: str = "Italy"


def ping() -> str:
    """Ping."""
    return "pong"


def weather(city: Literal["Rome"], unit: Unit = Unit.CELSIUS) -> str:
    """The weather of a city.

    It is never wrong.

    Args:
        city: Name of the city,
            as people call it.
        unit (Unit): Of the temperature.

    Returns:
        A sentence.
    """
    return f"{city}: 20 {unit.value}"


def visit(place: Place, days: Annotated[int, "How long."] = 1, tags: list[str] | None = None) -> dict[str, Any]:
    """Visit a place."""
    return {"city": place.city, "days": days, "tags": tags}


def fail(x: int) -> None:
    raise ValueError(f"{x} is too much")


TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls %}{{ call.function.name }}"
    "{% endfor %}\n{% endfor %}{% if tools %}<tool_call>{{ tools | length }}{% endif %}"
)


def chatting(template: str) -> LLM:
    tokenizer = byte_tokenizer()
    tokenizer.chat_templates["default"] = template
    return LLM.from_parts(Toy(vocab=len(TOKENS), ctx=2_000, pages=500).loaded, tokenizer)


@pytest.fixture(scope="module")
def llm() -> Any:
    with chatting(TEMPLATE) as llm:
        yield llm


def test_functions_are_described_by_signature_and_docstring() -> None:
    function = describe(weather)["function"]
    assert function["description"] == "The weather of a city.\n\nIt is never wrong."
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "city": {"enum": ["Rome"], "description": "Name of the city, as people call it."},
            "unit": {"enum": ["C", "F"], "description": "Of the temperature."},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_types_of_packages_are_described() -> None:
    pytest.importorskip("msgspec")
    parameters = describe(visit)["function"]["parameters"]
    assert parameters["properties"]["place"]["$ref"] == "#/$defs/Place"
    assert parameters["$defs"]["Place"]["required"] == ["city"]
    assert parameters["properties"]["days"] == {"type": "integer", "description": "How long.", "default": 1}
    assert parameters["properties"]["tags"]["anyOf"][1] == {"type": "null"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ("", {})),
        ("Add.", ("Add.", {})),
        ("Add.\n\n:param x: One.\n:param int y: Two.", ("Add.", {"x": "One.", "y": "Two."})),
        ("Add.\n\nParameters:\n    x: One.\n\n    y: Two: or more.", ("Add.", {"x": "One.", "y": "Two: or more."})),
    ],
)
def test_docstrings(text: str, found: tuple[str, dict[str, str]]) -> None:
    assert read_docstring(text) == found


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall("0", name, arguments, json.dumps(arguments))


def test_functions_are_called_with_their_types() -> None:
    assert call_function(weather, call("weather", city="Rome", unit="F")) == "Rome: 20 F"
    assert call_function(visit, call("visit", place={"city": "Bari"})) == '{"city": "Bari", "days": 1, "tags": null}'


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        (fail, {"x": 9}, "Error: ValueError: 9 is too much"),
        (weather, {}, "Error: TypeError: missing a required argument: 'city'"),
        (weather, {"town": "Rome"}, "Error: f has no parameter town; it has city, unit"),
        (weather, {"city": "Rome", "unit": "K"}, "Error: ValueError: 'K' is not a valid Unit"),
    ],
)
def test_errors_are_texts(function: Any, arguments: Any, text: str) -> None:
    assert call_function(function, call("f", **arguments)) == text


def test_tools_that_cannot_be_described() -> None:
    async def later() -> None: ...

    with pytest.raises(RequestError, match="later is a coroutine function"):
        describe(later)
    with pytest.raises(RequestError, match="a tool takes its arguments by name"):
        describe(lambda *cities: None)
    with pytest.raises(DtypeError, match="a tool is a dict or a function, not int"):
        describe(1)  # type: ignore[arg-type]


@pytest.mark.parametrize("choice", ["required", "weather", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("seed", range(3))
def test_a_call_that_is_demanded_is_made(llm: LLM, choice: Any, seed: int) -> None:
    output = one(llm.chat(ASKED, tools=[weather], tool_choice=choice, parallel_tool_calls=False, seed=seed,
                          temperature=1.5, max_tokens=110))  # fmt: skip
    assert not output.text or not output.tool_calls
    for made in output.tool_calls:
        assert made.name == "weather"
        assert made.arguments["city"] == "Rome"
        assert json.loads(made.text) == made.arguments


def test_a_call_without_arguments(llm: LLM) -> None:
    output = one(llm.chat(ASKED, tools=[ping], tool_choice="required", parallel_tool_calls=False, max_tokens=None))
    (made,) = output.tool_calls
    assert (made.name, made.arguments, output.text, output.finish_reason) == ("ping", {}, "", "stop")
    assert output.message["tool_calls"][0]["function"] == {"name": "ping", "arguments": made.text}
    assert output.to_dict()["tool_calls"][0]["name"] == "ping"


def test_streams_give_no_text_of_calls(llm: LLM) -> None:
    stream = llm.chat(
        ASKED, tools=[ping], tool_choice="required", parallel_tool_calls=False, max_tokens=None, stream=True
    )
    assert "".join(stream) == ""
    assert [made.name for made in stream.completion.tool_calls] == ["ping"]


def test_calls_are_run_and_their_results_given_back(llm: LLM) -> None:
    seen: list[ToolCall] = []
    messages: list[Any] = [*ASKED]
    answer = llm.run_tools(messages, [ping], max_rounds=1, on_call=seen.append, tool_choice="required",
                           parallel_tool_calls=False, max_tokens=None)  # fmt: skip
    assert [made.name for made in seen] == ["ping"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[2] == {"role": "tool", "tool_call_id": seen[0].id, "name": "ping", "content": "pong"}
    assert messages[3] == answer.message


def test_calls_can_be_refused(llm: LLM) -> None:
    messages: list[Any] = [*ASKED]
    llm.run_tools(messages, [ping], max_rounds=1, on_call=lambda made: False, tool_choice="required",
                  parallel_tool_calls=False, max_tokens=None)  # fmt: skip
    assert messages[2]["content"] == "Error: the user refused this call"


def test_tools_that_are_dicts_are_left_to_the_caller(llm: LLM) -> None:
    messages: list[Any] = [*ASKED]
    answer = llm.run_tools(messages, [describe(ping)], tool_choice="required", parallel_tool_calls=False,
                           max_tokens=None)  # fmt: skip
    assert [made.name for made in answer.tool_calls] == ["ping"]
    assert len(messages) == 2


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tool_choice": "dance", "tools": [ping]}, "or the name of a tool, got 'dance'; the tools are ping"),
        ({"tool_choice": "required"}, "tool_choice is 'required', and no tools were given"),
        ({"reasoning_budget": 5}, "reasoning_budget needs a model that thinks"),
    ],
)
def test_options_that_are_refused(llm: LLM, options: Any, match: str) -> None:
    with pytest.raises(RequestError, match=match):
        llm.chat(ASKED, **options)


def test_a_thought_has_its_budget() -> None:
    with chatting("{{ messages[0].content }}\n<think>\n") as llm:
        output = one(llm.chat(ASKED, reasoning_budget=5, max_tokens=30))
    assert len(output.reasoning) <= 5 + 3  # a character that has begun is finished
    assert output.text
    assert "think" not in output.reasoning


def test_parts_of_a_stream_have_calls(llm: LLM) -> None:
    stream = llm.chat(
        ASKED, tools=[ping], tool_choice="required", parallel_tool_calls=False, max_tokens=None, stream=True
    )
    parts = list(stream.parts())
    calls = [part for delta in parts for part in delta.calls]
    assert {part.name for part in calls} == {"ping"}
    assert [json.loads("".join(part.arguments for part in calls))] == [{}]
    assert parts[-1].completion is not None


def test_control_tokens_of_the_form_reach_the_parser() -> None:
    """gpt-oss writes messages in channels, between control tokens; they are in no text."""
    tokens = [*BYTE_CHARS, "<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>", "<|return|>"]
    kinds = [1] * 256 + [3] * 6
    tokenizer = Tokenizer.from_metadata(metadata(tokens, token_type=kinds))
    assert tokenizer.token_id("<|call|>") in tokenizer.end_of_generation
    assert tokenizer.token_id("<|end|>") not in tokenizer.end_of_generation
    tokenizer.chat_templates["default"] = "{{ messages[0].content }}{{ tools }}<|channel|><|message|><|start|>"
    source = (
        'start: <[256]> "analysis" <[257]> "Hm." <[258]> <[259]> "assistant" <[256]> "commentary to=functions.ping "'
        ' <[257]> "{}"'
    )
    with LLM.from_parts(Toy(vocab=len(tokens), ctx=2_000, pages=500).loaded, tokenizer) as llm:
        constraint = llm.grammars.compile(Grammar.lark(source))
        output = one(llm.chat(ASKED, tools=[describe(ping)], constraint=constraint))
    assert (output.reasoning, output.text, [made.name for made in output.tool_calls]) == ("Hm.", "", ["ping"])


@pytest.mark.parametrize("end", ["", "\n<think>\n"])
def test_an_answer_after_a_thought_has_its_structure(end: str) -> None:
    with chatting("{{ messages[0].content }}" + end) as llm:
        output = one(llm.chat(ASKED, choice=["yes", "no"], max_tokens=200, reasoning_budget=5 if end else None))
    assert output.text in ("yes", "no")


def test_an_answer_with_tools_has_its_structure(llm: LLM) -> None:
    for _ in range(3):
        output = one(llm.chat(ASKED, tools=[ping], choice=["yes", "no"], max_tokens=100))
        assert output.text in ("yes", "no") or output.tool_calls

"""Messages in the forms that templates take."""

from __future__ import annotations

from typing import Any

import pytest

from fewbit.errors import RequestError, TemplateError
from fewbit.text.messages import render_messages
from fewbit.text.template import CHATML, ChatTemplate

from .samples import GOLDEN

CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
ROUND = [
    {"role": "user", "content": [{"type": "text", "text": "Is it raining?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {
        "role": "tool",
        "tool_call_id": "abcdefghi",
        "name": "weather",
        "content": [{"type": "text", "text": "It rains."}],
    },
]
REAL = sorted(path.stem for path in (GOLDEN / "chat").glob("*.jinja"))


def render(source: str, messages: list[dict[str, Any]] = ROUND, tools: Any = None) -> str:
    template = ChatTemplate(source)
    return render_messages(messages, lambda form: template.render(form, tools))


@pytest.mark.parametrize("name", REAL)
def test_a_round_with_a_tool_by_real_templates(name: str) -> None:
    """What a client sends is in every prompt, whatever the template knows of tools."""
    tools = [{"type": "function", "function": {"name": "f", "description": "", "parameters": {"properties": {}}}}]
    text = render((GOLDEN / "chat" / f"{name}.jinja").read_text(), tools=tools)
    for part in ("Is it raining?", "weather", '"Bern"', "It rains."):
        assert part in text
    assert "None" not in text
    assert '\\"city\\"' not in text  # arguments that were quoted twice


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + messages[1].tool_calls[0].function.name }}{{ messages[2].content }}",
        "{% for m in messages %}{{ m.content[0]['text'] }};{% endfor %}",
        "{% for m in messages %}{{ m.content }};{{ m.tool_calls }}{% endfor %}",
        "{% for m in messages %}{{ m.content + ';' if m.role != 'tool' else raise_exception('a tool') }}{% endfor %}",
    ],
)
def test_templates_of_other_kinds(source: str) -> None:
    found = render(source)
    assert "Is it raining?" in found
    assert "weather" in found
    assert "It rains." in found
    assert "'type': 'text'" not in found


def test_contents_as_parts_where_nothing_else_will_do() -> None:
    source = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %};{% endfor %}"
    assert render(source, [{"role": "user", "content": "hi"}]) == "hi;"


def test_arguments_are_an_object_or_json_as_the_template_wants() -> None:
    end = "{{ messages[0].content }}{{ messages[2].content }}{{ messages[1].tool_calls[0].function.name }}"
    assert render("{{ messages[1].tool_calls[0].function.arguments | tojson }}" + end).startswith('{"city": "Bern"}Is')
    assert render("{{ messages[1].tool_calls[0].function.arguments + '!' }}" + end).startswith('{"city": "Bern"}!Is')


def test_null_stays_where_a_template_looks_for_it() -> None:
    source = "{% for m in messages %}{% if m.content is none %}[{{ m.tool_calls[0].function.name }}]{% else %}"
    assert render(source + "{{ m.content }}{% endif %}{% endfor %}") == "Is it raining?[weather]It rains."


def test_flattened_by_chatml() -> None:
    results = [*ROUND, {"role": "tool", "content": "And snows."}, {"role": "user", "content": "So?"}]
    text = render(CHATML, results)
    assert "None" not in text
    assert text.count("<|im_start|>user") == 3  # two results are one message
    assert '{"tool_result": "It rains."}\n{"tool_result": "And snows."}<|im_end|>' in text


def test_errors_of_the_template_are_its_own() -> None:
    with pytest.raises(TemplateError, match="no luck"):
        render("{{ raise_exception('no luck') }}")


def test_a_template_that_shows_nothing() -> None:
    assert render("nothing at all") == "nothing at all"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"type": "image_url", "image_url": {}}], r"message 0 has a part that is not text \('image_url'\)"),
        ([{"type": "text"}], "message 0 has a part that is not text"),
        ([7], r"message 0 has a part that is not text \(int\): the model reads text only"),
    ],
)
def test_parts_that_are_no_text(content: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        render(CHATML, [{"role": "user", "content": content}])


def test_tool_calls_that_are_none() -> None:
    with pytest.raises(RequestError, match="a tool call is a dict with a function, not str"):
        render(CHATML, [{"role": "assistant", "content": None, "tool_calls": ["weather"]}])

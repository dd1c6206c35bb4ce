"""Calls that the model asks for, answers that are JSON, and the settings for both."""

from __future__ import annotations

import json

from playwright.sync_api import Page, expect

from .conftest import say
from .fake import Fake

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
ANSWER = ".assistant .body > .markdown"


def set_fields(page: Page, **fields: str) -> None:
    page.click("#open-settings")
    for name, text in fields.items():
        page.fill(f"#settings [name={name}]", text)
    page.get_by_role("button", name="Save").click()


def test_calls_are_shown_and_the_next_message_is_their_result(fake: Fake, chat: Page) -> None:
    set_fields(chat, tools=json.dumps([WEATHER]))
    fake.answers, fake.calls = ["Let me look.", "It rains."], [("weather", '{"city": "Riga"}'), ("weather", "{}")]
    say(chat, "Weather?")
    assert fake.bodies[-1]["tools"] == [{"type": "function", "function": WEATHER}]
    expect(chat.locator(".call .code-head")).to_have_text(["Calls weather", "Calls weather"])
    expect(chat.locator(".call pre").first).to_have_text('{\n  "city": "Riga"\n}')
    expect(chat.locator(".call-hint")).to_be_visible()
    say(chat, "rain")
    asked, answer, *results = fake.bodies[-1]["messages"]
    assert asked == {"role": "user", "content": "Weather?"}
    assert [call["function"]["arguments"] for call in answer["tool_calls"]] == ['{"city": "Riga"}', "{}"]
    assert results == [{"role": "tool", "tool_call_id": name, "content": "rain"} for name in ("c0", "c1")]
    chat.reload()
    expect(chat.locator(".call")).to_have_count(2)
    expect(chat.locator(ANSWER).last).to_have_text("It rains.")


def test_a_call_without_a_text(fake: Fake, chat: Page) -> None:
    fake.answers, fake.calls = [""], [("weather", '{"city": "Riga"}')]
    say(chat, "Weather?")
    expect(chat.locator(".call")).to_have_count(1)
    chat.get_by_label("Regenerate").click()
    chat.wait_for_selector("#send:visible")
    expect(chat.locator(".versions")).to_contain_text("2/2")


def test_answers_follow_a_schema_and_are_shown_as_code(fake: Fake, chat: Page) -> None:
    set_fields(chat, schema=json.dumps(SCHEMA))
    fake.answers = ['{"name": "Ada", "tags": ["<b>", "*x*"]}']
    say(chat, "Who?")
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    assert fake.bodies[-1]["response_format"] == wanted
    expect(chat.locator(f"{ANSWER} .code pre")).to_have_text(
        '{\n  "name": "Ada",\n  "tags": [\n    "<b>",\n    "*x*"\n  ]\n}'
    )
    expect(chat.locator(".hl-string").first).to_be_visible()
    chat.reload()
    expect(chat.locator(f"{ANSWER} .code")).to_have_count(1)


def test_an_answer_that_breaks_its_schema_says_so(fake: Fake, chat: Page) -> None:
    fake.answers, fake.problem = ['{"name": 1}'], "$.name: 1 is not of type 'string'"
    say(chat, "Who?")
    expect(chat.locator(".error")).to_contain_text("$.name: 1 is not of type 'string'.")
    fake.problem = ""


def test_a_field_that_is_no_json_is_not_saved(fake: Fake, chat: Page) -> None:
    for name, text in (("schema", "{no"), ("schema", "[1]"), ("tools", '{"name": "x"}')):
        chat.click("#open-settings")
        chat.fill(f"#settings [name={name}]", text)
        chat.get_by_role("button", name="Save").click()
        assert chat.locator(f"#settings [name={name}]").evaluate("field => !field.checkValidity()")
        expect(chat.locator("#settings")).to_be_visible()
        chat.get_by_role("button", name="Cancel").click()
    say(chat, "Who?")
    assert not {"tools", "response_format"} & {*fake.bodies[-1]}


def test_text_that_only_begins_like_json_is_text(fake: Fake, chat: Page) -> None:
    fake.answers = ["[1] is a footnote."]
    say(chat, "a")
    expect(chat.locator(ANSWER)).to_have_text("[1] is a footnote.")

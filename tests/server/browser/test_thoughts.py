"""What a model thinks is folded away."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from .conftest import say
from .fake import Fake

ANSWER = ".assistant .body > .markdown"


@pytest.mark.parametrize("how", ["tags", "apart", "end tag only"])
def test_thoughts_are_folded_away(fake: Fake, chat: Page, how: str) -> None:
    fake.part_chars = 3
    fake.answers = ["It is **4**.", "More."]
    if how == "apart":
        fake.thoughts = ["Let me see."]
    else:
        fake.answers[0] = f"{'<think>' if how == 'tags' else ''}\nLet me see.\n</think>\n\nIt is **4**."
    say(chat, "2 + 2?")
    expect(chat.locator(".thought .markdown")).to_be_hidden()
    chat.click(".thought summary")
    expect(chat.locator(".thought .markdown")).to_have_text("Let me see.")
    expect(chat.locator(ANSWER)).to_have_text("It is 4.")
    say(chat, "and?")
    assert [one["content"] for one in fake.bodies[-1]["messages"]] == ["2 + 2?", "It is **4**.", "and?"]
    chat.reload()
    expect(chat.locator(".thought")).to_have_count(1)
    expect(chat.locator(ANSWER).first).to_have_text("It is 4.")


def test_it_is_seen_that_a_model_thinks_and_how_long(fake: Fake, chat: Page) -> None:
    fake.thoughts, fake.answers, fake.part_seconds = ["one two three four five six"], ["Done."], 0.3
    chat.fill("#input", "a")
    chat.press("#input", "Enter")
    expect(chat.locator(".thought summary")).to_have_text(re.compile("^Thinking\u2026"))
    expect(chat.locator(".thinking")).to_be_visible()
    expect(chat.locator(".thought summary")).to_have_text(re.compile(r"^Thought for [\d.]+ s \u00b7 4 tokens$"))
    expect(chat.locator(".thinking")).to_have_count(0)
    chat.reload()
    expect(chat.locator(".thought summary")).to_have_text(re.compile(r"^Thought for [\d.]+ s \u00b7 4 tokens$"))


def test_a_text_that_names_the_tag_is_no_thought(fake: Fake, chat: Page) -> None:
    fake.answers = ["The tag `</think>` ends it."]
    say(chat, "a")
    expect(chat.locator(ANSWER)).to_have_text("The tag </think> ends it.")
    expect(chat.locator(".thought")).to_have_count(0)

"""Branches of a conversation, answers that were interrupted, and the same chat in two tabs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from .conftest import Open, say
from .fake import Fake

SAID = ".said"
BODY = ".assistant .body"
LONG = "word " * 400


def begin(page: Page, text: str) -> None:
    page.fill("#input", text)
    page.press("#input", "Enter")
    expect(page.locator(".assistant").last).to_contain_text("word word")


def tab(page: Page) -> Page:
    """The same chat in another tab."""
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator(SAID)).to_have_text(page.locator(SAID).all_text_contents())
    return other


def edit(page: Page, number: int, text: str) -> None:
    page.locator(".user").nth(number).get_by_label("Edit and send again").click()
    page.get_by_label("Edit the message").fill(text)
    page.keyboard.press("Enter")
    page.wait_for_selector("#send:visible")


def test_edits_and_answers_are_branches_that_lead_on(fake: Fake, chat: Page) -> None:
    fake.answers = ["1", "2", "3", "4"]
    say(chat, "a")
    say(chat, "b")
    chat.get_by_label("Regenerate").first.click()
    expect(chat.locator(BODY)).to_have_text(["3"])
    edit(chat, 0, "A")
    expect(chat.locator(BODY)).to_have_text(["4"])
    expect(chat.locator(".versions")).to_have_count(1)
    chat.get_by_label("Earlier version").click()
    expect(chat.locator(BODY)).to_have_text(["3"])
    chat.locator(".assistant").get_by_label("Earlier version").click()
    expect(chat.locator(BODY)).to_have_text(["1", "2"])
    expect(chat.locator(SAID)).to_have_text(["a", "b"])


def test_branches_are_exported_and_imported(fake: Fake, chat: Page, open_page: Open, tmp_path: Path) -> None:
    fake.answers = ["1", "2"]
    say(chat, "a")
    edit(chat, 0, "A")
    expect(chat.locator(BODY)).to_have_text(["2"])
    with chat.expect_download() as found:
        chat.click("#export-all")
    path = tmp_path / "all.json"
    found.value.save_as(path)
    other = open_page(fake.url)
    other.set_input_files("#import-file", path)
    other.get_by_role("button", name="a", exact=True).click()
    expect(other.locator(SAID)).to_have_text(["A"])
    other.get_by_label("Earlier version").click()
    expect(other.locator(BODY)).to_have_text(["1"])


@pytest.mark.parametrize(("messages", "text"), [
    ([{"id": "a", "parent": "b"}, {"id": "b", "parent": "a"}], "without its parent"),
    ([{"id": "a", "parent": None}, {"id": "a", "parent": None}], "without its parent"),
])  # fmt: skip
def test_a_file_that_is_no_tree(chat: Page, tmp_path: Path, messages: list[dict[str, object]], text: str) -> None:
    whole = [{"role": "user", "content": "x", **one} for one in messages]
    (tmp_path / "x.json").write_text(json.dumps({"fewbit": 1, "conversations": [{"messages": whole}]}))
    chat.set_input_files("#import-file", tmp_path / "x.json")
    expect(chat.locator("#toast")).to_contain_text(text)


def test_messages_without_ids_are_one_branch(chat: Page, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "old"}, {"role": "assistant", "content": "answer"}]
    (tmp_path / "x.json").write_text(
        json.dumps({"fewbit": 1, "conversations": [{"title": "Old", "messages": messages}]})
    )
    chat.set_input_files("#import-file", tmp_path / "x.json")
    chat.get_by_role("button", name="Old", exact=True).click()
    expect(chat.locator(SAID)).to_have_text(["old"])
    say(chat, "new")
    expect(chat.locator(BODY)).to_have_text(["answer", "Hello."])
    chat.reload()
    expect(chat.locator(BODY)).to_have_text(["answer", "Hello."])


def test_a_half_answer_is_marked_after_a_reload_and_continued(fake: Fake, chat: Page) -> None:
    fake.answers, fake.part_seconds = [LONG, "and the end."], 0.05
    begin(chat, "go")
    chat.reload()
    expect(chat.locator(".state")).to_contain_text("The page was closed while this answer was written.")
    half = chat.locator(BODY).inner_text()
    assert half.startswith("word word")
    fake.part_seconds = 0.0
    chat.get_by_role("button", name="Continue").click()
    expect(chat.locator(BODY)).to_contain_text("and the end.")
    last = fake.bodies[-1]["messages"][-1]
    assert last["role"] == "assistant"
    assert last["content"].startswith("word word")
    expect(chat.locator(BODY)).to_have_text(f"{last['content']}and the end.")
    expect(chat.locator(".state")).to_have_count(0)
    chat.reload()
    expect(chat.locator(BODY)).to_contain_text("and the end.")
    chat.wait_for_timeout(1500)
    expect(chat.locator(".state")).to_have_count(0)


def test_a_half_answer_can_be_asked_for_again(fake: Fake, chat: Page) -> None:
    fake.answers, fake.part_seconds = [LONG, "whole"], 0.05
    begin(chat, "go")
    chat.reload()
    fake.part_seconds = 0.0
    chat.get_by_role("button", name="Try again").click()
    expect(chat.locator(BODY)).to_have_text("whole")
    expect(chat.locator(".versions")).to_contain_text("2/2")


@pytest.mark.parametrize("how", ["stopped", "lost"])
def test_an_answer_that_ended_too_early_is_continued(fake: Fake, chat: Page, how: str) -> None:
    fake.answers = [LONG, "end."]
    if how == "stopped":
        fake.part_seconds = 0.05
        begin(chat, "go")
        chat.keyboard.press("Escape")
    else:
        fake.breaks_after = 3
        say(chat, "go")
    expect(chat.locator("#send")).to_be_visible()
    fake.breaks_after = None
    chat.get_by_role("button", name="Continue").click()
    expect(chat.locator(BODY)).to_contain_text("end.")
    expect(chat.locator(".error")).to_have_count(0)
    assert [one["role"] for one in fake.bodies[-1]["messages"]] == ["user", "assistant"]


def test_another_tab_follows_a_chat(fake: Fake, chat: Page) -> None:
    fake.answers = ["1", "2", "3"]
    say(chat, "a")
    other = tab(chat)
    say(chat, "b")
    expect(other.locator(BODY)).to_have_text(["1", "2"])
    say(other, "c")
    expect(chat.locator(BODY)).to_have_text(["1", "2", "3"])
    assert [one["content"] for one in fake.bodies[-1]["messages"]] == ["a", "1", "b", "2", "c"]


def test_two_tabs_that_write_at_once_lose_nothing(fake: Fake, chat: Page) -> None:
    say(chat, "a")
    other = tab(chat)
    for page in (chat, other):  # neither hears of the other
        page.evaluate("BroadcastChannel.prototype.postMessage = () => {}")
    fake.answers = ["from the first", "from the second"]
    say(chat, "b")
    say(other, "c")
    chat.reload()
    expect(chat.locator(SAID)).to_have_text(["a", "c"])
    chat.get_by_label("Earlier version").click()
    expect(chat.locator(SAID)).to_have_text(["a", "b"])
    expect(chat.locator(BODY).last).to_have_text("from the first")


def test_a_branch_that_another_tab_adds_is_told(fake: Fake, chat: Page) -> None:
    fake.answers = ["1", "2", "3"]
    say(chat, "a")
    say(chat, "b")
    other = tab(chat)
    edit(other, 0, "A")
    expect(chat.locator("#toast")).to_contain_text("Another tab added to this chat.")
    expect(chat.locator(SAID)).to_have_text(["a", "b"])
    chat.get_by_label("Later version").click()
    expect(chat.locator(SAID)).to_have_text(["A"])


def test_an_edit_is_not_taken_away_by_another_tab(fake: Fake, chat: Page) -> None:
    say(chat, "a")
    other = tab(chat)
    chat.get_by_label("Edit and send again").click()
    chat.get_by_label("Edit the message").fill("half an edit")
    say(other, "b")
    chat.wait_for_timeout(300)
    expect(chat.get_by_label("Edit the message")).to_have_value("half an edit")
    chat.keyboard.press("Escape")
    expect(chat.locator(SAID)).to_have_text(["a", "b"])


def test_an_answer_in_another_tab_is_no_half_answer(fake: Fake, chat: Page) -> None:
    fake.answers, fake.part_seconds = [LONG, "end"], 0.05
    begin(chat, "go")
    other = tab(chat)
    expect(other.locator(".state")).to_have_text("Another tab is writing this answer.")
    other.fill("#input", "me too")
    other.press("#input", "Enter")
    expect(other.locator("#toast")).to_contain_text("Another tab is answering in this chat")
    expect(other.locator("#input")).to_have_value("me too")
    chat.close()
    expect(other.locator(".state")).to_contain_text("The page was closed")
    expect(other.get_by_role("button", name="Continue")).to_be_visible()


def test_a_chat_that_another_tab_deletes_is_left(fake: Fake, chat: Page) -> None:
    say(chat, "a")
    other = tab(chat)
    other.get_by_label("More for a", exact=True).click()
    other.locator("#menu").get_by_role("button", name="Delete").click()
    expect(chat.locator("#toast")).to_contain_text("deleted in another tab")
    expect(chat.locator("#welcome")).to_be_visible()

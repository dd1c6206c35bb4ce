"""Conversations in the browser: kept, listed, renamed, deleted, found, exported and imported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from .conftest import Open, say
from .fake import Fake

ROWS = "#conversations .open"


def choose(page: Page, title: str, action: str) -> None:
    page.get_by_label(f"More for {title}", exact=True).click()
    page.locator("#menu").get_by_role("button", name=action).click()


def two_chats(page: Page, fake: Fake) -> None:
    fake.answers = ["about apples", "about pears"]
    say(page, "first")
    page.keyboard.press("Control+k")
    expect(page.locator("#welcome")).to_be_visible()
    say(page, "second")


def test_they_stay_after_a_reload_and_open_again(fake: Fake, chat: Page) -> None:
    two_chats(chat, fake)
    expect(chat.locator(ROWS)).to_have_text(["second", "first"])
    chat.reload()
    expect(chat.locator(".said")).to_have_text(["second"])
    chat.get_by_role("button", name="first", exact=True).click()
    expect(chat.locator(".assistant .body")).to_have_text(["about apples"])
    expect(chat.locator("#title")).to_have_text("first")
    say(chat, "more")
    expect(chat.locator(ROWS)).to_have_text(["first", "second"])


def test_search_looks_in_titles_and_messages(fake: Fake, chat: Page) -> None:
    two_chats(chat, fake)
    chat.fill("#search", "APPLES")
    expect(chat.locator(ROWS)).to_have_text(["first"])
    chat.fill("#search", "none of it")
    expect(chat.locator("#conversations")).to_have_text("Nothing found.")
    chat.fill("#search", "")
    expect(chat.locator(ROWS)).to_have_count(2)


def test_rename(fake: Fake, chat: Page) -> None:
    say(chat, "first")
    choose(chat, "first", "Rename")
    chat.get_by_label("Name of the conversation").fill("Fruit <b>")
    chat.keyboard.press("Enter")
    expect(chat.locator(ROWS)).to_have_text(["Fruit <b>"])
    expect(chat.locator("#title")).to_have_text("Fruit <b>")
    chat.reload()
    expect(chat.locator(ROWS)).to_have_text(["Fruit <b>"])
    choose(chat, "Fruit <b>", "Rename")
    chat.get_by_label("Name of the conversation").fill("other")
    chat.keyboard.press("Escape")
    expect(chat.locator(ROWS)).to_have_text(["Fruit <b>"])


def test_delete_and_undo(fake: Fake, chat: Page) -> None:
    two_chats(chat, fake)
    choose(chat, "second", "Delete")
    expect(chat.locator(ROWS)).to_have_text(["first"])
    expect(chat.locator("#welcome")).to_be_visible()
    chat.get_by_role("button", name="Undo").click()
    expect(chat.locator(ROWS)).to_have_text(["second", "first"])
    choose(chat, "first", "Delete")
    chat.reload()
    expect(chat.locator(ROWS)).to_have_text(["second"])


def test_a_running_conversation_that_is_deleted_does_not_come_back(fake: Fake, chat: Page) -> None:
    fake.answers, fake.part_seconds = ["word " * 500], 0.05
    chat.fill("#input", "go")
    chat.press("#input", "Enter")
    expect(chat.locator(".assistant")).to_contain_text("word")
    choose(chat, "go", "Delete")
    expect(chat.locator("#conversations")).to_have_text("No conversations yet.")
    chat.wait_for_timeout(300)
    chat.reload()
    expect(chat.locator("#conversations")).to_have_text("No conversations yet.")


def test_export_as_markdown(fake: Fake, chat: Page) -> None:
    fake.answers = ["`yes`"]
    say(chat, "Is it / so?")
    with chat.expect_download() as found:
        choose(chat, "Is it / so?", "Export as Markdown")
    assert found.value.suggested_filename == "Is-it--so.md"
    assert (
        Path(found.value.path()).read_text() == "# Is it / so?\n\n**You**\n\nIs it / so?\n\n---\n\n**small**\n\n`yes`\n"
    )


def test_what_is_exported_is_imported_elsewhere(fake: Fake, chat: Page, open_page: Open, tmp_path: Path) -> None:
    two_chats(chat, fake)
    with chat.expect_download() as found:
        chat.click("#export-all")
    path = tmp_path / "all.json"
    found.value.save_as(path)
    assert len(json.loads(path.read_text())["conversations"]) == 2
    other = open_page(fake.url)
    other.set_input_files("#import-file", path)
    expect(other.locator("#toast")).to_contain_text("2 conversations were imported.")
    expect(other.locator(ROWS)).to_have_text(["second", "first"])
    other.get_by_role("button", name="first", exact=True).click()
    expect(other.locator(".assistant .body")).to_have_text(["about apples"])
    other.set_input_files("#import-file", path)  # again: they do not replace those that are there
    expect(other.locator(ROWS)).to_have_count(4)


@pytest.mark.parametrize(("text", "said"), [
    ("{", "is not JSON"),
    ("[]", "holds no conversations"),
    ('{"fewbit": 2, "conversations": []}', "holds no conversations"),
    ('{"fewbit": 1, "conversations": [{"messages": [{"role": "tool", "content": "x"}]}]}', "without role or text"),
    ('{"fewbit": 1, "conversations": [null]}', "without role or text"),
])  # fmt: skip
def test_files_that_are_no_export(chat: Page, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x.json").write_text(text)
    chat.set_input_files("#import-file", tmp_path / "x.json")
    expect(chat.locator("#toast")).to_contain_text(said)
    expect(chat.locator(ROWS)).to_have_count(0)


def test_two_tabs_see_the_same_list(fake: Fake, chat: Page) -> None:
    other = chat.context.new_page()
    other.goto(fake.url)
    say(chat, "from the first tab")
    expect(other.locator(ROWS)).to_have_text(["from the first tab"])

"""Messages: send, stream, stop, edit, regenerate, settings, files, errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from .conftest import PATIENCE_MS, Open, say
from .fake import Fake


def test_an_answer_streams(fake: Fake, chat: Page) -> None:
    fake.answers, fake.part_seconds = ["one two three four five six"], 0.1
    chat.fill("#input", "count")
    chat.press("#input", "Enter")
    expect(chat.locator(".assistant .body")).to_contain_text("one two")
    expect(chat.locator("#stop")).to_be_visible()
    expect(chat.locator("#log")).to_have_attribute("aria-busy", "true")
    expect(chat.locator(".assistant .body")).to_have_text("one two three four five six")
    expect(chat.locator("#send")).to_be_visible()
    expect(chat.locator("#log")).to_have_attribute("aria-busy", "false")
    expect(chat.locator("#announce")).to_have_text("The answer is complete")
    expect(chat.locator(".cost")).to_contain_text("tokens/s")
    expect(chat.locator(".cost")).to_contain_text("32 of 40 prompt tokens from the cache")
    assert fake.bodies[0]["stream_options"] == {"include_usage": True}
    assert fake.bodies[0]["messages"] == [{"role": "user", "content": "count"}]


def test_what_was_said_is_sent_again_with_the_next_message(fake: Fake, chat: Page) -> None:
    fake.answers = ["first", "second"]
    say(chat, "a")
    say(chat, "b")
    assert [one["content"] for one in fake.bodies[1]["messages"]] == ["a", "first", "b"]


@pytest.mark.parametrize("how", ["key", "button"])
def test_stop_keeps_what_came_and_leaves_the_server(fake: Fake, chat: Page, how: str) -> None:
    fake.answers, fake.part_seconds = ["word " * 500], 0.05
    chat.fill("#input", "go on")
    chat.press("#input", "Enter")
    expect(chat.locator(".assistant")).to_contain_text("word word")
    if how == "key":
        chat.keyboard.press("Escape")
    else:
        chat.click("#stop")
    expect(chat.locator("#send")).to_be_visible()
    expect(chat.locator(".cost")).to_have_text("stopped")
    expect(chat.get_by_label("Continue")).to_be_visible()
    kept = chat.inner_text(".assistant .markdown:last-child")
    chat.wait_for_timeout(200)
    assert chat.inner_text(".assistant .markdown:last-child") == kept
    assert fake.disconnects == 1


def test_shift_enter_makes_a_line(fake: Fake, chat: Page) -> None:
    chat.click("#input")
    chat.keyboard.type("a")
    chat.keyboard.press("Shift+Enter")
    chat.keyboard.type("b")
    chat.keyboard.press("Enter")
    expect(chat.locator(".said")).to_have_text("a\nb")
    expect(chat.locator("#send")).to_be_visible()  # the answer is complete
    assert fake.bodies[0]["messages"][0]["content"] == "a\nb"


def test_an_empty_message_is_not_sent(fake: Fake, chat: Page) -> None:
    say(chat, "   ")
    assert fake.bodies == []


def test_a_message_is_edited_and_sent_again(fake: Fake, chat: Page) -> None:
    fake.answers = ["one", "two", "three"]
    say(chat, "a")
    say(chat, "b")
    chat.locator(".user").first.get_by_label("Edit and send again").click()
    chat.get_by_label("Edit the message").fill("A")
    chat.keyboard.press("Enter")
    expect(chat.locator(".assistant .body")).to_have_text(["three"])
    expect(chat.locator(".said")).to_have_text(["A"])
    assert fake.bodies[-1]["messages"] == [{"role": "user", "content": "A"}]
    expect(chat.locator(".versions")).to_have_text(["\u20392/2\u203a"])
    chat.get_by_label("Earlier version").click()
    expect(chat.locator(".assistant .body")).to_have_text(["one", "two"])
    expect(chat.locator(".said")).to_have_text(["a", "b"])
    say(chat, "c")
    assert [one["content"] for one in fake.bodies[-1]["messages"]] == ["a", "one", "b", "two", "c"]
    chat.reload()
    expect(chat.locator(".said")).to_have_text(["a", "b", "c"])
    chat.get_by_label("Later version").click()
    expect(chat.locator(".said")).to_have_text(["A"])
    expect(chat.locator(".assistant .body")).to_have_text(["three"])


def test_editing_can_be_left(fake: Fake, chat: Page) -> None:
    say(chat, "a")
    chat.keyboard.press("ArrowUp")
    chat.get_by_label("Edit the message").fill("other")
    chat.keyboard.press("Escape")
    expect(chat.locator(".said")).to_have_text(["a"])
    assert len(fake.bodies) == 1


def test_a_regenerated_answer_keeps_the_one_before(fake: Fake, chat: Page) -> None:
    fake.answers = ["first", "second"]
    say(chat, "a")
    chat.get_by_label("Regenerate").click()
    expect(chat.locator(".assistant .body")).to_have_text(["second"])
    assert fake.bodies[0]["messages"] == fake.bodies[1]["messages"]
    expect(chat.locator(".versions")).to_contain_text("2/2")
    chat.get_by_label("Earlier version").click()
    expect(chat.locator(".assistant .body")).to_have_text(["first"])
    chat.reload()
    expect(chat.locator(".assistant .body")).to_have_text(["first"])
    chat.get_by_label("Later version").click()
    expect(chat.locator(".assistant .body")).to_have_text(["second"])


def test_the_model_is_picked(fake: Fake, chat: Page) -> None:
    chat.select_option("#model", "large")
    say(chat, "a")
    assert fake.bodies[0]["model"] == "large"
    expect(chat.locator(".who")).to_have_text("large")
    chat.reload()
    expect(chat.locator("#model")).to_have_value("large")


def test_settings_and_system_prompt_go_with_the_request(fake: Fake, chat: Page) -> None:
    chat.click("#open-settings")
    values = {"System prompt": "Be brief.", "Temperature": "0.5", "Max tokens": "64", "Top p": "0.9", "Top k": "40",
              "Min p": "0.05", "Seed": "7", "Stop at": "END\n\\n\\n"}  # fmt: skip
    for label, value in values.items():
        chat.get_by_label(label).fill(value)
    chat.get_by_label("Seed").press("Enter")
    expect(chat.locator("#settings")).to_be_hidden()
    say(chat, "a")
    body = fake.bodies[0]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["max_tokens"], body["top_p"], body["top_k"]) == (0.5, 64, 0.9, 40)
    assert (body["min_p"], body["seed"], body["stop"]) == (0.05, 7, ["END", "\n\n"])
    chat.keyboard.press("Control+k")
    chat.click("#open-settings")
    expect(chat.get_by_label("Temperature")).to_have_value("0.5")  # a new chat begins with them
    chat.get_by_role("button", name="Reset").click()
    chat.get_by_role("button", name="Save").click()
    say(chat, "b")
    assert set(fake.bodies[1]) == {"model", "messages", "stream", "stream_options"}


def test_settings_out_of_range_are_not_saved(fake: Fake, chat: Page) -> None:
    chat.click("#open-settings")
    chat.get_by_label("Temperature").fill("9")
    chat.get_by_role("button", name="Save").click()
    expect(chat.locator("#settings")).to_be_visible()
    chat.get_by_role("button", name="Cancel").click()
    say(chat, "a")
    assert "temperature" not in fake.bodies[0]


def test_attached_files_stand_before_the_message(fake: Fake, chat: Page, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Notes\n```\ncode\n```\n")
    (tmp_path / "b.txt").write_text("second")
    chat.set_input_files("#attach-file", [tmp_path / "notes.md", tmp_path / "b.txt"])
    chat.get_by_label("Remove b.txt").click()
    say(chat, "What is this?")
    content = fake.bodies[0]["messages"][0]["content"]
    assert content == "notes.md:\n````\n# Notes\n```\ncode\n```\n````\n\nWhat is this?"
    expect(chat.locator(".user .chip")).to_contain_text("notes.md")
    expect(chat.locator("#files .chip")).to_have_count(0)


@pytest.mark.parametrize(("data", "said"), [(b"\xff\xfe\x00", "no text in UTF-8"), (b"a\0b", "no text in UTF-8"),
                                            (b"a" * (1 << 20) + b"b", "larger than 1 MB")])  # fmt: skip
def test_files_that_are_no_text_or_too_large(chat: Page, tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "x.bin").write_bytes(data)
    chat.set_input_files("#attach-file", tmp_path / "x.bin")
    expect(chat.locator("#toast")).to_contain_text(said)
    expect(chat.locator(".chip")).to_have_count(0)


def test_an_error_is_told_and_tried_again(fake: Fake, open_page: Open) -> None:
    page = open_page(fake.url, allowed=("429",))
    fake.error = (429, "the queue is full")
    say(page, "a")
    expect(page.locator(".error")).to_contain_text("The queue is full.")
    fake.error = None
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".assistant .body")).to_have_text(["Hello."])
    expect(page.locator(".error")).to_have_count(0)
    assert fake.bodies[0] == fake.bodies[1]


def test_a_lost_connection_keeps_what_came(fake: Fake, chat: Page) -> None:
    fake.answers, fake.breaks_after = ["some text that ends too early"], 2
    say(chat, "a")
    expect(chat.locator(".assistant .markdown").last).to_have_text("some text that")
    expect(chat.locator(".error")).to_contain_text("The connection ended before the answer did.")


def test_a_key_is_asked_for_where_one_is_needed(fake: Fake, open_page: Open) -> None:
    fake.key = "secret-key"
    page = open_page(fake.url, allowed=("401",))
    page.get_by_label("Key", exact=True).fill("wrong")
    page.keyboard.press("Enter")
    page.wait_for_timeout(100)
    page.get_by_label("Key", exact=True).fill("secret-key")
    page.keyboard.press("Enter")
    expect(page.locator("#model option")).to_have_count(2)
    say(page, "a")
    expect(page.locator(".assistant .body")).to_have_text(["Hello."])
    assert page.evaluate("localStorage.getItem('fewbit.key')") is None
    assert page.evaluate("sessionStorage.getItem('fewbit.key')") == "secret-key"


def test_an_answer_goes_on_while_another_chat_is_open(fake: Fake, chat: Page) -> None:
    fake.answers, fake.part_seconds = ["word " * 12, "other"], 0.1
    chat.fill("#input", "long one")
    chat.press("#input", "Enter")
    expect(chat.locator(".assistant")).to_contain_text("word")
    chat.keyboard.press("Control+k")
    fake.part_seconds = 0.0
    say(chat, "short one")
    expect(chat.locator(".assistant .body")).to_have_text(["other"])
    chat.get_by_role("button", name="long one", exact=True).click()
    expect(chat.locator(".assistant .body")).to_have_text(["word " * 11 + "word"])


def test_the_panel_shows_figures(fake: Fake, chat: Page) -> None:
    chat.click("#toggle-stats")
    panel = chat.locator("#stats")
    expect(panel).to_contain_text("96 / 512")
    expect(panel).to_contain_text("83 %")
    expect(panel.locator("dd").first).to_have_text(re.compile(r"[1-9]\d*\.\d"))
    chat.reload()
    expect(panel).to_contain_text("96 / 512")  # it stays open
    chat.click("#toggle-stats")
    expect(panel).to_be_hidden()


def test_a_server_without_figures(fake: Fake, open_page: Open) -> None:
    fake.has_stats = False
    page = open_page(fake.url, allowed=("404",))
    page.click("#toggle-stats")
    expect(page.locator("#stats")).to_contain_text("This server tells no figures.")
    say(page, "a")
    expect(page.locator(".assistant .body")).to_have_text(["Hello."])


def test_reading_above_is_not_disturbed(fake: Fake, chat: Page) -> None:
    fake.answers, fake.part_chars, fake.part_seconds = ["line\n\n" * 300], 40, 0.02
    chat.fill("#input", "go")
    chat.press("#input", "Enter")
    top = "document.getElementById('scroll').scrollTop"
    while chat.evaluate(top) < 200:  # it follows the text
        chat.wait_for_timeout(20)
    chat.hover("#log")
    chat.mouse.wheel(0, -150)
    expect(chat.locator("#to-end")).to_be_visible()
    chat.wait_for_timeout(100)
    before = chat.evaluate(top)
    chat.wait_for_selector("#send:visible")
    assert chat.evaluate(top) == before
    chat.click("#to-end")
    expect(chat.locator("#to-end")).to_be_hidden()
    assert chat.evaluate("(({scrollHeight, scrollTop, clientHeight}) => scrollHeight - scrollTop - clientHeight)"
                         "(document.getElementById('scroll'))") < 2  # fmt: skip


def test_an_answer_in_large_parts_is_followed(fake: Fake, chat: Page) -> None:
    fake.answers, fake.part_chars, fake.part_seconds = ["line\n\n" * 300], 200, 0.05
    say(chat, "go")
    expect(chat.locator("#to-end")).to_be_hidden()
    assert chat.evaluate("document.getElementById('scroll').scrollTop") > 2000


def test_the_box_grows_with_its_text(fake: Fake, chat: Page) -> None:
    height = "document.getElementById('input').offsetHeight"
    one = chat.evaluate(height)
    chat.fill("#input", "a\nb\nc\nd\ne")
    chat.wait_for_function(f"{height} > {2 * one}", timeout=PATIENCE_MS)
    chat.fill("#input", "a\n" * 200)
    chat.wait_for_function(f"{height} > innerHeight * 0.3 && {height} <= innerHeight * 0.41", timeout=PATIENCE_MS)
    chat.press("#input", "Enter")
    expect(chat.locator("#send")).to_be_visible()
    chat.wait_for_function(f"{height} == {one}", timeout=PATIENCE_MS)

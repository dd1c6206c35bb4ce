"""Keyboard, phone, dark and light, and what axe-core says (if AXE names its file, or node_modules has it)."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from .conftest import Open, say
from .fake import Fake
from .test_markdown import ALL

AXE = Path(os.environ.get("AXE") or Path(__file__).parents[3] / "node_modules/axe-core/axe.min.js")
RUN_AXE = """async () => {
  const { violations } = await axe.run(document);
  return violations.filter((one) => ['serious', 'critical'].includes(one.impact))
    .map((one) => `${one.id}: ${one.nodes.map((node) => node.html + ' ' + node.failureSummary).join(' | ')}`);
}"""
PHONE = {"viewport": {"width": 320, "height": 640}, "is_mobile": True, "has_touch": True}


def findings(page: Page) -> list[str]:
    page.evaluate(AXE.read_text())
    found: list[str] = page.evaluate(RUN_AXE)
    return found


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not there: npm install axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_axe_has_no_serious_findings(fake: Fake, open_page: Open, scheme: str, size: str) -> None:
    page = open_page(fake.url, bypass_csp=True, color_scheme=scheme, **(PHONE if size == "phone" else {}))
    assert findings(page) == []
    maths = "\n$$" + "x + " * 80 + "y$$\n\nand $z$[^1]\n\n[^1]: note\n"
    code = "\n```python\n# note\nx = f(1) + 'a' if x else None\n```\n"
    fake.answers = [ALL + code + maths, "<think>so</think>a \u202e b", "again"]
    say(page, "show all")
    expect(page.locator(".katex")).to_have_count(2)
    say(page, "more")
    page.get_by_label("Regenerate").last.click()
    expect(page.locator(".versions")).to_contain_text("2/2")
    page.get_by_label("Earlier version").click()
    page.click(".thought summary")
    page.click("#toggle-stats")
    expect(page.locator("#stats")).to_contain_text("96 / 512")
    expect(page.locator("#stats")).to_contain_text("82 %")
    assert findings(page) == []
    page.get_by_label("Edit and send again").first.click()
    assert findings(page) == []
    page.click("#open-settings")
    assert findings(page) == []
    page.click("#change-key")
    assert findings(page) == []


def test_the_whole_page_by_keyboard(fake: Fake, chat: Page) -> None:
    """Tab reaches everything in the order in which it stands, and focus can be seen."""
    say(chat, "a")
    chat.focus(".skip")  # the first; a blurred box would be where Tab goes on from
    seen: list[str] = []
    for _ in range(24):
        chat.keyboard.press("Tab")
        where = chat.evaluate("""() => {
          const node = document.activeElement;
          const style = getComputedStyle(node.id === 'input' ? node.closest('form') : node);
          const isSeen = node.id === 'input' ? style.boxShadow !== 'none' : style.outlineStyle !== 'none';
          return [node.id || node.getAttribute('aria-label') || node.textContent, isSeen || node === document.body];
        }""")
        assert where[1], where
        seen.append(where[0])
    wanted = ["new-chat", "search", "a", "More for a", "import", "export-all", "model", "toggle-stats", "open-settings",
              "theme", "Copy the message", "Edit and send again", "Regenerate", "attach", "input", "send"]  # fmt: skip
    places = [seen.index(one) for one in wanted]
    assert places == sorted(places), seen


def test_control_k_begins_a_chat_and_focus_is_in_the_box(fake: Fake, chat: Page) -> None:
    expect(chat.locator("#input")).to_be_focused()
    say(chat, "a")
    chat.focus("#search")
    chat.keyboard.press("Control+k")
    expect(chat.locator("#welcome")).to_be_visible()
    expect(chat.locator("#input")).to_be_focused()


@pytest.mark.parametrize("width", [320, 360, 390, 768])
def test_nothing_is_wider_than_a_phone(fake: Fake, open_page: Open, width: int) -> None:
    page = open_page(fake.url, **{**PHONE, "viewport": {"width": width, "height": 640}})
    table = f"|{'a|' * 20}\n|{'-|' * 20}\n|{'bbbbbb|' * 20}\n"
    fake.answers = [f"{ALL}\n\n$${'x + ' * 80}y$$\n\n{'long' * 100}\n\n```\n{'x' * 500}\n```\n\n{table}"]
    say(page, "w" * 300)
    page.click("#toggle-stats")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.getElementById('scroll').scrollWidth") <= width
    for name in ("#send", "#model", "#toggle-stats", "#open-settings", "#theme"):
        box = page.locator(name).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def test_the_list_on_a_phone(fake: Fake, open_page: Open) -> None:
    page = open_page(fake.url, **PHONE)
    say(page, "a")
    expect(page.locator("#sidebar")).to_be_hidden()
    page.click("#open-sidebar")
    expect(page.locator("#sidebar")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#sidebar")).to_be_hidden()
    page.click("#open-sidebar")
    page.click("#new-chat")
    expect(page.locator("#sidebar")).to_be_hidden()
    expect(page.locator("#welcome")).to_be_visible()


@pytest.mark.parametrize(("scheme", "other"), [("light", "dark"), ("dark", "light")])
def test_dark_and_light(fake: Fake, open_page: Open, scheme: str, other: str) -> None:
    page = open_page(fake.url, color_scheme=scheme)

    def shade() -> str:
        red = int(re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[0])
        return "light" if red > 128 else "dark"

    assert shade() == scheme
    page.click("#theme")
    assert shade() == other
    page.reload()
    assert shade() == other
    page.click("#theme")
    assert shade() == scheme


def test_the_page_follows_the_answer_until_one_scrolls(fake: Fake, chat: Page) -> None:
    fake.answers = ["line\n\n" * 100]
    say(chat, "a")
    expect(chat.locator(".cost").last).to_be_in_viewport()
    chat.locator("#scroll").evaluate("node => { node.scrollTop = 0; }")
    expect(chat.locator("#to-end")).to_be_visible()
    chat.click("#to-end")
    expect(chat.locator(".cost").last).to_be_in_viewport()
    expect(chat.locator("#to-end")).to_be_hidden()

"""What models write, shown safely."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from .conftest import say
from .fake import Fake
from .hostile import HOSTILE, LONG

ANSWER = ".assistant .body > .markdown"
# Whole and in parts: each ends as the same tree.
COMPARE = """async ({ text, sizes }) => {
  const base = document.querySelector('script[type=module]').src.replace('app.js', 'markdown.js');
  const { MarkdownView } = await import(base);
  const made = (size) => {
    const root = document.createElement('div');
    const view = new MarkdownView(root);
    for (let at = 0; at < text.length; at += size) view.append(text.slice(at, at + size));
    return new XMLSerializer().serializeToString(root);
  };
  const whole = made(text.length);
  return sizes.filter((size) => made(size) !== whole);
}"""
# How often blocks are made while a long text comes in small parts.
COUNT = """async () => {
  const base = document.querySelector('script[type=module]').src.replace('app.js', 'markdown.js');
  const { MarkdownView } = await import(base);
  const root = document.createElement('div');
  let made = 0;
  const append = root.append.bind(root);
  root.append = (node) => { made++; append(node); };
  const view = new MarkdownView(root);
  for (let i = 0; i < 200; i++) for (const part of ['Some', ' words', '.\\n', '\\n']) view.append(part);
  return [made, root.childElementCount];
}"""

ALL = """# Title

Text with **bold**, *italic*, ***both***, `code`, ~~gone~~, snake_case_name and 2 * 3 * 4.
A second line

- one
- two
  1. nested
  2. more

     ```py
     x = 1
     ```

- three

***not a rule***
***

| a | b |
|---|--:|
| 1 | `x|y` |

> quote
> - in it

~~~
tilde
~~~

See <https://a.example/x>, https://b.example/y_(z). and [c](https://c.example "t")!
1. not
2) same
"""


def answer(page: Page, fake: Fake, text: str) -> None:
    fake.answers = [text]
    say(page, "show")


def test_blocks_and_inlines(fake: Fake, chat: Page) -> None:
    answer(chat, fake, ALL)
    found = chat.locator(ANSWER)
    expect(found.locator("h3")).to_have_text("Title")
    expect(found.locator("strong").first).to_have_text("bold")
    expect(found.locator("strong > em, em > strong").first).to_have_text("both")
    expect(found.locator("p").first).to_contain_text("snake_case_name and 2 * 3 * 4")
    expect(found.locator("del")).to_have_text("gone")
    expect(found.locator("ul > li > ol > li")).to_have_count(2)
    expect(found.locator("li .code code")).to_have_text("x = 1")
    expect(found.locator("hr")).to_have_count(1)
    expect(found.locator("td")).to_have_text(["1", "x|y"])
    expect(found.locator("td.right")).to_have_count(1)
    expect(found.locator("blockquote li")).to_have_text("in it")
    links = found.locator("a")
    assert [one.get_attribute("href") for one in links.all()] == [
        "https://a.example/x", "https://b.example/y_(z)", "https://c.example/",
    ]  # fmt: skip
    for one in links.all():
        assert one.get_attribute("target") == "_blank"
        assert "noopener" in (one.get_attribute("rel") or "")


def test_code_is_copied_as_it_is(fake: Fake, chat: Page) -> None:
    chat.context.grant_permissions(["clipboard-read", "clipboard-write"])
    code = 'def f(x):\n\treturn "<b>" + x  # comment'
    answer(chat, fake, f"```python\n{code}\n```")
    expect(chat.locator(".hl-word").first).to_have_text("def")
    chat.get_by_role("button", name="Copy", exact=True).click()
    expect(chat.locator(".copy")).to_have_text("Copied")
    assert chat.evaluate("navigator.clipboard.readText()") == code


def test_a_text_in_parts_is_the_same_as_the_whole(chat: Page) -> None:
    texts = [ALL, *HOSTILE.values(), "a\n1. b\n\n```\nx", "- a\n\n  b\n- c\n\nd\n***e***", "a\n|b|c|\n|-|-|\n|d|e|"]
    for text in texts:
        assert chat.evaluate(COMPARE, {"text": text, "sizes": [1, 2, 3, 7]}) == [], text


def test_only_the_last_blocks_are_made_again(chat: Page) -> None:
    made, blocks = chat.evaluate(COUNT)
    assert blocks == 200
    assert made <= 4 * blocks


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_stays_text(fake: Fake, chat: Page, name: str) -> None:
    """Dialogs, errors, broken policy and foreign requests fail in the fixture."""
    answer(chat, fake, HOSTILE[name])
    found = chat.locator(ANSWER)
    assert (
        found.locator("script, img, iframe, svg:not(.copy svg), style, [onerror], [onload], [onmouseover]").count() == 0
    )
    for link in found.locator("a").all():
        assert (link.get_attribute("href") or "").startswith("https://")
    assert "owned" not in chat.title()
    expect(chat.locator("#send")).to_be_visible()


def test_characters_that_turn_the_order_are_shown(fake: Fake, chat: Page) -> None:
    answer(chat, fake, HOSTILE["overrides"])
    expect(chat.locator(f"{ANSWER} .control")).to_have_text(["U+202E", "U+2066", "U+202E", "U+202E"])
    shown = chat.locator(ANSWER).text_content() or ""
    assert not set(shown) & set("\u202e\u2066")


def test_entities_are_characters(fake: Fake, chat: Page) -> None:
    answer(chat, fake, HOSTILE["entities"])
    expect(chat.locator(ANSWER)).to_have_text("<script>alert(1)</script> &#60;img&#62; &lt; &constructor; &toString;")


def test_an_open_fence_takes_the_rest(fake: Fake, chat: Page) -> None:
    answer(chat, fake, HOSTILE["fence"])
    expect(chat.locator(f"{ANSWER} code")).to_have_text("<script>alert(1)</script>\n``` <b>still code")


def test_very_long_texts_are_shown(fake: Fake, chat: Page) -> None:
    fake.part_chars = 1 << 16
    for name, text in LONG.items():
        answer(chat, fake, text)
        assert chat.locator(ANSWER).last.text_content(), name
        chat.keyboard.press("Control+k")
        expect(chat.locator("#welcome")).to_be_visible()

"""Formulas and footnotes in answers."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from .conftest import say
from .fake import Fake
from .test_markdown import ANSWER, COMPARE

TEXT = r"""Inline $x^2$, \(y_1\) and **$z$**.

$$
a = b
- c
$$

\[ \sum_{i=1}^n i = \frac{n(n+1)}{2} \].

1. In a list:
   \[
   e^{i\pi} + 1 = 0
   \]
2. Then
"""
MATH = f"{ANSWER} .katex"
READY = f"{ANSWER} .katex-html"


def answer(page: Page, fake: Fake, text: str) -> None:
    fake.answers = [text]
    say(page, "show")


def sources(page: Page) -> list[str]:
    """The TeX of all formulas that were set."""
    found: list[str] = page.locator(f"{ANSWER} annotation").all_text_contents()
    return [one.strip() for one in found]


def test_formulas_are_set(fake: Fake, chat: Page) -> None:
    answer(chat, fake, TEXT)
    expect(chat.locator(MATH)).to_have_count(6)
    assert sources(chat) == [
        "x^2", "y_1", "z", "a = b\n- c", r"\sum_{i=1}^n i = \frac{n(n+1)}{2}", r"e^{i\pi} + 1 = 0",
    ]  # fmt: skip
    expect(chat.locator(f"{ANSWER} .katex-display")).to_have_count(3)
    expect(chat.locator(f"{ANSWER} strong .katex")).to_have_count(1)
    expect(chat.locator(f"{ANSWER} li .katex-display")).to_have_count(1)
    expect(chat.locator(f"{ANSWER} li")).to_have_count(2)
    assert chat.evaluate("document.fonts.ready.then(() => document.fonts.check('16px KaTeX_Main'))")


@pytest.mark.parametrize("text", [
    "It costs $5 and $10.",
    "From $5-$10, or US$5 to US$10",
    "I have $5, you have 10$.",
    "$5 for one = 10$ for two",
    "Set $HOME and $PATH, or $HOME/$USER.",
    "That is $$$ or $$ or $, by price",
    "An open $x and an open $$y",
    r"An open \(x and an open \[y",
])  # fmt: skip
def test_what_is_no_maths_stays_text(fake: Fake, chat: Page, text: str) -> None:
    answer(chat, fake, text)
    assert chat.locator(ANSWER).inner_text() == text
    expect(chat.locator(f"{ANSWER} .math")).to_have_count(0)


def test_escaped_marks_are_marks(fake: Fake, chat: Page) -> None:
    answer(chat, fake, r"\$x\$ is $y$")
    expect(chat.locator(MATH)).to_have_count(1)
    assert sources(chat) == ["y"]
    expect(chat.locator(f"{ANSWER} p")).to_contain_text("$x$ is")


def test_code_is_left_alone(fake: Fake, chat: Page) -> None:
    answer(chat, fake, "`$x$` and `\\(y\\)` and $a `b$` c\n\n```\n$$\nz\n$$\n```")
    expect(chat.locator(f"{ANSWER} .math")).to_have_count(0)
    expect(chat.locator(f"{ANSWER} code")).to_have_text(["$x$", "\\(y\\)", "b$", "$$\nz\n$$"])


@pytest.mark.parametrize("text", [
    r"Bad: $\frac{1$ here", r"Bad: \(\nothing{x}\) here", "$$\n\\begin{matrix} a\n$$",
    r"Bad: $\href{javascript:alert(1)}$",
    r"Deep: $" + "{" * 5000 + "$", r"\[\def\a{\a\a}\a\]", "Turned: $\\text{a\u202eb}x$",
])  # fmt: skip
def test_bad_tex_is_shown_as_it_is(fake: Fake, chat: Page, text: str) -> None:
    answer(chat, fake, f"{text}\n\nAnd $x$.")
    expect(chat.locator(MATH)).to_have_count(1)
    shown = chat.locator(f"{ANSWER} > :first-child").inner_text()
    assert "".join(shown.split()) == "".join(text.replace("\u202e", "U+202E").split())


def test_formulas_with_styles_keep_to_the_policy(fake: Fake, chat: Page) -> None:
    """What breaks the policy fails in the fixture."""
    cases = r"$$\begin{cases}a\\[2pt]b\end{cases}$$"
    answer(
        chat, fake, rf"$\pmb{{x}}$ $\fcolorbox{{red}}{{blue}}{{y}}$ $\color{{red}}z \boxed{{1}} \cancel{{2}}$ {cases}"
    )
    expect(chat.locator(MATH)).to_have_count(4)
    assert "text-shadow" in (chat.locator(f"{MATH} [style*=text-shadow]").first.get_attribute("style") or "")


def test_links_and_images_in_formulas_are_not_made(fake: Fake, chat: Page) -> None:
    answer(
        chat, fake, r"$\href{https://evil.example}{x}$ $\includegraphics{https://evil.example/a.png}$ $\url{a} y$ $y$"
    )
    expect(chat.locator(READY).last).to_be_visible()
    expect(chat.locator(f"{ANSWER} a, {ANSWER} img")).to_have_count(0)


def test_a_formula_that_streams_ends_as_the_whole(fake: Fake, chat: Page) -> None:
    answer(chat, fake, "$x$")
    expect(chat.locator(MATH)).to_have_count(1)  # KaTeX is there: formulas are set at once
    texts = [
        TEXT, "a\n\\[\nb\n- c\n\n- d\n", "$$ is dear\n- a\n- b\n\n$$x$$\n", "\\[a\\] and\nmore\n# b", "a $x\ny$ b\n$$",
        "One[^1], two[^b], [^a-z] none.\n\n[^1]: First\n[^b]: Second\n    goes on\n\n  and on\n\nEnd[^1]\n", "[^1]: a",
    ]  # fmt: skip
    for text in texts:
        assert chat.evaluate(COMPARE, {"text": text, "sizes": [1, 2, 3, 7]}) == [], text


def test_footnotes(fake: Fake, chat: Page) -> None:
    text = "Water boils[^1] at 100 °C[^note]. The class `[^a]` and [^0-9] stay."
    answer(chat, fake, f"{text}\n\n[^1]: At sea *level*.\n[^note]: Or 212 °F.\n")
    notes = chat.locator(".footnote")
    expect(notes).to_have_count(2)
    expect(notes.first).to_contain_text("At sea level.")
    expect(chat.locator(f"{ANSWER} p").first).to_contain_text("[^0-9] stay")
    before = chat.url
    chat.get_by_label("Footnote 1", exact=True).click()
    expect(notes.first).to_be_focused()
    chat.get_by_label("Back to mark 1").press("Enter")
    expect(chat.get_by_label("Footnote 1", exact=True)).to_be_focused()
    assert chat.url == before

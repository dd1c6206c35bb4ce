"""Models of the server: loaded or not, for chats or not, their defaults and their context."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from .conftest import Open, say
from .fake import Fake


def test_the_list_tells_which_models_are_loaded_and_which_only_embed(fake: Fake, open_page: Open) -> None:
    fake.embeds = "vectors"
    page = open_page(fake.url)
    options = page.locator("#model option")
    expect(options).to_have_text(["vectors (embeddings only)", "small", "large (not loaded)"])
    expect(options.first).to_be_disabled()
    expect(page.locator("#model")).to_have_value("small")
    page.select_option("#model", "large")
    say(page, "a")
    expect(options).to_have_text(["vectors (embeddings only)", "small", "large"])  # the answer loaded it
    expect(page.locator("#model")).to_have_value("large")


def test_a_chat_of_a_model_that_only_embeds_takes_another(fake: Fake, chat: Page) -> None:
    chat.select_option("#model", "large")
    say(chat, "a")
    fake.embeds, fake.loaded = "vectors", ["small"]
    chat.evaluate("localStorage.setItem('fewbit.model', 'vectors')")
    chat.reload()
    expect(chat.locator("#model")).to_have_value("large")
    chat.goto(fake.url)
    expect(chat.locator("#model")).to_have_value("small")


def test_settings_show_the_defaults_of_the_model(fake: Fake, chat: Page) -> None:
    chat.click("#open-settings")
    fields = {"Temperature": "0.7", "Top p": "0.8", "Top k": "20", "Min p": "0", "Max tokens": "to 100 in all"}
    for label, value in fields.items():
        expect(chat.get_by_label(label)).to_have_attribute("placeholder", value)
        expect(chat.get_by_label(label)).to_have_value("")
    expect(chat.locator("#model-note")).to_contain_text("small holds 100 tokens of context")
    chat.get_by_role("button", name="Cancel").click()
    chat.select_option("#model", "large")
    chat.click("#open-settings")
    expect(chat.locator("#model-note")).to_contain_text("large is not loaded yet")
    expect(chat.get_by_label("Temperature")).to_have_attribute("placeholder", "")


def test_the_meter_shows_how_full_the_context_is(fake: Fake, chat: Page) -> None:
    expect(chat.locator("#context")).to_be_hidden()
    say(chat, "a")
    expect(chat.locator("#context")).to_contain_text("41 of 100 tokens")
    fake.answers = ["x" * 7 * 55]
    say(chat, "b")
    expect(chat.locator("#context")).to_contain_text("95 of 100 tokens")
    expect(chat.locator("#context.full")).to_be_visible()
    chat.reload()
    expect(chat.locator("#context")).to_contain_text("95 of 100 tokens")
    chat.keyboard.press("Control+k")
    expect(chat.locator("#context")).to_be_hidden()


def test_a_server_that_tells_nothing_of_its_models(fake: Fake, open_page: Open) -> None:
    fake.has_show = False
    page = open_page(fake.url, allowed=("404",))
    expect(page.locator("#model option")).to_have_text(["small", "large (not loaded)"])
    say(page, "a")
    expect(page.locator(".assistant .body")).to_have_text(["Hello."])

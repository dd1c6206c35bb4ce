"""The page before the real server, with a tiny model that writes random bytes."""

from __future__ import annotations

import re
from time import sleep

import pytest
from playwright.sync_api import Page, expect

from fewbit.llm import LLM
from fewbit.server.app import ROUTES, make_app
from fewbit.server.page import ROUTES as PAGE_ROUTES
from fewbit.server.pool import Pool
from fewbit.server.settings import Settings

from .conftest import Open, say
from .fake import served


def begin(page: Page, **settings: str) -> None:
    page.click("#open-settings")
    for name, value in settings.items():
        page.locator(f"#settings [name={name}]").fill(value)
    page.get_by_role("button", name="Save").click()


def test_the_app_serves_the_page() -> None:
    assert all(route in ROUTES for route in PAGE_ROUTES)


def test_a_chat_with_the_real_server(llm: LLM, open_page: Open) -> None:
    with served(make_app(Settings(), Pool.of(llm), close_pool=False)) as url:
        page = open_page(url)
        begin(page, temperature="0.8", max_tokens="24", top_p="0.95", top_k="40", min_p="0.01", seed="3", stop="zqzq",
              system="Be brief.")  # fmt: skip
        say(page, "hello")
        expect(page.locator(".error")).to_have_count(0)
        expect(page.locator(".cost")).to_contain_text(re.compile(r"\d+ tokens"))
        expect(page.locator("#context")).to_contain_text("of 1,024 tokens")
        first = page.locator(".assistant .body").inner_text()
        page.get_by_label("Regenerate").click()
        expect(page.locator(".versions")).to_contain_text("2/2")
        assert page.locator(".assistant .body").inner_text() == first  # the seed is the same
        page.click("#toggle-stats")
        expect(page.locator("#stats dd").nth(3)).to_have_text(re.compile(r"\d+ / [1-9]\d*"))


def test_the_real_server_tells_of_its_model_and_takes_half_answers(llm: LLM, open_page: Open) -> None:
    with served(make_app(Settings(), Pool.of(llm), close_pool=False)) as url:
        page = open_page(url)
        page.click("#open-settings")
        expect(page.locator("#settings [name=temperature]")).to_have_attribute(
            "placeholder", f"{llm.sampling.temperature:g}"
        )
        expect(page.locator("#model-note")).to_contain_text("1,024 tokens of context")
        page.get_by_role("button", name="Cancel").click()
        begin(page, max_tokens="8", temperature="0")
        say(page, "hello")
        expect(page.locator(".cost")).to_contain_text("cut at the token limit")
        with page.expect_response("**/v1/chat/completions") as found:
            page.get_by_label("Continue").click()
        assert found.value.status == 200
        assert found.value.request.post_data_json["messages"][-1]["role"] == "assistant"
        page.wait_for_selector("#send:visible")
        expect(page.locator(".error")).to_have_count(0)
        expect(page.locator(".assistant")).to_have_count(1)


def test_stop_frees_the_real_server(llm: LLM, open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    step = llm.engine.step
    monkeypatch.setattr(llm.engine, "step", lambda: sleep(0.02) or step())  # else it is over before it is stopped
    with served(make_app(Settings(), Pool.of(llm), close_pool=False)) as url:
        page = open_page(url)
        page.fill("#input", "go on")
        page.press("#input", "Enter")
        page.wait_for_selector(".running")
        page.keyboard.press("Escape")
        expect(page.locator(".cost")).to_contain_text("stopped")
        page.click("#toggle-stats")
        expect(page.locator("#stats dd").nth(1)).to_have_text("0")


def test_errors_and_keys_of_the_real_server(llm: LLM, open_page: Open) -> None:
    with served(
        make_app(Settings(api_keys=("a-long-key",), max_prompt_tokens=64), Pool.of(llm), close_pool=False)
    ) as url:
        page = open_page(url, allowed=("401", "400", "413"))
        page.get_by_label("Key", exact=True).fill("a-long-key")
        page.keyboard.press("Enter")
        expect(page.locator("#model option")).to_have_text([llm.model_name])
        say(page, "word " * 500)
        expect(page.locator(".error")).to_be_visible()
        begin(page, max_tokens="4")
        page.keyboard.press("Control+k")
        say(page, "short")
        expect(page.locator(".error")).to_have_count(0)

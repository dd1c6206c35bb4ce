"""Pictures of the page at /local: docs/images/local-light.png and local-dark.png. It needs playwright and a Chromium.

    .venv/bin/python docs/record_local.py model.gguf

The model runs in headless Chromium, on its software adapter: give it some minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import fewbit as fb  # noqa: E402
from fewbit.server.app import make_app  # noqa: E402
from fewbit.server.pool import Pool  # noqa: E402
from fewbit.server.settings import Settings  # noqa: E402
from tests.browser.conftest import CHROMIUM, FLAGS  # noqa: E402
from tests.server.browser.fake import served  # noqa: E402

QUESTION = "Why is the sky blue?"
SETTINGS = "localStorage.setItem('fewbit.local', JSON.stringify({ temperature: 0, maxTokens: 60, ctx: 512 }))"
SIZE = {"width": 1000, "height": 560}


def record(browser: Browser, url: str) -> None:
    page: Any = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
    page.set_default_timeout(1_800_000)
    page.goto(f"{url}local")
    page.evaluate(SETTINGS)
    page.wait_for_selector("#shared button")
    page.screenshot(path=IMAGES / "local-pick.png")
    page.click("#shared button")
    page.wait_for_selector("#composer:visible")
    page.fill("#input", QUESTION)
    page.press("#input", "Enter")
    page.wait_for_selector("#send:visible")
    page.screenshot(path=IMAGES / "local-light.png")
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=IMAGES / "local-dark.png")


def main() -> None:
    with fb.LLM(sys.argv[1], ctx=512, threads=1) as llm, sync_playwright() as playwright:
        app = make_app(Settings(share_models=True), Pool.of(llm), close_pool=False)
        with served(app) as url:
            record(playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, headless=False), url)


if __name__ == "__main__":
    main()

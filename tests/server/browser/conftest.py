"""The page in headless Chromium. A test fails if the page logs an error, breaks its policy or asks anybody else.

They need `pip install playwright` and a Chromium, that of the system or of `playwright install chromium`; without
them they are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("playwright.sync_api")
pytest.importorskip("uvicorn")

from playwright.sync_api import Browser, BrowserContext, Page, expect

from ... import chromium
from .fake import Fake, served

PATIENCE_MS = 60_000  # for machines that are busy with other things

Open = Callable[..., Page]
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium.launch() as found:
        yield found


@pytest.fixture(scope="session")
def _fake_server() -> Iterator[Fake]:
    fake = Fake()
    with served(fake.app()) as fake.url:
        yield fake


@pytest.fixture
def fake(_fake_server: Fake) -> Fake:
    """The server, as new."""
    fresh = Fake(url=_fake_server.url)
    _fake_server.__dict__.update(fresh.__dict__)
    return _fake_server


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens an address in a fresh browser profile, and watches what the page does."""
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    def open_page(url: str, allowed: tuple[str, ...] = (), **options: object) -> Page:
        context = browser.new_context(
            **{"viewport": {"width": 1200, "height": 800}, "reduced_motion": "reduce", **options}
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
        page.on("request", lambda one: None if _is_ours(one.url, url) else problems.append(f"request: {one.url}"))

        def on_console(message: object) -> None:
            text = message.text  # type: ignore[attr-defined]
            if message.type == "error" and not any(one in text for one in allowed):  # type: ignore[attr-defined]
                problems.append(f"console: {text}")

        page.on("console", on_console)
        page.goto(url)
        page.wait_for_selector("#model option, dialog[open]", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def chat(fake: Fake, open_page: Open) -> Page:
    return open_page(fake.url)


def _is_ours(address: str, url: str) -> bool:
    return address.startswith((url, f"blob:{url}"))


def say(page: Page, text: str) -> None:
    """Sends a message and waits for the end of the answer."""
    page.fill("#input", text)
    page.press("#input", "Enter")
    page.wait_for_selector("#send:visible")

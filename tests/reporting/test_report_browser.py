"""The page of a report in headless Chromium: no error, no request, nothing wider than the screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fewbit as fb

from .. import chromium
from ..cli.tiny import write_tiny
from ..evaluation.reference import TEXT

pytest.importorskip("playwright.sync_api")

from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.launch() as found:
        yield found


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    models = [write_tiny(folder / f"{name}.gguf", format=name) for name in ("f32", "q8_0", "q4_0")]
    fb.report(models[1:], TEXT, reference=models[0], ctx=32).save(folder / "report.html")
    return folder / "report.html"


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_report_in_a_browser(browser: Browser, page_file: Path, theme: Any, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
    page, problems, url = context.new_page(), [], page_file.as_uri()
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("console", lambda message: problems.append(f"console: {message.text}"))
    page.on("request", lambda one: None if one.url in (url, "data:,") else problems.append(f"request: {one.url}"))
    page.goto(url)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if theme == "light" else "rgb(20, 23, 28)")
    for chart in page.locator("svg").all():
        box = chart.bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["height"] > 60
    assert page.evaluate("[...document.querySelectorAll('svg text')].every(t => getComputedStyle(t).fill != 'none')")
    context.close()
    assert problems == []

"""Images on the page: picked, dropped or pasted, shown, and sent as data URLs."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from .conftest import Open
from .fake import Fake

PIL = pytest.importorskip("PIL.Image")


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "a.png"
    PIL.fromarray(np.full((8, 12, 3), 90, np.uint8)).save(path)
    return path


def url_of(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def drop(page: Page, path: Path) -> None:
    """As if a file were dropped on the page."""
    page.evaluate(
        """async ([url, name]) => {
          const data = new DataTransfer();
          const bytes = Uint8Array.from(atob(url.split(",")[1]), (char) => char.charCodeAt(0));
          data.items.add(new File([bytes], name, { type: "image/png" }));
          document.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
        }""",
        [url_of(path), path.name],
    )


def test_several_images_are_shown_and_sent(fake: Fake, open_page: Open, picture: Path, tmp_path: Path) -> None:
    page = open_page(fake.url)
    notes = tmp_path / "notes.md"
    notes.write_text("hello")
    page.set_input_files("#attach-file", [picture, notes])
    drop(page, picture)
    expect(page.locator("#files img")).to_have_count(2)
    page.locator("#files .picture button").last.click()
    expect(page.locator("#files img")).to_have_count(1)
    drop(page, picture)
    page.fill("#input", "What is it?")
    page.press("#input", "Enter")
    expect(page.locator(".message.user img")).to_have_count(2)
    expect(page.locator(".message.user img").first).to_have_js_property("naturalWidth", 12)
    content = fake.bodies[-1]["messages"][-1]["content"]
    image = {"type": "image_url", "image_url": {"url": url_of(picture)}}
    assert content[:2] == [image, image]
    assert content[2]["type"] == "text"
    assert "hello" in content[2]["text"]
    assert content[2]["text"].endswith("What is it?")

"""Images on the page: picked, dropped or pasted, shown, and sent as data URLs; and a model that sees them."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from fewbit.server.app import make_app
from fewbit.server.pool import Pool
from fewbit.server.settings import Settings

from ...models.vision.zoo import opened
from .conftest import Open
from .fake import Fake, served

PIL = pytest.importorskip("PIL.Image")


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "a.png"
    PIL.fromarray(np.full((8, 12, 3), 90, np.uint8)).save(path)
    return path


def url_of(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def give(page: Page, path: Path, event: str) -> None:
    """As if a file were dropped on the page, or pasted into its box."""
    page.evaluate(
        """async ([url, name, kind]) => {
          const data = new DataTransfer();
          const bytes = Uint8Array.from(atob(url.split(",")[1]), (char) => char.charCodeAt(0));
          data.items.add(new File([bytes], name, { type: "image/png" }));
          const options = { bubbles: true, cancelable: true };
          const event = kind === "drop"
            ? new DragEvent("drop", { dataTransfer: data, ...options })
            : new ClipboardEvent("paste", { clipboardData: data, ...options });
          document.getElementById("input").dispatchEvent(event);
        }""",
        [url_of(path), path.name, event],
    )


def drop(page: Page, path: Path) -> None:
    give(page, path, "drop")


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


def test_a_pasted_image_is_shown_and_a_model_answers_it(open_page: Open, picture: Path) -> None:
    with opened("gemma3/model.gguf") as llm:
        question = [{"type": "image", "image": picture}, {"type": "text", "text": "What is it?"}]
        answer = llm.chat([{"role": "user", "content": question}], temperature=0, max_tokens=8)
        with served(make_app(Settings(), Pool.of(llm), close_pool=False)) as url:
            page = open_page(url)
            page.click("#open-settings")
            page.locator("#settings [name=temperature]").fill("0")
            page.locator("#settings [name=max_tokens]").fill("8")
            page.get_by_role("button", name="Save").click()
            give(page, picture, "paste")
            preview = page.locator("#files img")
            expect(preview).to_have_count(1)
            expect(preview).to_have_js_property("naturalWidth", 12)
            page.fill("#input", "What is it?")
            page.press("#input", "Enter")
            page.wait_for_selector("#send:visible")
            expect(page.locator(".error")).to_have_count(0)
            expect(page.locator(".message.user img")).to_have_count(1)
            expect(page.locator("#files img")).to_have_count(0)
            expect(page.locator(".cost")).to_contain_text("tokens")
            shown = page.locator(".assistant .body").inner_text()
    assert "".join(shown.split()) == "".join(answer.text.split())

"""Pictures of the chat page: docs/images/page-light.png, page-dark.png and page-phone.png. It needs playwright.

    .venv/bin/python docs/record_page.py
    .venv/bin/python docs/record_page.py page-images

The page is the real one in headless Chromium; what is said there comes from a server without a model, so that the
pictures are the same everywhere. For docs/images/page-images.png it is a tiny model with random weights that sees, from
the tests: two pictures are dropped and answered, another one waits to be sent.
"""

from __future__ import annotations

import base64
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fewbit.server.app import make_app  # noqa: E402
from fewbit.server.pool import Pool  # noqa: E402
from fewbit.server.settings import Settings  # noqa: E402
from tests.models.vision.zoo import opened  # noqa: E402
from tests.server.browser.conftest import CHROMIUM, say  # noqa: E402
from tests.server.browser.fake import Fake, served  # noqa: E402
from tests.server.browser.test_images import give  # noqa: E402

THOUGHT = (
    "The reader asks what is kept. Keys and values, for each layer and head. I should show the formula and a size."
)
ANSWER = r"""A model writes *one token at a time*, and for each it looks back at **all** tokens before:

$$
\operatorname{attend}(q) = \sum_{i=1}^{n} \frac{e^{q \cdot k_i / \sqrt{d}}}{\sum_j e^{q \cdot k_j / \sqrt{d}}}\, v_i
$$

The keys $k_i$ and values $v_i$ do not change, so they are kept[^1].

```python
def attend(query, keys, values):
    scores = keys @ query / math.sqrt(len(query))  # (tokens,)
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()
```

| Format | Bits | Size of 1B | Speed |
|:-------|-----:|-----------:|:-----:|
| F16    | 16   | 2.0 GB     | 1.0 x |
| Q4_K_M | 4.8  | 0.6 GB     | 3.1 x |

[^1]: In 8 bits, or fewer: `--kv q8_0`.
"""
CHATS = ["Name three rivers in Asia", "Fix my regular expression", "What does a KV cache keep?"]
DESKTOP = {"viewport": {"width": 1100, "height": 900}}
PHONE = {"viewport": {"width": 360, "height": 720}, "device_scale_factor": 1.5, "is_mobile": True, "has_touch": True}
PICTURES: dict[str, dict[str, Any]] = {
    "page-light": {**DESKTOP, "color_scheme": "light"},
    "page-dark": {**DESKTOP, "color_scheme": "dark"},
    "page-phone": {**PHONE, "color_scheme": "light"},
}


def record(browser: Browser, fake: Fake, url: str, name: str) -> None:
    fake.answers = ["The Yangtze, the Mekong and the Lena.", "Here it is.", ANSWER]
    fake.thoughts = ["", "", THOUGHT]
    page = browser.new_context(**PICTURES[name]).new_page()
    page.goto(url)
    page.wait_for_selector("#model option", state="attached")
    if name != "page-phone":
        page.click("#toggle-stats")
    for text in CHATS:
        page.keyboard.press("Control+k")
        say(page, text)
    page.wait_for_timeout(12_000 if name != "page-phone" else 0)  # a line of figures
    page.screenshot(path=IMAGES / f"{name}.png")
    page.context.close()


def draw(kind: str) -> str:
    """A picture as a data URL: hills, the sea, or a tree."""
    image = Image.new("RGB", (320, 220), "#cfe6f5")
    pen = ImageDraw.Draw(image)
    if kind == "tree":
        pen.rectangle((150, 120, 170, 200), fill="#7a5230")
        pen.ellipse((100, 30, 220, 150), fill="#3f8f4f")
    else:
        pen.ellipse((225, 25, 285, 85), fill="#f7c948")
        shore = 130 if kind == "sea" else 220
        pen.polygon([(0, shore), (90, 70), (180, 170), (250, 100), (320, 190), (320, 220), (0, 220)], fill="#5b8c5a")
        pen.rectangle((0, 190 if kind == "hills" else 130, 320, 220), fill="#4a7fb5" if kind == "sea" else "#86b06a")
    out = io.BytesIO()
    image.save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def record_images(browser: Browser) -> None:
    with tempfile.TemporaryDirectory() as folder, opened("gemma3/model.gguf") as llm:
        paths = {kind: Path(folder) / f"{kind}.png" for kind in ("hills", "sea", "tree")}
        for kind, path in paths.items():
            path.write_bytes(base64.b64decode(draw(kind).partition(",")[2]))
        llm.model_name = "tiny-gemma3"
        with served(make_app(Settings(), Pool.of(llm), close_pool=False)) as url:
            page = browser.new_context(viewport={"width": 1100, "height": 760}, color_scheme="light").new_page()
            page.goto(url)
            page.wait_for_selector("#model option", state="attached")
            page.click("#open-settings")
            page.locator("#settings [name=max_tokens]").fill("8")
            page.get_by_role("button", name="Save").click()
            give(page, paths["hills"], "drop")
            give(page, paths["sea"], "paste")
            say(page, "What is the difference?")
            give(page, paths["tree"], "drop")
            page.fill("#input", "And this one?")
            page.screenshot(path=IMAGES / "page-images.png")


def main() -> None:
    if sys.argv[1:] == ["page-images"]:
        with sync_playwright() as playwright:
            record_images(playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]))
        return
    fake = Fake(part_chars=4, part_seconds=0.01, context=8192)
    with served(fake.app()) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in PICTURES:
            record(browser, fake, url, name)
        browser.close()


if __name__ == "__main__":
    main()

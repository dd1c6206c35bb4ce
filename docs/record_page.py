"""Pictures of the chat page: docs/images/page-light.png, page-dark.png and page-phone.png. It needs playwright.

    .venv/bin/python docs/record_page.py

The page is the real one in headless Chromium; what is said there comes from a server without a model, so that the
pictures are the same everywhere.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.server.browser.conftest import CHROMIUM, say  # noqa: E402
from tests.server.browser.fake import Fake, served  # noqa: E402

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


def main() -> None:
    fake = Fake(part_chars=4, part_seconds=0.01, context=8192)
    with served(fake.app()) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in PICTURES:
            record(browser, fake, url, name)
        browser.close()


if __name__ == "__main__":
    main()

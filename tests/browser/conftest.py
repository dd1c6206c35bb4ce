"""Chromium with WebGPU on its software adapter, and a server that shares tiny models."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fewbit as fb
from fewbit.server import page as server_page

from ..chromium import launch

ZOO = Path(__file__).parents[1] / "zoo"
NAMES = ("llama", "qwen3", "gemma3", "qwen3moe", "gpt-oss", "qwen35", "lfm2moe", "nemotron_h", "gemma4")
FLAGS = (
    "--no-sandbox", "--headless=new", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan", "--disable-gpu-watchdog",
)  # fmt: skip
PATIENCE_MS = 240_000

OpenPage = Callable[..., Any]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, fb.LLM]]:
    folder, found = tmp_path_factory.mktemp("shared"), {}
    for name in NAMES:
        path = shutil.copy(ZOO / name / "model.gguf", folder / f"{name}.gguf")
        found[name] = fb.LLM(path, ctx=128, kv="f16", exact=True, threads=1)
    yield found
    for llm in found.values():
        llm.close()


@pytest.fixture(scope="session")
def url(models: dict[str, fb.LLM]) -> Iterator[str]:
    pytest.importorskip("uvicorn")
    from fewbit.server.app import make_app
    from fewbit.server.pool import Pool
    from fewbit.server.settings import Settings

    from ..server.browser.fake import served

    with served(make_app(Settings(share_models=True), Pool.of(*models.values()), close_pool=False)) as found:
        yield found


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A browser whose adapter runs a shader; skipped where there is none."""
    with launch(FLAGS, headless=False) as found:
        yield found


@pytest.fixture
def open_page(chromium: Any, url: str) -> Iterator[OpenPage]:
    """Opens /local in a fresh profile. A test fails if the page logs an error."""
    contexts, problems = [], []

    def open_page(path: str = "local", allowed: tuple[str, ...] = (), **options: Any) -> Any:
        context = chromium.new_context(**{"viewport": {"width": 1100, "height": 760}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("console", lambda one: note(one.type, one.text))

        def note(kind: str, text: str) -> None:
            if kind == "error" and not any(part in text for part in allowed):
                problems.append(text)

        page.goto(f"{url}{path}")
        if not page.evaluate("async () => Boolean(await navigator.gpu?.requestAdapter())"):
            pytest.skip("Chromium has no WebGPU here")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def bundle(url: str) -> str:
    return f"{url}page/{server_page.load().version}/fewbit.js"

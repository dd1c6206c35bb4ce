"""Chromium for tests, which are skipped without it or without playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PATH = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@contextmanager
def launch(flags: tuple[str, ...] = ("--no-sandbox",), **options: Any) -> Iterator[Any]:
    """A browser."""
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=PATH, args=[*flags], **options)
        except api.Error as error:
            pytest.skip(f"there is no Chromium: {error}")
        yield browser
        browser.close()

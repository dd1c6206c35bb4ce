"""The bundle of the page is made from web/src, and the package has what it names."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import fewbit as fb

from .runtime import BUNDLE, WEB


def test_the_bundle_is_up_to_date(tmp_path: Path) -> None:
    if not shutil.which("node") or not (WEB / "node_modules/esbuild").is_dir():
        pytest.skip("there is no Node, or `make web` was never run here")
    subprocess.run(["node", "build.js", str(tmp_path / "fewbit.js")], cwd=WEB, check=True, timeout=120)
    assert (tmp_path / "fewbit.js").read_text() == BUNDLE.read_text(), "run `make web`"


def test_the_package_is_what_it_says() -> None:
    package = json.loads((WEB / "package.json").read_text())
    assert package["name"] == "fewbit"
    assert package["version"] == fb.__version__
    assert package["type"] == "module"
    assert (WEB / package["exports"]["./src"]).is_file()
    assert (WEB / "README.md").is_file()
    assert set(package["dependencies"]) == {"@huggingface/jinja"}
    assert (BUNDLE.parent / "jinja.LICENSE").read_text().startswith("MIT License")


def test_the_bundle_asks_nobody_else() -> None:
    text = BUNDLE.read_text()
    assert text.startswith("/* fewbit: made by `make web`")
    for wrong in ("http://", "https://", "eval(", "new Function", "innerHTML"):
        assert wrong not in text, wrong
    assert len(text) < 150_000

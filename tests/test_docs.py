"""The docs say what is true: generated files are fresh, examples run, links and targets are there."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fewbit.formats.emit import FILES

from .cli.tiny import TEMPLATE, write_tiny

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = {  # pages whose examples need a server or a GPU
    "docs/server.md": "tests/server/test_server_docs.py",
    "docs/cluster.md": "tests/cluster/test_in_ray.py",
    "docs/cookbook/agent.md": "tests/server/test_recipes.py",
    "docs/cookbook/extraction.md": "tests/server/test_recipes.py",
    "docs/gpu.md": "tests/cuda/test_emulated.py",
    "docs/cookbook/gpu.md": "tests/cuda/test_emulated.py",
    "docs/webgpu.md": "tests/webgpu/test_webgpu_docs.py",
}
WITH_PYTHON = sorted(str(page.relative_to(ROOT)) for page in PAGES if PYTHON.search(page.read_text()))
EXAMPLES = [name for name in WITH_PYTHON if name not in ELSEWHERE]


@pytest.mark.parametrize("name", FILES)
def test_generated_file_is_fresh(name: str) -> None:
    assert (ROOT / name).read_text() == FILES[name](), f"{name} is stale: run `make emit`"


@pytest.mark.filterwarnings("ignore:q4_k_m.*fall back")  # the rows of the tiny checkpoint are short
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook: one block after another, `await` allowed, with a model and a checkpoint in the folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEWBIT_CACHE", str(tmp_path / "cache"))
    write_tiny(tmp_path / "model.gguf", TEMPLATE + "{{ tools | tojson if tools }}")
    shutil.copytree(ROOT / "tests/zoo/llama/hf", tmp_path / "checkpoint")
    shutil.copytree(ROOT / "tests/zoo/llama/adapter", tmp_path / "adapter")
    names: dict[str, Any] = {"__name__": "example"}
    with asyncio.Runner() as runner:
        for block in PYTHON.findall((ROOT / name).read_text()):
            code = compile(block, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            awaited = eval(code, names)
            if inspect.iscoroutine(awaited):
                runner.run(awaited)


def test_every_example_is_run_somewhere() -> None:
    for page, test in ELSEWHERE.items():
        folder, name = page.rsplit("/", 1)
        assert page in WITH_PYTHON
        assert name in (ROOT / test).read_text(), f"{test} does not run the examples of {folder}/{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^\$ )make ([a-z-]+)", page.read_text(), re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.svg")), ids=lambda path: path.name)
def test_pictures_are_whole_and_fetch_nothing(path: Path) -> None:
    root = ElementTree.fromstring(path.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert re.findall(r"https?://(?!www\.w3\.org/)", path.read_text()) == []


def test_a_screen_becomes_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    record = importlib.import_module("record")
    root = ElementTree.fromstring(record.svg("run", "fewbit run", "$ fewbit run\n\x1b[31mred\x1b[0m plain\n"))
    texts = {one.text: one.get("class") for one in root.iter("{http://www.w3.org/2000/svg}text")}
    assert texts["red"] != texts["\xa0plain"]


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_an_experiment_is_five_lines_and_the_newest_is_first() -> None:
    entries = (ROOT / "docs/log.md").read_text().split("\n### ")[1:]
    lines = [entry.strip().splitlines() for entry in entries]
    assert [entry[0] for entry in lines if len(entry) > 5 or max(map(len, entry)) > 160] == []
    dates = [entry[0].partition(": ")[0] for entry in lines]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", day) for day in dates)
    assert dates == sorted(dates, reverse=True)

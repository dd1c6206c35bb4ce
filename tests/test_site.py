"""The site of the docs builds without a warning, fetches nothing, and has every public name, option and command."""

from __future__ import annotations

import doctest
import html
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import get_type_hints

import click
import pytest

import fewbit as fb
from fewbit import errors
from fewbit.cli import main
from fewbit.llm.sampling_options import Options, PromptOptions

ROOT = Path(__file__).parents[1]
FETCHED = re.compile(r"""<(?:(?:script|img|iframe|source)[^>]*\ssrc|link[^>]*\shref)=["']?(?:https?:)?//""")

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@pytest.mark.parametrize("name", ["site_hooks", "site_commands"])
def test_the_examples_of_what_builds_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert not result.failed


def text_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def reference(site: Path) -> str:
    return "\n".join(text_of(page) for page in sorted((site / "reference").glob("*.html")))


def test_every_page_is_there(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    pages |= {Path("index.html"), Path("contributing.html"), Path("changes.html")}
    assert {path.relative_to(site) for path in site.rglob("*.html")} >= pages


def test_nothing_is_fetched(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert [page.name for page in pages if FETCHED.search(page.read_text())] == []
    sheets = list(site.rglob("*.css"))
    assert sheets
    assert [sheet.name for sheet in sheets if re.search(r"url\(['\"]?(https?:)?//|@import", sheet.read_text())] == []


def test_every_public_name_has_an_entry(site: Path) -> None:
    pages = "\n".join(page.read_text() for page in (site / "reference").glob("*.html"))
    anchors = {name.rpartition(".")[2] for name in re.findall(r'id="(fewbit\.[\w.]+)"', pages)}
    homes = {"format": "get", "formats": "all_formats"}  # as `fewbit.formats` names them
    assert {homes.get(name, name) for name in fb.__all__} <= anchors
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, fb.FewbitError)]
    assert {kind.__name__ for kind in kinds} <= anchors


def test_every_parameter_is_in_a_table(site: Path) -> None:
    """Of every public function, and of the methods that take more than what their name says."""
    entries = dict(entries_of(site))
    cache = [f"KVCache.{name}" for name in ("append", "attend", "reserve", "commit", "fetch", "save", "load")]
    named = [*cache, "Tokenizer.encode", "Tokenizer.decode", "ChatTemplate.render", "QuantTensor.from_bytes"]
    methods = [(name, attrgetter(name)(fb)) for name in named]
    functions = [(name, getattr(fb, name)) for name in fb.__all__ if inspect.isfunction(getattr(fb, name))]
    kinds = [(name, getattr(fb, name)) for name in ("KVCache", "ChatTemplate")]
    homes = {"format": "formats.get", "formats": "formats.all_formats"}
    for name, function in (*functions, *methods, *kinds):
        (entry,) = [text for anchor, text in entries.items() if anchor.endswith(f".{homes.get(name, name)}")]
        cells = set(re.findall(r"<td[^>]*>\s*<code>\**(\w+)</code>", entry))
        assert {one for one in inspect.signature(function).parameters if one != "self"} <= cells, name


def entries_of(site: Path) -> Iterator[tuple[str, str]]:
    """The HTML of each object in the reference, up to the next one."""
    for page in (site / "reference").glob("*.html"):
        parts = re.split(r'<h\d id="(fewbit\.[\w.]+)"', page.read_text())
        yield from zip(parts[1::2], parts[2::2], strict=True)


def test_every_option_has_a_row(site: Path) -> None:
    page = (site / "reference/options.html").read_text()
    rows = set(re.findall(r"<td>\s*<code>(\w+)</code>", page))
    assert {*get_type_hints(Options), *get_type_hints(PromptOptions)} <= rows


def test_every_parameter_of_llm_is_named(site: Path) -> None:
    page = text_of(site / "reference/llm.html")
    assert [name for name in inspect.signature(fb.LLM).parameters if not re.search(rf"\b{name}\b", page)] == []


def test_every_command_and_option_is_there(site: Path) -> None:
    page = text_of(site / "reference/command.html")

    def missing(command: click.Command, context: click.Context) -> list[str]:
        names = [option for one in command.get_params(context) for option in (*one.opts, *one.secondary_opts)]
        shown = [name for name in names if name.startswith("-") and name not in page]
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found
                inner = click.Context(found, context, name, **found.context_settings)
                shown += [] if inner.command_path in page else [inner.command_path]
                shown += missing(found, inner)
        return shown

    assert missing(main, click.Context(main, info_name="fewbit", **main.context_settings)) == []


def test_examples_are_code_not_quotations(site: Path) -> None:
    assert "<blockquote>" not in "\n".join(page.read_text() for page in (site / "reference").glob("*.html"))

"""docs/figures.md follows from the measurements in docs/figures/, and a file that is wrong is told so."""

from __future__ import annotations

import doctest
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
TABLE = {
    "title": "Linear",
    "machine": "a Xeon",
    "date": "2026-11-16",
    "command": "fewbit bench kernels; make bench",
    "peer": "llama.cpp (its best)",
    "unit": "batch",
    "columns": ["q4_0", "q8_0", "q6_k"],
    "rows": [
        {"name": "1", "values": [[2.03, 1.10, 2.13], 3.0, None]},
        {"name": "8", "unit": "%", "values": [[70, 83], 91, [77, 71, 91]]},
    ],
}


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import write_figures

    return write_figures


def write(folder: Path, **changed: Any) -> Path:
    path = folder / "chip.json"
    path.write_text(json.dumps({"chip": "Xeon", "tables": [{**TABLE, **changed}]}))
    return path


def run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "docs" / script, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_the_page_is_fresh() -> None:
    done = run("write_figures.py", "--check")
    assert done.returncode == 0, done.stderr


def test_a_table_has_medians_ranges_and_where_they_come_from(writer: ModuleType, tmp_path: Path) -> None:
    page = writer.page([writer.read(write(tmp_path, note="Short."))])
    assert "## Xeon\n\n### Linear\n\na Xeon, 2026-11-16. Beside llama.cpp (its best).\n" in page
    assert "`fewbit bench kernels`, `make bench`\n" in page
    assert "| batch | q4_0 | q8_0 | q6_k |\n" in page
    assert "| 1 | 2.03 (1.10-2.13) | 3.0 | - |\n| 8 | 70-83% | 91% | 77% (71-91) |\n\nShort.\n" in page


def test_the_plot_has_a_bar_for_each_value(writer: ModuleType, tmp_path: Path) -> None:
    root = ElementTree.fromstring(writer.plot([writer.read(write(tmp_path, plot=True))]))
    marks = [one.get("class") for one in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert marks.count("a") == 2 + 1  # and one in the legend
    assert marks.count("c") == 3 + 1
    assert "prefers-color-scheme: dark" in "".join(root.itertext())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"machine": ""}, '"machine" is missing'),
        ({"date": "today"}, "a date is written like 2026-11-16, not 'today'"),
        ({"rows": []}, '"rows" needs to be a list'),
        ({"columns": [1, 2, 3]}, "each column needs a name"),
        ({"rows": [{"name": "1", "values": [1, 2]}]}, "row '1': 2 values for 3 columns; write null"),
        ({"rows": [{"name": "1", "values": [1, 2, "3"]}]}, r"row '1': a value is a number, .* not '3'"),
        ({"rows": [{"name": "1", "values": [1, 2, True]}]}, "not True"),
        ({"rows": [{"name": "1", "values": [1, 2, [3, 2]]}]}, "is not in order"),
        ({"rows": [{"name": "1", "values": [1, 2, [1, 2, 3]]}]}, "is not in order"),
    ],
)
def test_a_bad_table_is_told_so(writer: ModuleType, tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(writer.BadFigures, match=said) as error:
        writer.read(write(tmp_path, **changed))
    assert str(error.value).startswith("chip.json, table 'Linear'")


@pytest.mark.parametrize("text", ["{", "[]", '{"chip": "Xeon"}', '{"chip": "Xeon", "tables": [3]}'])
def test_what_is_no_section_is_told_so(writer: ModuleType, tmp_path: Path, text: str) -> None:
    (tmp_path / "chip.json").write_text(text)
    with pytest.raises(writer.BadFigures, match=r"^chip\.json"):
        writer.read(tmp_path / "chip.json")


@pytest.mark.parametrize("name", ["write_figures", "draw_figures", "add_figures"])
def test_examples_of_the_scripts_hold(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    found = doctest.testmod(importlib.import_module(name))
    assert (found.failed, found.attempted > 0) == (0, True)


def test_one_table_is_drawn(writer: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(writer.BadFigures, match=r'one table .* needs "plot": true, 0 have it'):
        writer.plot([writer.read(write(tmp_path))])


def test_runs_of_a_benchmark_become_a_table(writer: ModuleType, tmp_path: Path) -> None:
    runs = [tmp_path / f"{share}.json" for share in (0.8, 0.9, 0.85)]
    for path in runs:
        path.write_text(json.dumps([{"format": "q4_0", "batch": 8, "share_of_read": float(path.stem)}]))
    into = tmp_path / "chip.json"
    given = ["--title", "Linear", "--machine", "a Xeon", "--unit", "batch", "--date", "2026-11-16", "--chip", "Xeon"]
    keys = ["--row", "batch", "--column", "format", "--value", "share_of_read", "--percent"]
    for _ in range(2):  # the second time it replaces the first
        assert run("add_figures.py", into, *runs, *given, *keys).returncode == 0
    (table,) = writer.read(into).tables
    assert "| batch | q4_0 |\n| --- | --- |\n| 8 | 85% (80-90) |\n" in writer.table_text(table)


def test_what_was_there_stays_as_it_was_written(tmp_path: Path) -> None:
    into, path = tmp_path / "chip.json", tmp_path / "run.json"
    path.write_text('[{"format": "q4_0", "batch": 8, "speed": [1.5, 2.25]}]')
    into.write_text((ROOT / "docs/figures/9-encoders.json").read_text())
    given = ["--title=T", "--machine=M", "--unit=U", "--row=batch", "--column=format", "--value=speed"]
    assert run("add_figures.py", into, path, *given).returncode == 0
    assert "[0.84, 0.96, 0.97, 0.94, 0.95, 0.97, 0.96, 0.90]" in into.read_text()
    assert '"values": [[1.88, 1.5, 2.25]]' in into.read_text()


def test_a_run_without_the_key_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"results": [{"format": "q4_0", "batch": 8}]}')
    given = ["--title=T", "--machine=M", "--unit=U", "--chip=C", "--row=batch", "--column=format", "--value=speed"]
    done = run("add_figures.py", tmp_path / "chip.json", path, *given)
    assert done.returncode == 1
    assert done.stderr == "a record has no 'speed'; it has format, batch\n"

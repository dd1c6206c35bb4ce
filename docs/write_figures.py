"""Writes docs/figures.md and docs/images/speed.svg from the files in docs/figures/; --check fails if they are stale.

    python docs/write_figures.py [--check]

A file in docs/figures/ is a section of the page, in the order of their names. docs/add_figures.py makes a table of what
the benchmarks print with --json; by hand it is

    {"chip": "Xeon with AMX", "note": "...", "tables": [{
        "title": "Linear, weights from memory", "machine": "2 threads of a shared Xeon", "date": "2026-11-16",
        "command": "fewbit bench kernels", "unit": "of a plain read loop", "peer": "llama.cpp", "note": "...",
        "columns": ["q4_0", "q8_0"],
        "rows": [{"name": "batch 1", "unit": "%", "values": [[70, 83], [96, 93, 105]]}]}]}

A value is a number, [low, high], [median, low, high], or null where nothing was measured. A unit of % is written
behind each value, another one above the names of the rows. `command` (several with a semicolon between them), `peer`,
`note` and the unit of a row may be left out. The table with `"plot": true` is drawn: rows in % beside the machine's
limit, the others beside the peer.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

from draw_figures import Number, Value, draw

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "docs/figures"
PAGE = ROOT / "docs/figures.md"
PLOT = ROOT / "docs/images/speed.svg"
HEAD = """# Figures

Written by `docs/write_figures.py` from the measurements in [docs/figures/](figures/): do not edit it by hand. A cell is
a median with the range over runs or rounds in brackets, or the range alone where no median was kept. A speed is a ratio
to something measured in turns in the same run, because the machines are shared. What was tried on the way, failures
too, is in [docs/log.md](log.md).

![Speed beside llama.cpp and beside the read bandwidth](images/speed.svg)
"""


class BadFigures(Exception):
    """A sentence that says where, and what would do."""


@dataclass(frozen=True)
class Row:
    name: str
    unit: str
    values: list[Value]


@dataclass(frozen=True)
class Table:
    title: str
    machine: str
    date: str
    command: str
    unit: str
    peer: str
    note: str
    columns: list[str]
    rows: list[Row]
    plot: bool


@dataclass(frozen=True)
class Section:
    chip: str
    note: str
    tables: list[Table]


def main() -> None:
    try:
        sections = [read(path) for path in sorted(MEASURED.glob("*.json"))]
        written = {PAGE: page(sections), PLOT: plot(sections)}
    except BadFigures as error:
        sys.exit(str(error))
    stale = [path for path, text in written.items() if not path.exists() or path.read_text() != text]
    if stale and "--check" in sys.argv[1:]:
        names = " and ".join(str(path.relative_to(ROOT)) for path in stale)
        sys.exit(f"{names} do not follow from docs/figures/; run `make emit`")
    for path in stale:
        path.write_text(written[path])


def read(path: Path) -> Section:
    try:
        data = json.loads(path.read_text(), parse_float=Decimal)  # 1.10 stays 1.10
    except (OSError, ValueError) as error:
        raise BadFigures(f"{path.name} is not JSON: {error}") from None
    return section(data, path.name)


def section(data: Any, where: str) -> Section:
    chip = words(data, "chip", where)
    return Section(chip, words(data, "note", where, ""), [table(t, where) for t in things(data, "tables", where)])


def table(data: Any, where: str) -> Table:
    title = words(data, "title", where)
    where = f"{where}, table {title!r}"
    columns = things(data, "columns", where)
    if not all(isinstance(name, str) for name in columns):
        raise BadFigures(f"{where}: each column needs a name")
    given = {key: words(data, key, where) for key in ("machine", "date", "unit")}
    try:
        date.fromisoformat(given["date"])
    except ValueError:
        raise BadFigures(f"{where}: a date is written like 2026-11-16, not {given['date']!r}") from None
    rows = [row(r, len(columns), where) for r in things(data, "rows", where)]
    notes = {key: words(data, key, where, "") for key in ("command", "peer", "note")}
    return Table(title=title, columns=columns, rows=rows, plot=data.get("plot") is True, **given, **notes)


def row(data: Any, columns: int, where: str) -> Row:
    name = words(data, "name", where)
    where = f"{where}, row {name!r}"
    values = things(data, "values", where)
    if len(values) != columns:
        raise BadFigures(f"{where}: {len(values)} values for {columns} columns; write null where nothing was measured")
    return Row(name, words(data, "unit", where, ""), [value(v, where) for v in values])


def value(data: Any, where: str) -> Value:
    """
    >>> value(2.5, "here"), value([1, 2], "here"), value(None, "here")
    ((2.5,), (1, 2), None)
    """
    if data is None:
        return None
    numbers = data if isinstance(data, list) else [data]
    if not 1 <= len(numbers) <= 3 or not all(type(n) in get_args(Number) for n in numbers):
        raise BadFigures(f"{where}: a value is a number, [low, high], [median, low, high] or null, not {data!r}")
    if len(numbers) > 1 and not numbers[-2] <= numbers[0] <= numbers[-1]:
        raise BadFigures(f"{where}: the range of {data!r} is not in order; write [low, high] or [median, low, high]")
    return tuple(numbers)


def words(data: Any, key: str, where: str, default: str | None = None) -> str:
    found = data.get(key, default) if isinstance(data, dict) else None
    if not isinstance(found, str) or not (found or default == ""):
        raise BadFigures(f'{where}: "{key}" is missing, or is no text')
    return found


def things(data: Any, key: str, where: str) -> list[Any]:
    found = data.get(key) if isinstance(data, dict) else None
    if not isinstance(found, list) or not found:
        raise BadFigures(f'{where}: "{key}" needs to be a list with something in it')
    return found


def page(sections: list[Section]) -> str:
    return HEAD + "".join(block for one in sections for block in section_text(one))


def section_text(one: Section) -> Iterator[str]:
    yield f"\n## {one.chip}\n"
    if one.note:
        yield f"\n{wrapped(one.note)}\n"
    for t in one.tables:
        yield f"\n### {t.title}\n\n{above(t)}\n\n{table_text(t)}"
        if t.note:
            yield f"\n{wrapped(t.note)}\n"


def above(t: Table) -> str:
    beside = f" Beside {t.peer}." if t.peer else ""
    said = wrapped(f"{t.machine}, {t.date}.{beside}")
    commands = [f"`{one.strip()}`" for one in t.command.split(";") if t.command]
    return f"{said}\n\n{wrapped(', '.join(commands))}" if commands else said


def wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def table_text(t: Table) -> str:
    lines = [[t.unit, *t.columns], ["---"] * (1 + len(t.columns))]
    lines += [[r.name, *(cell(v, r.unit) for v in r.values)] for r in t.rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(v: Value, unit: str = "") -> str:
    """With as many decimals as the most exact number in it.

    >>> cell((2.03, 1.7, 2.13)), cell((70, 83), "%"), cell((77, 71, 91), "%"), cell((1.1, 1.33)), cell(None)
    ('2.03 (1.70-2.13)', '70-83%', '77% (71-91)', '1.10-1.33', '-')
    """
    if v is None:
        return "-"
    decimals = max(len(str(n).partition(".")[2]) for n in v)
    shown = [f"{n:.{decimals}f}" for n in v]
    sign = unit if unit == "%" else ""
    if len(v) < 3:
        return "-".join(shown) + sign
    return f"{shown[0]}{sign} ({shown[1]}-{shown[2]})"


def plot(sections: list[Section]) -> str:
    drawn = [t for one in sections for t in one.tables if t.plot]
    if len(drawn) != 1:
        raise BadFigures(f'one table of docs/figures/ needs "plot": true, {len(drawn)} have it')
    (t,) = drawn
    beside = {r.name: r.values for r in t.rows if r.unit != "%"}
    limits = {r.name: r.values for r in t.rows if r.unit == "%"}
    return draw(f"{t.machine}, {t.date}", t.peer, t.columns, beside, limits)


if __name__ == "__main__":
    main()

"""Adds a table to a file of docs/figures/ from what benchmarks print with --json, one file a run; then run `make emit`.

    fewbit bench kernels --batch 1,8 --json > a.json    # and again into b.json, c.json
    python docs/add_figures.py docs/figures/1-amx.json a.json b.json c.json --title "Linear" --unit "batch" \\
        --machine "2 threads of a shared Xeon" --command "fewbit bench kernels --batch 1,8" \\
        --row batch --column format --value share_of_read --percent

A run is a list of records, or an object whose "results" are one. A cell is the median over all records with the same
row and column, with their range if there are several. A table with the same title is replaced.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

Record = dict[str, Any]
AS_WRITTEN = "number:"  # before those of the file, so that 3.10 does not become 3.1


def records(path: Path) -> list[Record]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"{path} is not JSON: {error}")
    found = data.get("results") if isinstance(data, dict) else data
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        sys.exit(f'{path} holds no list of records, and no object with "results"; print it with --json')
    return found


def cells(found: Iterable[Record], row: str, column: str, value: str) -> dict[tuple[str, str], list[float]]:
    """
    >>> cells([{"m": 1, "f": "q4_0", "s": 2.5}, {"m": 1, "f": "q4_0", "s": 3}], "m", "f", "s")
    {('1', 'q4_0'): [2.5, 3.0]}
    """
    by_place: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in found:
        for key in (row, column, value):
            if key not in one:
                sys.exit(f"a record has no {key!r}; it has {', '.join(one)}")
        numbers = one[value] if isinstance(one[value], list) else [one[value]]
        by_place[str(one[row]), str(one[column])] += [float(n) for n in numbers if n is not None]
    return dict(by_place)


def cell(numbers: list[float], percent: bool) -> float | list[float] | None:
    """
    >>> cell([1.234], False), cell([0.91, 0.8, 0.956], True), cell([], True)
    (1.23, [91, 80, 96], None)
    """
    if not numbers:
        return None
    shown = [round(100 * n) if percent else round(n, 2) for n in (median(numbers), min(numbers), max(numbers))]
    return shown if len(numbers) > 1 else shown[0]


def table(args: argparse.Namespace) -> Record:
    by_place = cells((one for path in args.runs for one in records(path)), args.row, args.column, args.value)
    columns = list(dict.fromkeys(column for _, column in by_place))
    rows = [
        {"name": name, "values": [cell(by_place.get((name, column), []), args.percent) for column in columns]}
        for name in dict.fromkeys(name for name, _ in by_place)
    ]
    for row in rows if args.percent else []:
        row["unit"] = "%"
    given = {key: getattr(args, key) for key in ("title", "machine", "date", "command", "unit", "peer", "note")}
    return {key: text for key, text in given.items() if text} | {"columns": columns, "rows": rows}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("into", type=Path, help="a file of docs/figures/; made if it is new")
    parser.add_argument("runs", type=Path, nargs="+", help="what --json printed")
    for name in ("title", "machine", "unit", "row", "column", "value"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("command", "peer", "note", "chip"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--date", default=date.today().isoformat())
    parser.add_argument("--percent", action="store_true", help="the values are shares")
    return parser.parse_args()


def dumps(section: Record) -> str:
    """JSON with lists of numbers and names on one line, as a person would write it.

    >>> print(dumps({"values": [1, [2.5, AS_WRITTEN + "3.10"], None]}), end="")
    {
      "values": [1, [2.5, 3.10], null]
    }
    """
    text = json.dumps(section, indent=2, ensure_ascii=False).replace(f'"{AS_WRITTEN}', AS_WRITTEN)
    text = re.sub(f'{AS_WRITTEN}([^"]*)"', r"\1", text)
    for _ in range(2):  # ranges, then the values of a row
        text = re.sub(r"\[\s+([^{}]*?)\s+\]", lambda found: "[" + re.sub(r",\s+", ", ", found[1]) + "]", text)
    return text + "\n"


def main() -> None:
    args = options()
    new = table(args)
    section = {"chip": args.chip, "tables": []}
    if args.into.exists():
        section = json.loads(args.into.read_text(), parse_float=lambda number: AS_WRITTEN + number)
    elif not args.chip:
        sys.exit(f"{args.into} is new: name its section with --chip")
    section["tables"] = [t for t in section["tables"] if t.get("title") != args.title] + [new]
    args.into.write_text(dumps(section))


if __name__ == "__main__":
    main()

"""The table of hostile images in docs/vision.md: `python -m tests.images.table` writes it."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import fewbit as fb
from fewbit.images import open_picture

from .hostile import FILES

PAGE = Path(__file__).parents[2] / "docs/vision.md"
BEGIN, END = "<!-- hostile -->\n", "<!-- /hostile -->"


def outcome(data: bytes) -> str:
    """The size of the picture in a file, or the beginning of its error."""
    try:
        return "{} x {}".format(*open_picture(data).image.size)
    except fb.ImageError as error:
        return re.split("[:(]", str(error))[0].strip()


def rows() -> list[str]:
    return [f"| `{name}` | {outcome(make())} |\n" for name, (make, _) in FILES.items()]


def written() -> list[str]:
    """The rows in the page."""
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    return table.splitlines(keepends=True)[2:]


def main() -> None:
    warnings.simplefilter("ignore")
    table = f"{BEGIN}| file | what it gets |\n|---|---|\n{''.join(rows())}{END}"
    PAGE.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: table, PAGE.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()

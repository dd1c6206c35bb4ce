"""Writes the list of files at the end of docs/design.md from what each says of itself; --check fails if it is stale.

    python docs/list_files.py [--check]

The line of a file is the first sentence of its docstring, or of the comment at its top.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/design.md"
TITLE = "## Every file\n"
KINDS = {"src/fewbit": (".py",), "csrc": (".h", ".cpp")}


def main() -> None:
    before = PAGE.read_text()
    after = before[: before.index(TITLE)] + TITLE + "".join(sections())
    if after == before:
        return
    if "--check" in sys.argv[1:]:
        sys.exit("docs/design.md does not list every file as it is; run `make emit`")
    PAGE.write_text(after)


def sections() -> Iterator[str]:
    for base, suffixes in KINDS.items():
        files = sorted(path for path in (ROOT / base).rglob("*") if path.suffix in suffixes)
        for folder in sorted({path.parent for path in files}):
            lines = [f"- `{path.name}`: {about(path)}\n" for path in files if path.parent == folder]
            yield f"\n`{folder.relative_to(ROOT)}/`\n\n{''.join(lines)}"


def about(path: Path) -> str:
    """The first sentence that a file says of itself."""
    text = path.read_text()
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = re.match(r"((?:#pragma once\n)?(?://.*\n)+)", text)
        said = re.sub(r"#pragma once\n|^// ?", "", comment.group(1), flags=re.M) if comment else ""
    if not said:
        sys.exit(f"{path.relative_to(ROOT)} begins with no sentence about itself")
    return re.split(r"[.](?:\s|$)", " ".join(said.split()), maxsplit=1)[0]


if __name__ == "__main__":
    main()

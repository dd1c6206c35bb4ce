"""What MkDocs adds to the pages of docs/: the pages from the root of the repository, and the tables of options.

MkDocs calls `on_files` and `on_page_markdown` (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGES.md": "changes.md"}
OPTIONS = ROOT / "src/fewbit/llm/sampling_options.py"
EXTRAS = ROOT / "src/fewbit/llm/extra_options.py"
SAMPLING = ROOT / "src/fewbit/ops/sampling.py"
CHAIN = ROOT / "src/fewbit/ops/sampler_chain.py"
SAMPLING_TABLES = ("SamplingParams", "SamplerChain")
TABLE = re.compile(r"^<!-- options of (\w+) -->$", re.MULTILINE)
COMMANDS = re.compile(r"^<!-- commands -->$", re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are written outside docs/."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=from_root((ROOT / name).read_text())))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Tables of options, and links that lead to pages of the site or to nothing."""
    folder = (ROOT / "docs" / page.file.src_uri).parent
    linked = LINK.sub(lambda found: site_link(found, folder), markdown)
    return COMMANDS.sub(lambda _: commands(), TABLE.sub(lambda found: options_table(found[1]), linked))


def commands() -> str:
    """The reference of the command line."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "docs")]
    from site_commands import commands_page

    from fewbit.cli import main

    return commands_page(main, "fewbit")


def from_root(markdown: str) -> str:
    """A page of the root, with its links as if it lay in docs/."""

    def moved(found: re.Match[str]) -> str:
        target = found[3].removeprefix("docs/") if found[3].startswith("docs/") else f"../{found[3]}"
        return f"{found[1]}[{found[2]}]({target}{found[4] or ''})"

    return LINK.sub(moved, markdown)


def site_link(found: re.Match[str], folder: Path) -> str:
    """A link as the site has it. Files outside the site are named, not linked.

    >>> site_link(LINK.search("see [the unit](../deploy/fewbit.service)"), ROOT / "docs")
    'the unit'
    """
    target = (folder / found[3]).resolve()
    if target.parent == ROOT and target.name in PAGES:
        steps = "../" * len(folder.relative_to(ROOT / "docs").parts)
        return f"[{found[2]}]({steps}{PAGES[target.name]}{found[4] or ''})"
    inside = target.is_relative_to(ROOT / "docs") and not target.is_relative_to(ROOT / "docs/figures")
    return found[0] if inside else found[2]


def options_table(name: str) -> str:
    """The fields of a TypedDict or dataclass as a table. Sampling options are in tables of their own."""
    found = [field for field in fields(name) if name in SAMPLING_TABLES or field.name not in sampling_names()]
    if any(field.default for field in found):
        rows = [f"| `{field.name}` | `{field.kind}` | {field.default} | {field.about} |" for field in found]
        return "\n".join(["| option | type | default | meaning |", "|---|---|---|---|", *rows])
    rows = [f"| `{field.name}` | `{field.kind}` | {field.about} |" for field in found]
    return "\n".join(["| option | type | meaning |", "|---|---|---|", *rows])


def sampling_names() -> set[str]:
    return {field.name for name in SAMPLING_TABLES for field in fields(name)} - {"samplers"}


class Field(NamedTuple):
    name: str
    kind: str
    default: str
    about: str  # what `Args:` of its class says of it, else the comment beside it


def fields(name: str) -> list[Field]:
    """The fields of a class in options.py or sampling.py, inherited ones first.

    >>> fields("SamplingParams")[0]._replace(about="")
    Field(name='temperature', kind='float', default='0.8', about='')
    """
    sources = [path.read_text() for path in (OPTIONS, EXTRAS, SAMPLING, CHAIN)]
    found = {
        node.name: (node, source.splitlines())
        for source in sources
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }
    documented: dict[str, str] = {}
    every: list[Field] = []
    for node, lines in reversed([found[each] for each in with_bases(found, name)]):
        documented |= arguments(ast.get_docstring(node) or "")
        every += own_fields(node, lines)
    return [field._replace(about=documented.get(field.name, field.about)) for field in every]


def with_bases(found: dict[str, Any], name: str) -> list[str]:
    """The class and its public bases in these files."""
    bases = [base.id for base in found[name][0].bases if isinstance(base, ast.Name)]
    known = [base for base in bases if base in found and not base.startswith("_")]
    return [name, *(each for base in known for each in with_bases(found, base))]


def own_fields(node: ast.ClassDef, lines: list[str]) -> Iterator[Field]:
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.end_lineno:
            comment = lines[field.end_lineno - 1].partition("  # ")[2]
            kind = ast.unparse(field.annotation).replace(" | ", " or ")
            yield Field(field.target.id, kind, ast.unparse(field.value) if field.value else "", comment)


def arguments(docstring: str) -> dict[str, str]:
    """What the `Args:` of a docstring say.

    >>> arguments("A class.\\n\\nArgs:\\n    a: First.\\n    b: Second,\\n        in two lines.\\n")
    {'a': 'First.', 'b': 'Second, in two lines.'}
    """
    listed = docstring.partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", listed, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}

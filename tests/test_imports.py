"""Who imports what, beyond the contracts in pyproject.toml."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"
LIGHT = "import sys, fewbit; print(*{name.partition('.')[0] for name in sys.modules})"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> set[str]:
    """The modules that a file imports, and the names that it takes from them, all absolute."""
    package = list(path.relative_to(SOURCES).parent.parts)
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *(node.module.split(".") if node.module else [])])
            names.update({base, *(f"{base}.{alias.name}" for alias in node.names)})
    return names


def importers(name: str) -> set[str]:
    return {
        module_name(path)
        for path in SOURCES.rglob("*.py")
        if any(found == name or found.startswith(name + ".") for found in imported(path))
    }


def test_relative_imports_are_resolved() -> None:
    assert "fewbit.formats" in importers("fewbit.errors.FormatError")


def test_only_backends_import_the_native_module() -> None:
    found = importers("fewbit._native")
    assert found
    own = ("fewbit.ops.cpu.", "fewbit.ops.cuda.launch.")
    assert {name for name in found if not f"{name}.".startswith(own)} == set()


@pytest.mark.parametrize("package", ["click", "rich", "jinja2", "tokenizers"])
def test_import_fewbit_is_light(package: str) -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert package not in done.stdout.split()

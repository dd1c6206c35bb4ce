"""Parameters of the templates in csrc/cuda, read from their headers: they are written nowhere else."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from .compile import sources

_COMMENT = re.compile(r"//.*")
_ARRAY = re.compile(r"(\w+)\[(\d+)\]")


class Parameter(NamedTuple):
    """Type and name of a parameter, or of a field of a struct."""

    kind: str
    name: str


@cache
def headers() -> dict[str, str]:
    """The text of each header, without comments."""
    return {path.name: _COMMENT.sub("", path.read_text()) for path in sorted((sources() / "cuda").glob("*.h"))}


@cache
def find_template(name: str) -> tuple[str, list[Parameter]]:
    """The header of a template or function, and its parameters.

    >>> find_template("gather_rows")[1][:2]
    [Parameter(kind='ConstRows', name='x'), Parameter(kind='const int*', name='indices')]
    """
    pattern = re.compile(rf"void {name}\(([^)]*)\)")
    ((header, text),) = [(header, found[1]) for header, text in headers().items() if (found := pattern.search(text))]
    return header, [_parameter(*" ".join(one.split()).rpartition(" ")[::2]) for one in text.split(",")]


@cache
def find_fields(struct: str) -> list[Parameter] | None:
    """The fields of a struct, without those that have a value already; None: it is no struct.

    >>> find_fields("RowFields")
    [Parameter(kind='int', name='row_bytes'), Parameter(kind='int', name='field_at0'), \
Parameter(kind='int', name='field_at1')]
    """
    pattern = re.compile(rf"^struct {re.escape(struct)} {{\n(.*?)^}};", re.MULTILINE | re.DOTALL)
    found = next((match for text in headers().values() if (match := pattern.search(text))), None)
    if found is None:
        return None
    lines = [line.strip() for line in re.findall(r"^  \w[^(={};\n]*;", found[1], re.MULTILINE)]
    return [field for line in lines for field in _declared(line.rstrip(";"))]


def _declared(line: str) -> list[Parameter]:
    """The fields of one declaration: "const int *a, b[2]"."""
    first, *others = line.replace("* ", " *").split(", ")
    kind, _, name = first.rpartition(" ")
    out = []
    for declared in (name, *others):
        bare = declared.lstrip("*")
        array = _ARRAY.fullmatch(bare)
        names = [f"{array[1]}{i}" for i in range(int(array[2]))] if array else [bare]
        out += [_parameter(kind + "*" * declared.count("*"), each) for each in names]
    return out


def _parameter(kind: str, name: str) -> Parameter:
    """Structs are taken by value, and named with their namespace where they are not taken apart."""
    plain = kind.removeprefix("const ").removesuffix("&") if kind.endswith("&") else kind
    base = plain.removeprefix("const ").removesuffix("*")
    if plain.endswith("*") and find_fields(base) is not None:
        plain = plain.replace(base, f"fewbit::{base}")
    return Parameter(plain, name)

"""A griffe extension for the reference: examples become code blocks, and methods inherit docstrings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)  # up to the next empty line


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Markdown would read examples as quotations."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """A method without a docstring has that of the method it overrides, as `help` shows it."""
        for kind in classes(pkg):
            for name, member in kind.members.items():
                if member.is_function and not member.docstring and not name.startswith("_"):
                    bases = (base.members.get(name) for base in kind.mro())
                    member.docstring = next((base.docstring for base in bases if base and base.docstring), None)


def classes(module: griffe.Module) -> Iterator[griffe.Class]:
    for member in module.members.values():
        if member.is_alias:
            continue
        if isinstance(member, griffe.Class):
            yield member
        elif isinstance(member, griffe.Module):
            yield from classes(member)

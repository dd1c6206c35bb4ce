"""A griffe extension for the reference: examples become code blocks, methods inherit docstrings, and `LLM` and
`quantize_model` have the parameters that they get at run time from a record of options."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)  # up to the next empty line


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Markdown would read examples as quotations."""
        if obj.is_class and obj.name == "LLM":
            add_load_options(obj)
        if obj.is_function and obj.name == "quantize_model":
            add_quantize_options(obj)
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """A method without a docstring has that of the method it overrides, as `help` shows it."""
        for kind in classes(pkg):
            for name, member in kind.members.items():
                if member.is_function and not member.docstring and not name.startswith("_"):
                    bases = (base.members.get(name) for base in kind.mro())
                    member.docstring = next((base.docstring for base in bases if base and base.docstring), None)


def add_load_options(llm: Any) -> None:
    """The docstring and the parameters of `LLM` as `help` shows them."""
    shown = public("LLM")
    llm.docstring.value = inspect.getdoc(shown)
    llm.members["__init__"].parameters = griffe.Parameters(griffe.Parameter("self"), *parameters(shown))


def add_quantize_options(function: Any) -> None:
    shown = public("quantize_model")
    function.docstring.value = inspect.getdoc(shown)
    function.parameters = griffe.Parameters(*parameters(shown))
    function.decorators.clear()


def public(name: str) -> Any:
    sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
    import fewbit as fb

    return getattr(fb, name)


def parameters(shown: Any) -> Iterator[griffe.Parameter]:
    """The parameters of a function or a class, as they are at run time."""
    kinds = {kind.name: griffe.ParameterKind(kind.description) for kind in inspect._ParameterKind}
    for name, one in inspect.signature(shown).parameters.items():
        default = None if one.default is one.empty else repr(one.default)
        annotation = inspect.formatannotation(one.annotation)
        yield griffe.Parameter(name, annotation=annotation, kind=kinds[one.kind.name], default=default)


def classes(module: griffe.Module) -> Iterator[griffe.Class]:
    for member in module.members.values():
        if member.is_alias:
            continue
        if isinstance(member, griffe.Class):
            yield member
        elif isinstance(member, griffe.Module):
            yield from classes(member)

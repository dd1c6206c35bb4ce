"""Kernels by name: an entry point around a template of csrc/cuda, with the constants that it is compiled for.

Operations have the functions that make their entries; those of weights are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from ...formats.spec import Format
from ...formats.table import GRIDS
from .layout import tile_layout
from .signatures import Parameter, find_fields, find_template

GRID_NAMES = {f.native_name for f in GRIDS}


@dataclass(frozen=True)
class Entry:
    """A kernel to compile: its name, the header that it is in, its text."""

    name: str
    header: str
    text: str
    codes: str = ""  # of the parameters, as the module `struct` has them
    grids: bool = False  # whether it needs the tables of points
    shared: int = 0  # bytes of shared memory that a launch gives it

    @property
    def source(self) -> str:
        return program((self,))


def program(entries: tuple[Entry, ...]) -> str:
    """One source for several kernels."""
    without = "" if any(e.grids for e in entries) else "#define FEWBIT_WITHOUT_GRIDS\n"
    headers = dict.fromkeys(e.header for e in entries)
    return without + "".join(f'#include "cuda/{h}"\n' for h in headers) + "".join(e.text for e in entries)


class Constant(NamedTuple):
    """An argument of a template, and what it adds to the kernel's name."""

    text: str
    tag: str
    needs_grids: bool = False


def named(text: str) -> Constant:
    """A name of csrc/cuda, such as "Real::f16"."""
    return Constant(f"fewbit::{text}", text.rpartition("::")[2])


@cache
def record(fmt: Format) -> Constant:
    """The record of a format."""
    name = fmt.native_name
    return Constant(f"fewbit::formats::{name}", name, name in GRID_NAMES)


@cache
def tile(fmt: Format) -> Constant:
    """The tiles of a format, in the sizes of `layout.py`."""
    sizes = tile_layout(fmt)
    assert sizes
    numbers = fmt.group, sizes.q0 // 4, sizes.q1 // 4, sizes.smalls, sizes.scale, sizes.per
    name = fmt.native_name
    return Constant(f"fewbit::Tile<fewbit::formats::{name}, {', '.join(map(str, numbers))}>", f"{name}_g{fmt.group}")


@cache
def entry(
    template: str, constants: tuple[Constant | int, ...], threads: int, *, attributes: str = "", shared: int = 0
) -> Entry:
    """A kernel that calls a template of csrc/cuda. It takes the template's parameters, structs field by field.

    Args:
        template: Its name.
        constants: Its arguments; the kernel's name is made of them.
        threads: Most threads of a block.
        attributes: Others of the kernel.
        shared: Bytes of shared memory that a launch gives it.
    """
    header, parameters = find_template(template)
    texts = [c.text if isinstance(c, Constant) else str(c).lower() for c in constants]
    tags = [c.tag if isinstance(c, Constant) else str(int(c)) for c in constants]
    name = "_".join([template, *tags])
    fields: list[Parameter] = []
    arguments = ", ".join(_flatten(parameter, fields) for parameter in parameters)
    given = f"<{', '.join(texts)}>" if texts else ""
    about = f"__launch_bounds__({threads}) {attributes}".rstrip()
    taken = ", ".join(f"{field.kind} {field.name}" for field in fields)
    text = f'\nextern "C" __global__ void {about} {name}({taken}) {{\n  fewbit::{template}{given}({arguments});\n}}\n'
    codes = "".join("Q" if "*" in field.kind else "f" if field.kind == "float" else "i" for field in fields)
    return Entry(name, header, text, codes, any(isinstance(c, Constant) and c.needs_grids for c in constants), shared)


def _flatten(parameter: Parameter, fields: list[Parameter]) -> str:
    """Add the fields of a template's parameter to those of a kernel; returns the argument made of them."""
    kind, name = parameter
    inner = find_fields(kind)
    if inner is None:
        fields.append(Parameter("int" if kind == "bool" else kind, name))
        return f"{name} != 0" if kind == "bool" else name
    own = [_flatten(Parameter(field.kind, f"{name}_{field.name}"), fields) for field in inner]
    return f"{{{', '.join(own)}}}"


def repack(fmt: Format) -> Entry:
    return entry("repack", (tile(fmt),), 128)


def decode_tiles(fmt: Format, dtype: str) -> Entry:
    return entry("decode_tiles", (tile(fmt), named(f"Real::{dtype}")), 128)


def decode_rows(fmt: Format, dtype: str) -> Entry:
    return entry("decode_rows", (record(fmt), named(f"Real::{dtype}")), 256)


def find_largest(fmt: Format) -> Entry:
    return entry("find_largest", (record(fmt),), 256)


def encode(fmt: Format, dtype: str) -> Entry:
    return entry("encode", (record(fmt), fmt.group, named(f"Real::{dtype}")), 128)


def cast_rows(source: str, target: str) -> Entry:
    return entry("cast_rows", (named(f"Real::{source}"), named(f"Real::{target}")), 256)

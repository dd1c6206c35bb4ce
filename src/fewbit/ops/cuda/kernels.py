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

GRID_NAMES = {f.native_name for f in GRIDS}
# Structs of csrc/cuda that kernels take field by field, so that all of their parameters are pointers and numbers.
STRUCTS = {
    "ConstRows": "const float* data, int stride",
    "Rows": "float* data, int stride",
    "Planes": "uint8_t* q0, uint8_t* q1, uint8_t* smalls, uint8_t* scales",
    "RowFields": "int row_bytes, int field0, int field1",
    "Destination": "int row, int tile, int step",
    "Matrix": "Planes planes, float gain, float down, int n",
    "Matrices": "Planes planes, const float* bias, int pitch",
    "Result": "float* y, const float* bias, const float* residual, int stride, int residual_stride",
    "Tokens": "const uint4* x, const float* scale, int count, int tiles",
    "RopeAt": "const float2* table, int pairs, bool neox",
    "NewRows": "const float* k, const float* v, int k_stride, int v_stride",
    "Attend": (
        "const float* q, const float* k, const float* v, int q_stride, int k_stride, int v_stride, RopeAt rope, "
        "bool rotate, uint8_t* k_pages, uint8_t* v_pages, const int* tables, const int* starts, const int* slots, "
        "const int* positions, const int* sequences, const int* lengths, const float* sinks, float scale, "
        "float softcap, int window, int kv_heads, int q_heads, int piece, int first_row, float* parts, int* tickets, "
        "void* out, int2* xm, int form, int out_stride"
    ),
    "Prompts": "const int* q_starts, const int* lengths, int first, int least, int back, int ahead",
    "PromptQueries": (
        "const float* q, int stride, int dim, int heads, int group, const float2* rope, int pairs, int neox"
    ),
    "PromptLogits": "float scale, float softcap, const float* sinks",
    "PromptResult": "void* out, int stride, int dim, int width",
    "States": (
        "uint8_t* states, int slot_bytes, int offset, const int* reads, const int* writes, const int* q_starts, "
        "const int* lengths, int sequences, int tokens"
    ),
    "Recurrence": (
        "ConstRows q, ConstRows k, ConstRows v, ConstRows a, ConstRows b, const float* decay, const float* dt_bias, "
        "const float* skip, float scale, int heads, int v_heads, int dim, int v_dim, bool tiled"
    ),
    "Routing": (
        "int experts, int top_k, int groups, int top_groups, int group_top, bool normalize, "
        "float scale, const float* bias, const float* expert_scale"
    ),
    "PagePairs": ", ".join(f"int {what}{i}" for what in ("source", "destination") for i in range(8)),
    "Work": "const int* lists, const int* counts, int experts, int tokens, int shared",
}


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


def record(fmt: Format) -> Constant:
    """The record of a format."""
    name = fmt.native_name
    return Constant(f"fewbit::formats::{name}", name, name in GRID_NAMES)


def tile(fmt: Format) -> Constant:
    """The tiles of a format, in the sizes of `layout.py`."""
    sizes = tile_layout(fmt)
    assert sizes
    numbers = fmt.group, sizes.q0 // 4, sizes.q1 // 4, sizes.smalls, sizes.scale, sizes.per
    name = fmt.native_name
    return Constant(f"fewbit::Tile<fewbit::formats::{name}, {', '.join(map(str, numbers))}>", f"{name}_g{fmt.group}")


@cache
def entry(
    header: str, template: str, constants: tuple[Constant | int, ...], threads: int, parameters: str, *,
    attributes: str = "", shared: int = 0,
) -> Entry:  # fmt: skip
    """A kernel that calls a template with its parameters.

    Args:
        header: Where the template is, in csrc/cuda.
        template: Its name.
        constants: Its arguments; the kernel's name is made of them.
        threads: Most threads of a block.
        parameters: Those of the kernel, as in C++. Structs of `STRUCTS` are taken field by field, bools as integers.
        attributes: Others of the kernel.
        shared: Bytes of shared memory that a launch gives it.
    """
    texts = [c.text if isinstance(c, Constant) else str(c).lower() for c in constants]
    tags = [c.tag if isinstance(c, Constant) else str(int(c)) for c in constants]
    name = "_".join([template, *tags])
    pairs = [_expand(*split_parameter(parameter)) for parameter in parameters.split(", ")]
    given = f"<{', '.join(texts)}>" if texts else ""
    about = f"__launch_bounds__({threads}) {attributes}".rstrip()
    text = (
        f'\nextern "C" __global__ void {about} {name}({", ".join(taken for taken, _ in pairs)}) {{\n'
        f"  fewbit::{template}{given}({', '.join(argument for _, argument in pairs)});\n}}\n"
    )
    codes = "".join(_code(one) for taken, _ in pairs for one in taken.split(", "))
    return Entry(name, header, text, codes, any(isinstance(c, Constant) and c.needs_grids for c in constants), shared)


def _code(parameter: str) -> str:
    return "Q" if "*" in parameter else "f" if parameter.startswith("float ") else "i"


def split_parameter(text: str) -> tuple[str, str]:
    """
    >>> split_parameter("const float* x")
    ('const float*', 'x')
    """
    kind, _, name = text.rpartition(" ")
    return kind, name


def _expand(kind: str, name: str) -> tuple[str, str]:
    """Parameters of a kernel for one of a template, and the argument made of them."""
    if kind == "bool":
        return f"int {name}", f"{name} != 0"
    if kind not in STRUCTS:
        return f"{kind} {name}", name
    fields = [split_parameter(field) for field in STRUCTS[kind].split(", ")]
    pairs = [_expand(field_kind, f"{name}_{field}") for field_kind, field in fields]
    return ", ".join(taken for taken, _ in pairs), f"{{{', '.join(argument for _, argument in pairs)}}}"


IN_ROWS = "const uint8_t* data, RowFields at, int group"  # weights as in files


def repack(fmt: Format) -> Entry:
    parameters = "const uint8_t* data, Planes out, RowFields at, Destination to, int n, int k, int columns"
    return entry("repack.h", "repack", (tile(fmt),), 128, f"{parameters}, uint32_t* range")


def decode_tiles(fmt: Format, dtype: str) -> Entry:
    constants = tile(fmt), named(f"Real::{dtype}")
    return entry("decode.h", "decode_tiles", constants, 128, "Planes w, void* out, int n, int width, int columns")


def decode_rows(fmt: Format, dtype: str) -> Entry:
    constants = record(fmt), named(f"Real::{dtype}")
    return entry("rows.h", "decode_rows", constants, 256, f"{IN_ROWS}, void* out, int n, int k, int width")


def find_largest(fmt: Format) -> Entry:
    return entry("rows.h", "find_largest", (record(fmt),), 256, f"{IN_ROWS}, uint32_t* largest, int k")


def encode(fmt: Format, dtype: str) -> Entry:
    constants = record(fmt), fmt.group, named(f"Real::{dtype}")
    return entry("encode.h", "encode", constants, 128, "const void* x, uint8_t* out, RowFields at, int n, int k")


def cast_rows(source: str, target: str) -> Entry:
    constants = named(f"Real::{source}"), named(f"Real::{target}")
    return entry("activations.h", "cast_rows", constants, 256, "const void* x, void* y, int from, int to")

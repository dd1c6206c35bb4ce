"""Generates files from the records: `python -m fewbit.formats.emit`; `--check` fails if one is stale.

csrc/formats.generated.h holds the records as C++ constants, csrc/grids.generated.h those of grids with their tables of
points (who needs none leaves them out: GPU kernels carry all that they include), docs/formats.md the table of formats.
"""

from __future__ import annotations

import argparse
import base64
import sys
import textwrap
from pathlib import Path

from . import grids, search
from .spec import Factor, Format, Grid, Integers, Plane, Trits
from .table import FORMATS, NATIVE_VARIANTS

ROOT = Path(__file__).parents[3]


def plane(fmt: Format, p: Plane) -> str:
    base = 0 if fmt.placement == "row" else 8 * fmt.field_offset(p.field)
    first, last = p.elements or (0, 1 << 30)
    digits = ", ".join(f"{{{size}, {stride}}}" for size, stride in p.digits)
    return f"{{{base + p.start}, {p.bits}, {first}, {last}, {{{digits}}}, {len(p.digits)}}}"


def field(kind: str, name: str, value: str) -> str:
    return f"  static constexpr {kind} {name} = {value};"


def ints(fmt: Format, what: Integers | None) -> str:
    if what is None:
        return "{}"
    planes = ", ".join(plane(fmt, p) for p in what.planes)
    return f"{{{{{planes}}}, {len(what.planes)}, {what.zero}, {what.times}, {str(what.signed).lower()}}}"


def factor(fmt: Format, f: Factor | None) -> str:
    if f is None:
        return "{}"
    row_field = {name: i for i, name in enumerate(n for n, _, _ in fmt.fields if n not in fmt.code_bits)}

    def at(name: str) -> int:
        return row_field[name] if fmt.placement == "row" else fmt.field_offset(name)

    if isinstance(f.field, Integers):
        real, base, bits = "f16", 0, f.field
    else:
        real, base, bits = fmt.field_type(f.field), at(f.field), None
    ints_at = at(f.ints.planes[0].field) if f.ints and fmt.placement == "row" else 0
    return f"{{true, Real::{real}, {base}, {ints_at}, {ints(fmt, bits)}, {ints(fmt, f.ints)}, {f.unit}f}}"


def codes(fmt: Format) -> list[str]:
    c = fmt.codes
    if isinstance(c, Trits):
        first = fmt.field_offset(c.field)
        parts = ", ".join(f"{{{first + at}, {size}, {digits}}}" for at, size, digits in c.parts)
        return [field("Kind", "kind", "Kind::trits"), field("Trits", "codes", f"{{{{{parts}}}}}")]
    if isinstance(c, Grid):
        numbers = ",\n    ".join(ints(fmt, what) for what in (c.index, c.signs, c.shift))
        return [
            field("Kind", "kind", "Kind::grid"),
            field("const auto&", "points", f"{c.points}_points"),
            field("const auto&", "levels", f"{c.points}_levels"),
            field("Reach", "reach", "{{{}f, {}f}}".format(*grids.REACH[c.points])),
            field(
                "Grid", "codes", f"{{&points.values[0][0], {c.width},\n    {numbers}, {c.shift_every}, {c.range[0]}}}"
            ),
        ]
    return [field("Ints", "codes", ints(fmt, c))]


def record(fmt: Format) -> str:
    """What differs from `Record` in csrc/formats/geometry.h."""
    name = field("const char*", "name", f'"{fmt.native_name}"')
    if fmt.codes is None:
        return f"struct {fmt.native_name} : ScalarRecord<Real::{fmt.fields[0][1]}> {{ {name.strip()} }};"
    lines = [name, *codes(fmt), field("Factor", "scale", factor(fmt, fmt.scale))]
    if fmt.offset:
        lines.append(field("Factor", "offset", factor(fmt, fmt.offset)))
        if fmt.offset_sign != 1:
            lines.append(field("int", "offset_sign", str(fmt.offset_sign)))
    if fmt.codebook:
        book = ", ".join(map(str, fmt.codebook))
        lines.append(field("Codebook", "codebook", f"{{{len(fmt.codebook)}, {{{book}}}}}"))
    lines.append(field("Rule", "rule", f"Rule::{fmt.rule}"))
    if fmt.sums:
        source, every = fmt.sums
        value = f"{{{fmt.field_offset(source)}, {every}, Real::{fmt.field_type(source)}}}"
        lines.append(field("Sums", "sums", value))
    body = "\n".join(lines)
    sizes = f"BlockRecord<{fmt.block}, {fmt.block_bytes}, {fmt.group}>"
    return f"struct {fmt.native_name} : {'RowRecord' if fmt.placement == 'row' else sizes} {{\n{body}\n}};"


def point_table(name: str) -> str:
    levels, width, count = grids.LEVELS[name], grids.WIDTH.get(name, 8), len(grids.points(name))
    bits = base64.b85decode(grids.MAPS[name])
    numbers = [f"0x{int.from_bytes(bits[i : i + 8], 'little'):x}" for i in range(0, len(bits), 8)]
    body = textwrap.fill(", ".join(numbers), 118, initial_indent="    ", subsequent_indent="    ")
    return (
        f"inline constexpr int8_t {name}_levels[] = {{{', '.join(map(str, levels))}}};\n"
        f"inline constexpr uint64_t {name}_numbers[] = {{\n{body}}};\n"
        f"inline constexpr auto {name}_points = make_points<{count}, {width}>({name}_numbers, {name}_levels);\n"
    )


def starts() -> str:
    reach = ", ".join(f"{{{least}f, {most}f}}" for least, most in search.REACH)
    return (
        "// Where searches for a scale begin, by the bits of a code: src/fewbit/formats/search.py tells.\n"
        f"inline constexpr Reach kSearchReach[] = {{{reach}}};\n"
        f"inline constexpr float kSearchCut[] = {{{', '.join(f'{c}f' for c in search.CUT)}}};\n"
    )


def header() -> str:
    every = [*FORMATS, *NATIVE_VARIANTS]
    names = textwrap.wrap(" ".join(f"X({f.native_name})" for f in every), 114)
    without = '#ifndef FEWBIT_WITHOUT_GRIDS\n#include "grids.generated.h"\n#endif'
    records = _namespaced([starts()], [f for f in every if not isinstance(f.codes, Grid)])
    every_format = ["#define FEWBIT_FORMATS(X) \\", *(f"  {line} \\" for line in names[:-1]), f"  {names[-1]}"]
    return "\n".join([*_top(without), *records, *every_format, "// clang-format on", ""])


def grid_header() -> str:
    tables = [point_table(name) for name in grids.LEVELS]
    records = _namespaced(tables, [f for f in FORMATS if isinstance(f.codes, Grid)])
    return "\n".join([*_top(), *records[:-1], "// clang-format on", ""])


def _top(*includes: str) -> list[str]:
    return [
        "// Generated by `python -m fewbit.formats.emit` from src/fewbit/formats/table.py. Do not edit.",
        "#pragma once",
        '#include "formats/geometry.h"',
        *includes,
        "",
        "// clang-format off",
    ]


def _namespaced(before: list[str], formats: list[Format]) -> list[str]:
    records = ["namespace formats {", "", *map(record, formats), "}  // namespace formats"]
    return ["namespace fewbit {", "", *before, *records, "}  // namespace fewbit", ""]


def docs() -> str:
    rows = [
        f"| `{f.name}` | {f.bits_per_weight:g} | {f.block or 'row'} | {f.group or 'row'} | "
        f"{'-' if f.gguf is None else f.gguf} | {f.description} |"
        for f in FORMATS
    ]
    return "\n".join(
        [
            "<!-- Generated by `python -m fewbit.formats.emit` from src/fewbit/formats/table.py. Do not edit. -->",
            "# Formats",
            "",
            "`value = code * scale + offset`, a scale and an offset for each group. Families take options after a",
            'colon: `"int4_group:group=64,zero=true"`. Every format is quantized to, decoded and multiplied.',
            "",
            "| format | bits a weight | block | group | GGUF type | |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


FILES = {"csrc/formats.generated.h": header, "csrc/grids.generated.h": grid_header, "docs/formats.md": docs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a generated file is stale")
    check = parser.parse_args().check
    stale = [name for name, make in FILES.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != make()]
    for name in stale:
        if check:
            print(f"{name} is stale: run `make emit`", file=sys.stderr)
        else:
            (ROOT / name).write_text(FILES[name]())
            print(f"wrote {name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""Generates files from the records: `python -m fewbit.formats.emit`; `--check` fails if one is stale.

csrc/formats.generated.h holds the records as C++ constants, csrc/grids.generated.h those of grids with their tables of
points (who needs none leaves them out: GPU kernels carry all that they include), docs/formats.md the table of formats.
"""

from __future__ import annotations

import argparse
import sys
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


def codes(fmt: Format) -> str:
    c = fmt.codes
    if c is None:
        return f"  static constexpr Kind kind = Kind::scalar;\n  static constexpr Real real = Real::{fmt.fields[0][1]};"
    if isinstance(c, Trits):
        first = fmt.field_offset(c.field)
        parts = ", ".join(f"{{{first + at}, {size}, {digits}}}" for at, size, digits in c.parts)
        return f"  static constexpr Kind kind = Kind::trits;\n  static constexpr Trits codes = {{{{{parts}}}}};"
    if isinstance(c, Grid):
        return (
            "  static constexpr Kind kind = Kind::grid;\n"
            f"  static constexpr const auto& points = {c.points}_points;\n"
            f"  static constexpr const auto& levels = {c.points}_levels;\n"
            f"  static constexpr Reach reach = {{{grids.REACH[c.points][0]}f, {grids.REACH[c.points][1]}f}};\n"
            f"  static constexpr Grid codes = {{&{c.points}_points.values[0][0], {c.width},\n"
            f"                                 {ints(fmt, c.index)},\n"
            f"                                 {ints(fmt, c.signs)},\n"
            f"                                 {ints(fmt, c.shift)}, {c.shift_every}, {c.range[0]}}};"
        )
    return f"  static constexpr Kind kind = Kind::planes;\n  static constexpr Ints codes = {ints(fmt, c)};"


def record(fmt: Format) -> str:
    book = ", ".join(map(str, fmt.codebook or ()))
    sums = "{}"
    if fmt.sums:
        name, every = fmt.sums
        sums = f"{{{fmt.field_offset(name)}, {every}, Real::{fmt.field_type(name)}}}"
    block, size = (0, 0) if fmt.placement == "row" else (fmt.block, fmt.block_bytes)
    group = 0 if fmt.placement == "row" else fmt.group
    return f"""struct {fmt.native_name} {{
  static constexpr const char* name = "{fmt.native_name}";
  static constexpr Placement placement = Placement::{fmt.placement};
  static constexpr int block = {block}, bytes = {size}, group = {group}, offset_sign = {fmt.offset_sign};
{codes(fmt)}
  static constexpr Factor scale = {factor(fmt, fmt.scale if fmt.codes else None)};
  static constexpr Factor offset = {factor(fmt, fmt.offset)};
  static constexpr Codebook codebook = {{{len(fmt.codebook or ())}, {{{book}}}}};
  static constexpr Rule rule = Rule::{fmt.rule};
  static constexpr Sums sums = {sums};
}};
"""


def point_table(name: str) -> str:
    levels, width = grids.LEVELS[name], grids.WIDTH.get(name, 8)
    digit = {level: i for i, level in enumerate(levels)}
    numbers = [sum(digit[int(v)] * len(levels) ** i for i, v in enumerate(p)) for p in grids.points(name)]
    lines = [", ".join(map(str, numbers[i : i + 20])) for i in range(0, len(numbers), 20)]
    body = ",\n    ".join(lines)
    return (
        f"inline constexpr int8_t {name}_levels[] = {{{', '.join(map(str, levels))}}};\n"
        f"inline constexpr uint16_t {name}_numbers[] = {{\n    {body}}};\n"
        f"inline constexpr auto {name}_points = make_points<{len(numbers)}, {width}>({name}_numbers, {name}_levels);\n"
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
    names = " \\\n  ".join(f"X({f.native_name})" for f in every)
    without = '#ifndef FEWBIT_WITHOUT_GRIDS\n#include "grids.generated.h"\n#endif'
    records = _namespaced([starts()], [f for f in every if not isinstance(f.codes, Grid)])
    return "\n".join([*_top(without), *records, f"#define FEWBIT_FORMATS(X) \\\n  {names}", "// clang-format on", ""])


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
        f"{'-' if f.gguf is None else f.gguf} | {'no' if f.rule == 'none' else 'yes'} | {f.description} |"
        for f in FORMATS
    ]
    return "\n".join(
        [
            "<!-- Generated by `python -m fewbit.formats.emit` from src/fewbit/formats/table.py. Do not edit. -->",
            "# Formats",
            "",
            "`value = code * scale + offset`, a scale and an offset for each group. Families take options after a",
            'colon: `"int4_group:group=64,zero=true"`. Every format decodes and multiplies; "encodes" tells which ones',
            "`fb.quantize` writes.",
            "",
            "| format | bits a weight | block | group | GGUF type | encodes | |",
            "|---|---|---|---|---|---|---|",
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

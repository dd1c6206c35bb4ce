"""Decoders of all formats as WGSL, written from their records.

A decoder reads the bytes of a row from a storage buffer of 32-bit words, whose name is its prefix. Its functions:

    PREFIX_chunk(row, c)   values 16 * c to 16 * c + 15 of the row whose first byte is `row`, as four vectors

Where the bits of 16 neighbouring elements follow from the record, whole words are loaded, shifted and masked; else
elements are decoded one by one. Grids and long codebooks are read from a second buffer, PREFIX_table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ...arrays import Words
from ...errors import FormatError
from ...formats import get, grids
from ...formats.spec import FIELD_BYTES, Factor, Format, Grid, Integers, Trits
from .planes import CHUNK, PlaneBits, chunk_bits, element, quad, shifts, valued

SMALL_BOOK = 16  # values of a codebook that fits in four constants
WIDE_SCALARS = ("f64", "i64")  # the host sends them as f32


@dataclass(frozen=True)
class Decoder:
    """WGSL of a format's decoder, and the words of its table, if it has one."""

    format: Format
    source: str  # with PREFIX in the place of the buffer's name
    table: Words | None

    @property
    def is_long(self) -> bool:
        """Whether it takes many instructions, so that kernels should hold it once."""
        return not isinstance(self.format.codes, Integers) and not self.format.is_scalar

    def named(self, prefix: str) -> str:
        return self.source.replace("PREFIX", prefix)


def device_format(fmt: Format) -> Format:
    """The format that weights have on a device."""
    return get("f32") if fmt.name in WIDE_SCALARS else fmt


def row_stride(fmt: Format, k: int) -> int:
    """Bytes from a row to the next: rows whose fields lie apart begin at whole words."""
    nbytes = fmt.row_bytes(k)
    return -(-nbytes // 4) * 4 if fmt.placement == "row" else nbytes


def field_places(fmt: Format, k: int) -> dict[str, int]:
    """First byte of each field in a row, or in a block."""
    if fmt.placement == "row":
        return {name: at for name, (at, _) in fmt.row_fields(k).items()}
    return {name: fmt.field_offset(name) for name, _, _ in fmt.fields}


def parameters(fmt: Format, k: int) -> dict[str, int]:
    """What a decoder takes as parameters: places of fields after the codes, and values that share a scale."""
    if fmt.placement == "block":
        return {"field1": 0, "field2": 0, "groups": 1}
    places = field_places(fmt, k)
    apart = [places[name] for name, _, _ in fmt.fields if name not in fmt.code_bits]
    return {"field1": apart[0], "field2": apart[1] if len(apart) > 1 else 0, "groups": max(1, fmt.groups(k))}


@cache
def decoder(fmt: Format) -> Decoder:
    """The decoder of a format."""
    return _Writer(fmt).write()


class _Writer:
    def __init__(self, fmt: Format) -> None:
        self.fmt = fmt
        self.is_row = fmt.placement == "row"
        self.lines: list[str] = []
        self.table: Words | None = None

    def write(self) -> Decoder:
        fmt = self.fmt
        self.lines.append(_READ)
        if fmt.is_scalar:
            self._scalar()
        else:
            self._factors()
            writer: Callable[[], None] = {Integers: self._integers, Grid: self._grid, Trits: self._trits}[
                type(fmt.codes)
            ]
            writer()
            self._chunk()
        return Decoder(fmt, "\n".join(self.lines), self.table)

    def place(self, name: str, at: str = "at") -> str:
        """First byte of a field of the block, or of the row, that begins at `at`."""
        if not self.is_row:
            return f"{at} + {self.fmt.field_offset(name)}u"
        names = [field for field, _, _ in self.fmt.fields]
        if name in self.fmt.code_bits:
            if names.index(name) == 0:
                return at
            raise FormatError(f"{self.fmt}: codes in two fields of a row have no decoder for WebGPU")
        apart = [field for field in names if field not in self.fmt.code_bits]
        return f"{at} + P.field{1 + apart.index(name)}"

    def _function(self, signature: str, body: str) -> None:
        self.lines.append(f"fn PREFIX_{signature} {{\n{body}\n}}")

    # Scales and offsets

    def _factors(self) -> None:
        fmt = self.fmt
        self._function("scale(at: u32, g: u32) -> f32", self._factor(fmt.scale))
        if fmt.offset:
            sign = "-" if fmt.offset_sign < 0 else ""
            self._function(
                "offset(at: u32, g: u32) -> f32", self._factor(fmt.offset).replace("return ", f"return {sign}")
            )

    def _factor(self, factor: Factor) -> str:
        if isinstance(factor.field, Integers):
            base = f"unpack2x16float(bitcast<u32>({element(factor.field, 'PREFIX', self.place, '0u')})).x"
        else:
            kind = self.fmt.field_type(factor.field)
            count = next(count for name, _, count in self.fmt.fields if name == factor.field)
            index = "g" if self.is_row or count > 1 else "0u"
            base = real("PREFIX", kind, f"{self.place(factor.field)} + {index} * {FIELD_BYTES[kind]}u")
        text = base
        if factor.ints is not None:
            text += f" * f32({element(factor.ints, 'PREFIX', self.place, 'g')})"
        if factor.unit != 1.0:
            text += f" * {factor.unit!r}"
        return f"  return ({text});"

    def _group(self, e: str) -> str:
        """The group of element `e` of a block, or of a row."""
        if self.is_row:
            return f"min({e} / P.group, P.groups - 1u)"
        return f"{e} / {self.fmt.group}u" if self.fmt.group < self.fmt.block else "0u"

    # Codes: PREFIX_codes gives 16 of them

    def _codes(self, body: str) -> None:
        self._function("codes(at: u32, c: u32) -> array<vec4<f32>, 4>", body)

    def _integers(self) -> None:
        codes = self.fmt.codes
        assert isinstance(codes, Integers)
        book = self._book()
        self._function("code(at: u32, i: u32) -> f32", f"  return {book(element(codes, 'PREFIX', self.place, 'i'))};")
        planes = [chunk_bits(plane, "c") for plane in codes.planes]
        if any(bits is None for bits in planes) or not self._has_whole_chunks:
            self._codes(_one_by_one())
            return
        known = [bits for bits in planes if bits is not None]
        body = [self._load(n, codes.planes[n].field, bits) for n, bits in enumerate(known)]
        vectors = [self._vector(codes, known, first, book) for first in range(0, CHUNK, 4)]
        self._codes("\n".join(body) + f"\n  return array<vec4<f32>, 4>({', '.join(vectors)});")

    @property
    def _has_whole_chunks(self) -> bool:
        return self.is_row or self.fmt.block % CHUNK == 0

    def _load(self, n: int, field: str, bits: PlaneBits) -> str:
        """Words of a plane as q{n}_0, q{n}_1, ..."""
        base = f"  let a{n} = {self.place(field)} + {bits.moved_bytes};"
        is_aligned = self.is_row or (self.fmt.block_bytes % 4 == 0 and self.fmt.field_offset(field) % 4 == 0)
        names = range(bits.words)
        if is_aligned and bits.bytes_step % 4 == 0:
            return "\n".join([base, *(f"  let q{n}_{k} = PREFIX[a{n} / 4u + {k}u];" for k in names)])
        lines = [base, f"  let s{n} = (a{n} & 3u) * 8u;"]
        lines += [f"  let r{n}_{k} = PREFIX[a{n} / 4u + {k}u];" for k in range(bits.words + 1)]
        lines += [f"  let q{n}_{k} = (r{n}_{k} >> s{n}) | ((r{n}_{k + 1} << 1u) << (31u - s{n}));" for k in names]
        return "\n".join(lines)

    def _vector(self, codes: Integers, planes: list[PlaneBits], first: int, book: Callable[[str], str]) -> str:
        parts = []
        for n, (bits, shift) in enumerate(zip(planes, shifts(codes), strict=True)):
            word = quad(bits, codes.planes[n], [f"q{n}_{k}" for k in range(bits.words)], first)
            parts.append(f"({word} << {shift}u)" if shift else word)
        packed = " | ".join(parts)
        if self.fmt.codebook:
            values = [book(f"i32((({packed}) >> {8 * n}u) & 255u)") for n in range(4)]
            return f"vec4<f32>({', '.join(values)})"
        if codes.signed and codes.bits == 8:
            return f"vec4<f32>(unpack4xI8({packed}))"
        if codes.signed:
            return f"vec4<f32>({valued_vector(codes, packed)})"
        scaled = f"vec4<f32>(unpack4xU8({packed}))" + (f" * {codes.times}.0" if codes.times != 1 else "")
        return f"{scaled} - {codes.zero}.0" if codes.zero else scaled

    def _book(self) -> Callable[[str], str]:
        """What turns a code, an expression of i32, into the number it stands for, one of f32."""
        book = self.fmt.codebook
        if not book:
            return lambda code: f"f32({code})"
        if len(book) > SMALL_BOOK or min(book) < -128 or max(book) > 127:
            self.table = np.array(book, np.float32).view(np.uint32)
            return lambda code: f"bitcast<f32>(PREFIX_table[u32({code})])"
        words = np.pad(np.array(book, np.int8), (0, SMALL_BOOK - len(book))).view(np.uint32)
        a, b, c, d = (f"{word:#x}u" for word in words.tolist())
        self._function(
            "book(code: i32) -> f32",
            f"  let i = u32(code);\n"
            f"  let low = select({a}, {b}, (i & 4u) != 0u);\n  let high = select({c}, {d}, (i & 4u) != 0u);\n"
            "  let word = select(low, high, (i & 8u) != 0u);\n"
            "  return f32(bitcast<i32>(word << (24u - 8u * (i & 3u))) >> 24u);",
        )
        return lambda code: f"PREFIX_book({code})"

    def _grid(self) -> None:
        grid = self.fmt.codes
        assert isinstance(grid, Grid)
        found = grids.points(grid.points)
        self.table = np.ascontiguousarray(found).view(np.uint32).reshape(-1)
        for name, integers in (("index", grid.index), ("signs", grid.signs), ("shift", grid.shift)):
            if integers:
                value = element(integers, "PREFIX", self.place, "i")
                self._function(f"{name}(at: u32, i: u32) -> u32", f"  return u32({value});")
        points = CHUNK // grid.width
        body = [f"  let p{n} = PREFIX_index(at, c * {points}u + {n}u);" for n in range(points)]
        for n in range(2 if grid.signs else 0):
            body.append(f"  var s{n} = PREFIX_signs(at, c * 2u + {n}u);")
            if grid.signs and grid.signs.bits == 7:
                body.append(f"  s{n} |= (countOneBits(s{n}) & 1u) << 7u;")
        vectors = [self._grid_vector(grid, first) for first in range(0, CHUNK, 4)]
        self._codes("\n".join(body) + f"\n  return array<vec4<f32>, 4>({', '.join(vectors)});")

    def _grid_vector(self, grid: Grid, first: int) -> str:
        word = f"p{first // grid.width} * {grid.width // 4}u + {first % grid.width // 4}u"
        vector = f"vec4<f32>(unpack4xI8(PREFIX_table[{word}]))"
        if grid.signs:
            bits = [f"(s{(first + n) // 8} >> {(first + n) % 8}u) & 1u" for n in range(4)]
            vector = f"({vector} * (1.0 - 2.0 * vec4<f32>({', '.join(f'f32({bit})' for bit in bits)})))"
        if grid.shift:
            at = [f"PREFIX_shift(at, (c * {CHUNK}u + {first + n}u) / {grid.shift_every}u)" for n in range(4)]
            if grid.shift_every % 4 == 0:
                vector = f"({vector} * 8.0 + (1.0 - 2.0 * f32({at[0]})))"
            else:
                vector = f"({vector} * 8.0 + (1.0 - 2.0 * vec4<f32>({', '.join(f'f32({a})' for a in at)})))"
        return vector

    def _trits(self) -> None:
        trits = self.fmt.codes
        assert isinstance(trits, Trits)
        lines, first = ["  var byte = 0u;", "  var n = 0u;"], 0
        for number, (start, size, digits) in enumerate(trits.parts):
            end = first + size * digits
            own = f"byte = {start}u + (i - {first}u) % {size}u; n = (i - {first}u) / {size}u;"
            lines.append(f"  {'else ' if number else ''}if (i < {end}u) {{ {own} }}")
            first = end
        lines += [
            f"  var b = PREFIX_bits({self.place(trits.field)}, 8u * byte) & 255u;",
            "  for (var j = 0u; j < n; j++) { b = (b * 3u) & 255u; }",
            "  return f32(i32((b * 3u) >> 8u) - 1);",
        ]
        self._function("code(at: u32, i: u32) -> f32", "\n".join(lines))
        self._codes(_one_by_one())

    # Values

    def _chunk(self) -> None:
        fmt = self.fmt
        if self.is_row:
            self._values("row", "c", fmt.group % CHUNK == 0)
            return
        if not self._has_whole_chunks:
            self._blocks_one_by_one()
            return
        lines = [f"  let at = row + c / {fmt.block // CHUNK}u * {fmt.block_bytes}u;"]
        lines.append(f"  let own = c % {fmt.block // CHUNK}u;")
        self._values("at", "own", fmt.group % CHUNK == 0, lines)

    def _values(self, at: str, c: str, is_shared: bool, lines: Sequence[str] = ()) -> None:
        """Codes times scales, which all 16 share, or which each has for itself."""
        has_offset = self.fmt.offset is not None
        body = [*lines, f"  var v = PREFIX_codes({at}, {c});"]
        if is_shared:
            body.append(f"  let g = {self._group(f'({c} * {CHUNK}u)')};\n  let d = PREFIX_scale({at}, g);")
            body += [f"  let m = vec4<f32>(PREFIX_offset({at}, g));"] if has_offset else []
            body += [f"  v[{q}] = v[{q}] * d{' + m' if has_offset else ''};" for q in range(4)]
        else:
            plus = f" + PREFIX_offset({at}, g)" if has_offset else ""
            body.append(
                f"  for (var j = 0u; j < {CHUNK}u; j++) {{\n    let g = {self._group(f'({c} * {CHUNK}u + j)')};\n"
                f"    v[j / 4u][j % 4u] = v[j / 4u][j % 4u] * PREFIX_scale({at}, g){plus};\n  }}"
            )
        self._function("chunk(row: u32, c: u32) -> array<vec4<f32>, 4>", "\n".join([*body, "  return v;"]))

    def _blocks_one_by_one(self) -> None:
        """Blocks that 16 elements do not divide."""
        fmt = self.fmt
        offset = " + PREFIX_offset(at, g)" if fmt.offset else ""
        body = (
            f"  var v = array<vec4<f32>, 4>();\n  for (var j = 0u; j < {CHUNK}u; j++) {{\n"
            f"    let e = c * {CHUNK}u + j;\n    let at = row + e / {fmt.block}u * {fmt.block_bytes}u;\n"
            f"    let i = e % {fmt.block}u;\n    let g = {self._group('i')};\n"
            f"    v[j / 4u][j % 4u] = PREFIX_code(at, i) * PREFIX_scale(at, g){offset};\n  }}\n  return v;"
        )
        self._function("chunk(row: u32, c: u32) -> array<vec4<f32>, 4>", body)

    def _scalar(self) -> None:
        _, kind, _ = self.fmt.fields[0]
        size = FIELD_BYTES[kind]
        values = [real("PREFIX", kind, f"at + {n * size}u") for n in range(CHUNK)]
        vectors = [f"vec4<f32>({', '.join(values[n : n + 4])})" for n in range(0, CHUNK, 4)]
        body = f"  let at = row + c * {CHUNK * size}u;\n  return array<vec4<f32>, 4>({', '.join(vectors)});"
        self._function("chunk(row: u32, c: u32) -> array<vec4<f32>, 4>", body)


def valued_vector(codes: Integers, packed: str) -> str:
    """Two's complement of fewer than 8 bits in the bytes of a word."""
    return f"vec4<i32>({', '.join(valued(codes, f'((({packed}) >> {8 * n}u) & 255u)') for n in range(4))})"


def real(prefix: str, kind: str, at: str) -> str:
    """The number of a field type at a byte, as an expression of f32."""
    word = f"{prefix}_word({at})"
    low = f"({prefix}_bits({at}, 0u) & 255u)"
    match kind:
        case "f32":
            return f"bitcast<f32>({word})"
        case "f16":
            return f"unpack2x16float({word}).x"
        case "bf16":
            return f"bitcast<f32>({word} << 16u)"
        case "i8":
            return f"f32(bitcast<i32>({low} << 24u) >> 24u)"
        case "i16":
            return f"f32(bitcast<i32>({word} << 16u) >> 16u)"
        case "i32":
            return f"f32(bitcast<i32>({word}))"
        case "u8":
            return f"f32({low})"
        case "e8m0":
            return f"{prefix}_e8m0_half({low})"
        case "ue4m3":
            return f"{prefix}_ue4m3_half({low})"
        case "f8_e4m3":
            return f"{prefix}_f8_e4m3({low})"
    raise FormatError(f"fields of type {kind} have no decoder for WebGPU")


def _one_by_one() -> str:
    body = f"  for (var j = 0u; j < {CHUNK}u; j++) {{ v[j / 4u][j % 4u] = PREFIX_code(at, c * {CHUNK}u + j); }}"
    return f"  var v = array<vec4<f32>, 4>();\n{body}\n  return v;"


# A word from any byte on, its bits from a bit on, and the 8-bit floats of formats/decode.py.
_READ = """\
fn PREFIX_word(at: u32) -> u32 {
  let s = (at & 3u) * 8u;
  return (PREFIX[at >> 2u] >> s) | ((PREFIX[(at >> 2u) + 1u] << 1u) << (31u - s));
}
fn PREFIX_bits(at: u32, bit: u32) -> u32 { return PREFIX_word(at + (bit >> 3u)) >> (bit & 7u); }
fn PREFIX_e8m0_half(e: u32) -> f32 {
  return bitcast<f32>(select((max(e, 1u) - 1u) << 23u, 0x200000u << min(e, 1u), e < 2u));
}
fn PREFIX_ue4m3_half(x: u32) -> f32 {
  let exponent = (x >> 3u) & 15u;
  let mantissa = f32(x & 7u);
  if (x == 0x7fu) { return 0.0; }
  if (exponent == 0u) { return mantissa * 0.0009765625; }
  return (1.0 + mantissa / 8.0) * bitcast<f32>((exponent + 119u) << 23u);
}
fn PREFIX_f8_e4m3(x: u32) -> f32 {
  let code = x & 0x7fu;
  let magnitude = 2.0 * PREFIX_ue4m3_half(code);
  return bitcast<f32>(select(bitcast<u32>(magnitude), 0x7fc00000u, code == 0x7fu) | ((x & 0x80u) << 24u));
}"""

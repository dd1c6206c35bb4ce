"""How K and V of new tokens are packed into pages.

A row, what a head keeps of a token, is in a format whose fields lie apart: codes first, in whole words, then scales.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ...errors import FormatError
from ...formats import Format
from ...formats.search import REACH, ROUNDS
from ...formats.spec import Integers, ints, runs
from .decoders import parameters, row_stride
from .wgsl import Kernel, main, reads, u32s, writes

PAGE_TOKENS = 32
THREADS = 64
PAIR = 64  # values that a thread packs: two blocks, whose f16 scales are one word

FORMATS = ("f32", "f16", "bf16", "f8_e4m3", "q8_0", "q4_0", "iq4_nl")


@cache
def page_format(fmt: Format) -> Format:
    """A format as it lies in pages."""
    if fmt.name not in FORMATS:
        raise FormatError(f"{fmt} is no format of pages on WebGPU; there are: {', '.join(FORMATS)}")
    if fmt.is_scalar:
        return fmt
    assert isinstance(fmt.codes, Integers)
    codes = ints(runs("qs", fmt.codes.bits, 16), zero=fmt.codes.zero, signed=fmt.codes.signed)
    return Format(
        f"pages_of_{fmt.name}", 32, (("qs", "u8", 1), ("d", "f16", 1)), codes, group=32, codebook=fmt.codebook,
        rule=fmt.rule, placement="row",
    )  # fmt: skip


def padded_dim(fmt: Format, dim: int) -> int:
    return -(-dim // fmt.block) * fmt.block


def page_row_bytes(fmt: Format, dim: int) -> int:
    """Bytes of a row in pages: whole words."""
    return -(-row_stride(page_format(fmt), padded_dim(fmt, dim)) // 4) * 4


def code_words(fmt: Format, dim: int) -> int:
    """Words of a row before its scales."""
    if fmt.is_scalar:
        return 0
    assert isinstance(fmt.codes, Integers)
    return padded_dim(fmt, dim) * fmt.codes.bits // 32


def page_parameters(fmt: Format, dim: int) -> dict[str, int]:
    own, k = page_format(fmt), padded_dim(fmt, dim)
    return {"group": own.group or 1, **parameters(own, k)}


def values_of_a_thread(fmt: Format) -> int:
    """How many values of a row a thread of `write_pages` packs."""
    return max(2, 4 // fmt.block_bytes) if fmt.is_scalar else PAIR


@cache
def write_pages(k_format: Format, v_format: Format, k_dim: int, v_dim: int) -> Kernel:
    """Packs K and V of new tokens whose slots are in these buffers. A thread packs 64 values of a head, or fewer at the
    end of a row; those of V follow those of K."""
    sides = (("k", k_format, k_dim), ("v", v_format, v_dim))
    body = f"""\
  let count = u32(step[P.count_at]);
  let token = wg.y;
  if (token >= count) {{ return; }}
  let slot = step[u32(step[P.slots_at]) + token];
  if (slot < 0) {{ return; }}
  let own = u32(slot) - P.first_slot;
  if (own >= P.slots) {{ return; }}
  let thread = block * {THREADS}u + t;
  let those_of_k = P.heads * {-(-k_dim // values_of_a_thread(k_format))}u;
  if (thread < those_of_k) {{ write_k(thread, token, own); }}
  else {{ write_v(thread - those_of_k, token, own); }}"""
    bindings = [reads("step", "i32"), reads("k_x"), reads("v_x"), writes("k_pages", "u32"), writes("v_pages", "u32")]
    names = [f"{side}_{name}" for side, _, _ in sides for name in ("row_words", "offset", "stride", "scales_at")]
    books = {fmt.name: _book(fmt) for fmt in (k_format, v_format) if fmt.codebook}
    text = "\n".join([*books.values(), *(_write_side(*side) for side in sides)])
    return Kernel(
        f"write_pages_{k_format.name}_{v_format.name}_{k_dim}_{v_dim}", tuple(bindings),
        u32s("count_at", "slots_at", "heads", "first_slot", "slots", *names),
        f"{text}\n{_SMALL_FLOATS}\n{main(body, THREADS)}",
    )  # fmt: skip


def _write_side(side: str, fmt: Format, dim: int) -> str:
    """The function that packs K or V."""
    each = values_of_a_thread(fmt)
    pack = (_pack_scalars(fmt, dim) if fmt.is_scalar else _pack_blocks(fmt, dim)).replace("P.", f"P.{side}_")
    pack = pack.replace("given(", f"{side}_given(").replace("pages[", f"{side}_pages[")
    place = f"(slot / {PAGE_TOKENS}u * P.heads + head) * {PAGE_TOKENS}u + slot % {PAGE_TOKENS}u"
    return f"""\
fn {side}_given(at: u32, i: u32) -> f32 {{ if (i >= {dim}u) {{ return 0.0; }} return {side}_x[at + i]; }}
fn write_{side}(thread: u32, token: u32, slot: u32) {{
  let each = {-(-dim // each)}u;
  let head = thread / each;
  if (head >= P.heads) {{ return; }}
  let row = ({place}) * P.{side}_row_words;
  let at = P.{side}_offset + token * P.{side}_stride + head * {dim}u;
  let first = thread % each * {each}u;
{pack}
}}"""


def _pack_scalars(fmt: Format, dim: int) -> str:
    if fmt.name == "f32":
        return f"""\
  pages[row + first] = bitcast<u32>(given(at, first));
  if (first + 1u < {dim}u) {{ pages[row + first + 1u] = bitcast<u32>(given(at, first + 1u)); }}"""
    if fmt.name == "f8_e4m3":
        codes = [f"(f8_e4m3(given(at, first + {n}u)) << {8 * n}u)" for n in range(4)]
        return f"  pages[row + first / 4u] = {' | '.join(codes)};"
    pair = "pack2x16float(vec2<f32>(a, b))" if fmt.name == "f16" else "bf16(a) | (bf16(b) << 16u)"
    return f"""\
  let a = {_clamped(fmt, "given(at, first)")};
  let b = {_clamped(fmt, "given(at, first + 1u)")};
  pages[row + first / 2u] = {pair};"""


def _clamped(fmt: Format, value: str) -> str:
    return f"clamp({value}, -65504.0, 65504.0)" if fmt.name == "f16" else value


def _pack_blocks(fmt: Format, dim: int) -> str:
    """Two blocks of 32: the codes of each, then both scales in one word."""
    assert isinstance(fmt.codes, Integers)
    bits, (found, code) = fmt.codes.bits, _codes(fmt, dim)
    words, per = bits, 32 // bits
    place = "(j % 16u % 4u) * 8u + j / 16u * 4u" if bits == 4 else "j % 4u * 8u"
    word = "j % 16u / 4u" if bits == 4 else "j / 4u"
    assert per * words == 32
    return f"""\
  var scales = 0u;
  for (var half = 0u; half < 2u; half++) {{
    let start = first + 32u * half;
    if (start >= {"P.scales_at * " + str(32 // bits)}u) {{ break; }}
{found}
    let by = select(1.0 / d, 0.0, d == 0.0);
    var codes = array<u32, {words}>();
    for (var j = 0u; j < 32u; j++) {{
      let v = given(at, start + j);
      codes[{word}] |= ({code}) << ({place});
    }}
    for (var k = 0u; k < {words}u; k++) {{ pages[row + start / {per}u + k] = codes[k]; }}
    scales |= (pack2x16float(vec2<f32>(d, 0.0)) & 0xffffu) << (16u * half);
  }}
  pages[row + P.scales_at + first / {PAIR}u] = scales;"""


def _codes(fmt: Format, dim: int) -> tuple[str, str]:
    """What finds the scale d of a block, and the code of a value v, an expression."""
    assert isinstance(fmt.codes, Integers)
    if fmt.codebook:
        return _searched(fmt, dim), "nearest(v * by)"
    if fmt.rule == "absmax":
        found = "greatest = max(greatest, abs(v));"
        top, code = f"{(1 << (fmt.codes.bits - 1)) - 1}.0", "u32(i32(clamp(round(v * by), -127.0, 127.0))) & 255u"
        scale = f"greatest / {top}"
    else:
        found = "if (abs(v) > abs(greatest)) { greatest = v; }"
        scale, code = f"greatest / {-fmt.codes.zero}.0", f"u32(clamp(v * by + {fmt.codes.zero}.5, 0.0, 15.0))"
    lines = f"""\
    var greatest = 0.0;
    for (var j = 0u; j < 32u; j++) {{ let v = given(at, start + j); {found} }}
    let d = clamp({scale}, -65504.0, 65504.0);"""
    return lines, code


def _searched(fmt: Format, dim: int) -> str:
    """The scale that loses least: of 16 which `formats/search.py` tries, and two by least squares."""
    assert fmt.codebook
    low, high = float(min(fmt.codebook)), float(max(fmt.codebook))
    least, most = REACH[4]
    return f"""\
    var top = 0.0;
    var bottom = 0.0;
    for (var j = 0u; j < 32u; j++) {{
      let v = given(at, start + j);
      top = max(top, v);
      bottom = min(bottom, v);
    }}
    let size = max(top, -bottom);
    let up = max(top / {high}, bottom / {low});
    let down = max(top / {-low}, bottom / {-high});
    var d = 0.0;
    var lost = 3e38;
    var next = 0.0;
    for (var trial = 0u; trial < {8 * 2 + ROUNDS - 1}u && size > 0.0; trial++) {{
      let scaled = select(-down, up, trial < 8u) * ({least} + f32(trial % 8u) * {(most - least) / 7!r});
      let wanted = select(next, scaled, trial < 16u);
      let near = sign(wanted) * clamp(abs(wanted), {2.0**-24!r}, 65504.0);
      let s = unpack2x16float(pack2x16float(vec2<f32>(near, 0.0))).x;
      if (s == 0.0) {{ continue; }}
      var error = 0.0;
      var xq = 0.0;
      var qq = 0.0;
      for (var j = 0u; j < 32u && start + j < {dim}u; j++) {{
        let v = given(at, start + j);
        let q = level(nearest(v / s));
        let r = (v - s * q) / size;
        error += r * r;
        xq += v / size * q;
        qq += q * q;
      }}
      if (error < lost) {{
        lost = error;
        d = s;
        next = xq / qq * size;
      }}
    }}"""


def _book(fmt: Format) -> str:
    """A codebook's level of a code, and the code of the level nearest to a number."""
    assert fmt.codebook
    assert list(fmt.codebook) == sorted(fmt.codebook)
    words = np.array(fmt.codebook, np.int8).view(np.uint32)
    middles = [(a + b) / 2 for a, b in zip(fmt.codebook, fmt.codebook[1:], strict=False)]
    count = " + ".join(f"select(0u, 1u, v >= {middle!r})" for middle in middles)
    return f"""\
fn level(code: u32) -> f32 {{
  var words = array<u32, {len(words)}>({", ".join(f"{word:#x}u" for word in words.tolist())});
  return f32(bitcast<i32>(words[code / 4u] << (24u - code % 4u * 8u)) >> 24u);
}}
fn nearest(v: f32) -> u32 {{ return {count}; }}"""


_SMALL_FLOATS = """\
fn bf16(v: f32) -> u32 {
  let bits = bitcast<u32>(v);
  return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
fn f8_e4m3(v: f32) -> u32 {
  let bits = bitcast<u32>(v);
  let sign = (bits >> 24u) & 0x80u;
  let magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) { return sign | 0x7fu; }
  let near = min(bitcast<f32>(magnitude), 448.0);
  if (near < 0.015625) { return sign | u32(round(near * 512.0)); }
  let rounded = bitcast<u32>(near);
  return sign | (((rounded + 0x7ffffu + ((rounded >> 20u) & 1u)) >> 20u) - 960u);
}"""

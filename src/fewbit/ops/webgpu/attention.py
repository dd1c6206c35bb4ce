"""Kernels of attention over pages: K and V of new tokens are packed into pages, and read from there by all queries.

A row, what a head keeps of a token, is in a format whose fields lie apart: codes first, in whole words, then scales.
"""

from __future__ import annotations

from functools import cache

from ...errors import FormatError
from ...formats import Format
from ...formats.spec import Integers, ints, runs
from .activations import ACTIVATIONS
from .decoders import decoder, parameters, row_stride
from .wgsl import Kernel, f32s, main, reads, u32s, writes

PAGE_TOKENS = 32
THREADS = 64
MAX_V_DIM = 16 * THREADS
SPLITS = 8  # of the pages of a sequence, where there are few tokens and many pages
LONG = 1024  # tokens of a sequence from which on pages are split
PAIR = 64  # values that a thread packs: two blocks, whose f16 scales are one word

FORMATS = ("f32", "f16", "bf16", "q8_0", "q4_0")


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
        f"pages_of_{fmt.name}", 32, (("qs", "u8", 1), ("d", "f16", 1)), codes, group=32, rule=fmt.rule, placement="row"
    )


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
    return 2 if fmt.is_scalar else PAIR


@cache
def write_pages(k_format: Format, v_format: Format, k_dim: int, v_dim: int) -> Kernel:
    """Packs K and V of new tokens. A thread packs 64 values of a head, or fewer at the end of a row; those of V follow
    those of K."""
    sides = (("k", k_format, k_dim), ("v", v_format, v_dim))
    body = f"""\
  let count = u32(step[P.count_at]);
  let token = wg.y;
  if (token >= count) {{ return; }}
  let slot = step[u32(step[P.slots_at]) + token];
  if (slot < 0) {{ return; }}
  let thread = block * {THREADS}u + t;
  let those_of_k = P.heads * {-(-k_dim // values_of_a_thread(k_format))}u;
  if (thread < those_of_k) {{ write_k(thread, token, u32(slot)); }}
  else {{ write_v(thread - those_of_k, token, u32(slot)); }}"""
    bindings = [reads("step", "i32"), reads("k_x"), reads("v_x"), writes("k_pages", "u32"), writes("v_pages", "u32")]
    names = [f"{side}_{name}" for side, _, _ in sides for name in ("row_words", "offset", "stride", "scales_at")]
    text = "\n".join(_write_side(*side) for side in sides)
    return Kernel(
        f"write_pages_{k_format.name}_{v_format.name}_{k_dim}_{v_dim}", tuple(bindings),
        u32s("count_at", "slots_at", "heads", *names), f"{text}\n{_BF16}\n{main(body, THREADS)}",
    )  # fmt: skip


def _write_side(side: str, fmt: Format, dim: int) -> str:
    """The function that packs K or V."""
    each = values_of_a_thread(fmt)
    pack = (_pack_scalars(fmt, dim) if fmt.is_scalar else _pack_blocks(fmt)).replace("P.", f"P.{side}_")
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
    pair = "pack2x16float(vec2<f32>(a, b))" if fmt.name == "f16" else "bf16(a) | (bf16(b) << 16u)"
    return f"""\
  let a = {_clamped(fmt, "given(at, first)")};
  let b = {_clamped(fmt, "given(at, first + 1u)")};
  pages[row + first / 2u] = {pair};"""


def _clamped(fmt: Format, value: str) -> str:
    return f"clamp({value}, -65504.0, 65504.0)" if fmt.name == "f16" else value


def _pack_blocks(fmt: Format) -> str:
    """Two blocks of 32: the codes of each, then both scales in one word."""
    assert isinstance(fmt.codes, Integers)
    bits = fmt.codes.bits
    if fmt.rule == "absmax":
        found = "greatest = max(greatest, abs(v));"
        top, code = f"{(1 << (bits - 1)) - 1}.0", "u32(i32(clamp(round(v * by), -127.0, 127.0))) & 255u"
        scale = f"greatest / {top}"
    else:
        found = "if (abs(v) > abs(greatest)) { greatest = v; }"
        scale, code = f"greatest / {-fmt.codes.zero}.0", f"u32(clamp(v * by + {fmt.codes.zero}.5, 0.0, 15.0))"
    words, per = bits, 32 // bits
    place = "(j % 16u % 4u) * 8u + j / 16u * 4u" if bits == 4 else "j % 4u * 8u"
    word = "j % 16u / 4u" if bits == 4 else "j / 4u"
    assert per * words == 32
    return f"""\
  var scales = 0u;
  for (var half = 0u; half < 2u; half++) {{
    let start = first + 32u * half;
    if (start >= {"P.scales_at * " + str(32 // bits)}u) {{ break; }}
    var greatest = 0.0;
    for (var j = 0u; j < 32u; j++) {{ let v = given(at, start + j); {found} }}
    let d = clamp({scale}, -65504.0, 65504.0);
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


_BF16 = """\
fn bf16(v: f32) -> u32 {
  let bits = bitcast<u32>(v);
  return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}"""


@cache
def attend(k_format: Format, v_format: Format, k_dim: int, v_dim: int, has_sinks: bool, splits: int = 1) -> Kernel:
    """A workgroup attends for one head of one token: pages one by one, with an online softmax.

    With several `splits` they take turns at the pages, and leave sums for `join_splits`.
    """
    chunks = -(-v_dim // 16)
    sharing = THREADS // chunks
    body = (
        _span(k_dim, chunks, has_sinks)
        + _pages(k_dim, sharing, splits)
        + _sums(v_dim, splits, chunks, sharing)
        + _store_totals(v_dim, splits)
    )
    own_k, own_v = page_format(k_format), page_format(v_format)
    k_text = _with_parameters(decoder(own_k).named("k"), "k")
    v_text = _with_parameters(decoder(own_v).named("v"), "v")
    text = f"""\
{ACTIVATIONS}
{k_text}
{v_text}
var<workgroup> query: array<f32, {16 * -(-k_dim // 16)}>;
var<workgroup> part: array<f32, {THREADS}>;
var<workgroup> sums: array<vec4<f32>, {4 * THREADS}>;
{main(body, THREADS)}"""
    numbers = u32s(
        "count_at", "positions_at", "sequences_at", "lengths_at", "tables_at", "starts_at", "sharing", "kv_heads",
        "k_bytes", "v_bytes", "heads", "q_offset", "q_stride", "y_offset", "y_stride", "causal",
        "k_field1", "k_field2", "k_group", "k_groups", "v_field1", "v_field2", "v_group", "v_groups",
    )  # fmt: skip
    signed = (("window", "i32"), ("radius", "i32"))
    bindings = [reads("step", "i32"), reads("k", "u32"), reads("v", "u32"), reads("q"), writes("y")]
    if has_sinks:
        bindings.append(reads("sinks"))
    name = f"attend_{k_format}_{v_format}_{k_dim}_{v_dim}_{splits}{'_sinks' if has_sinks else ''}"
    return Kernel(name, tuple(bindings), (*numbers, *signed, *f32s("scale", "cap")), text)


def _span(k_dim: int, chunks: int, has_sinks: bool) -> str:
    """The tokens that a token sees, its query, and what its sums begin with."""
    start = "select(-3e38, sinks[head], wg.z == 0u)" if has_sinks else "-3e38"
    begun = "select(0.0, 1.0, wg.z == 0u)" if has_sinks else "0.0"
    return f"""\
  let token = wg.y;
  if (token >= u32(step[P.count_at])) {{ return; }}
  let head = wg.x;
  let kv_head = head / P.sharing;
  let position = step[u32(step[P.positions_at]) + token];
  let sequence = u32(step[u32(step[P.sequences_at]) + token]);
  let length = step[u32(step[P.lengths_at]) + sequence];
  let table = u32(step[P.tables_at]) + u32(step[u32(step[P.starts_at]) + sequence]);
  var low = 0;
  var high = min(position + 1, length);
  if (P.window > 0) {{ low = max(0, position + 1 - P.window); }}
  if (P.window < 0) {{ low = position / -P.window * -P.window; }}
  if (P.causal == 0u) {{
    high = length;
    if (P.radius > 0) {{ low = max(0, position - P.radius); high = min(length, position + P.radius + 1); }}
  }}
  let at = P.q_offset + token * P.q_stride + head * {k_dim}u;
  for (var i = t; i < {16 * -(-k_dim // 16)}u; i += {THREADS}u) {{
    if (i < {k_dim}u) {{ query[i] = q[at + i]; }} else {{ query[i] = 0.0; }}
  }}
  var most = {start};
  var total = {begun};
  var acc = array<vec4<f32>, 4>();
  let c = t % {chunks}u;
  let own = t / {chunks}u;
"""


def _pages(k_dim: int, sharing: int, splits: int) -> str:
    """The scores of a page, and its values by their weights."""
    last = "16u" if k_dim % 16 == 0 else f"min(16u, {k_dim}u - n * 16u)"
    return f"""\
  for (var page = low / {PAGE_TOKENS} + i32(wg.z); page * {PAGE_TOKENS} < high; page += {splits}) {{
    let rows = (u32(step[table + u32(page)]) * P.kv_heads + kv_head) * {PAGE_TOKENS}u;
    workgroupBarrier();
    {{
      let j = t % 32u;
      let k_row = (rows + j) * P.k_bytes;
      var sum = 0.0;
      for (var n = t / 32u; n < {-(-k_dim // 16)}u; n += 2u) {{
        let v = k_chunk(k_row, n);
        for (var e = 0u; e < {last}; e++) {{
          sum += v[e / 4u][e % 4u] * query[n * 16u + e];
        }}
      }}
      part[t] = sum;
    }}
    workgroupBarrier();
    if (t < 32u) {{
      let place = page * {PAGE_TOKENS} + i32(t);
      var score = (part[t] + part[t + 32u]) * P.scale;
      if (P.cap > 0.0) {{ score = P.cap * tanh_of(score / P.cap); }}
      part[t] = select(-3e38, score, place >= low && place < high);
    }}
    workgroupBarrier();
    var top = most;
    for (var j = 0u; j < 32u; j++) {{ top = max(top, part[j]); }}
    let fade = exp(most - top);
    most = top;
    total *= fade;
    for (var n = 0u; n < 4u; n++) {{ acc[n] *= fade; }}
    for (var j = 0u; j < 32u; j++) {{
      if (part[j] > -2e38) {{ total += exp(part[j] - top); }}
    }}
    if (own < {sharing}u) {{
      for (var j = own; j < 32u; j += {sharing}u) {{
        if (part[j] > -2e38) {{
          let weight = exp(part[j] - top);
          let v = v_chunk((rows + j) * P.v_bytes, c);
          for (var n = 0u; n < 4u; n++) {{ acc[n] += weight * v[n]; }}
        }}
      }}
    }}
  }}
"""


def _sums(v_dim: int, splits: int, chunks: int, sharing: int) -> str:
    """The values that threads have added up, joined."""
    return f"""\
  for (var n = 0u; n < 4u; n++) {{ sums[n * {THREADS}u + t] = acc[n]; }}
  workgroupBarrier();
  if (own == 0u) {{
    for (var n = 0u; n < 4u; n++) {{
      var sum = vec4<f32>();
      for (var j = 0u; j < {sharing}u; j++) {{ sum += sums[n * {THREADS}u + c + j * {chunks}u]; }}
      for (var e = 0u; e < 4u; e++) {{
        let i = c * 16u + n * 4u + e;
        if (i < {v_dim}u) {{ {_store(v_dim, splits)} }}
      }}
    }}
  }}
"""


def _store(v_dim: int, splits: int) -> str:
    if splits == 1:
        return f"y[P.y_offset + token * P.y_stride + head * {v_dim}u + i] = sum[e] / total;"
    return f"y[((token * P.heads + head) * {splits}u + wg.z) * {v_dim + 2}u + i] = sum[e];"


def _store_totals(v_dim: int, splits: int) -> str:
    if splits == 1:
        return ""
    return f"""\
  if (t == 0u) {{
    let end = ((token * P.heads + head) * {splits}u + wg.z) * {v_dim + 2}u + {v_dim}u;
    y[end] = most;
    y[end + 1u] = total;
  }}"""


@cache
def join_splits(v_dim: int, splits: int) -> Kernel:
    """What the splits of a head of a token have found, as one."""
    body = f"""\
  let token = wg.y;
  if (token >= u32(step[P.count_at])) {{ return; }}
  let first = (token * P.heads + wg.x) * {splits * (v_dim + 2)}u;
  var most = -3e38;
  for (var s = 0u; s < {splits}u; s++) {{ most = max(most, parts[first + s * {v_dim + 2}u + {v_dim}u]); }}
  for (var i = t; i < {v_dim}u; i += {THREADS}u) {{
    var sum = 0.0;
    var total = 0.0;
    for (var s = 0u; s < {splits}u; s++) {{
      let at = first + s * {v_dim + 2}u;
      let weight = exp(parts[at + {v_dim}u] - most);
      sum += weight * parts[at + i];
      total += weight * parts[at + {v_dim + 1}u];
    }}
    y[P.y_offset + token * P.y_stride + wg.x * {v_dim}u + i] = sum / total;
  }}"""
    bindings = (reads("step", "i32"), reads("parts"), writes("y"))
    numbers = u32s("count_at", "heads", "y_offset", "y_stride")
    return Kernel(f"join_splits_{v_dim}_{splits}", bindings, numbers, main(body, THREADS))


def _with_parameters(source: str, prefix: str) -> str:
    """A decoder that takes parameters of its own."""
    for name in ("field1", "field2", "groups", "group"):
        source = source.replace(f"P.{name} ", f"P.{prefix}_{name} ").replace(f"P.{name})", f"P.{prefix}_{name})")
        source = source.replace(f"P.{name},", f"P.{prefix}_{name},")
    return source

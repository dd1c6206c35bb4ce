"""Kernels of attention over pages: K and V are read from pages (`page_writers.py`) by all queries."""

from __future__ import annotations

from functools import cache

from ...formats import Format
from .activations import ACTIVATIONS
from .decoders import decoder
from .page_writers import PAGE_TOKENS, page_format
from .wgsl import Kernel, f32s, main, reads, u32s, writes

THREADS = 64
MAX_V_DIM = 16 * THREADS
SPLITS = 8  # of the pages of a sequence, where there are few tokens and many pages
LONG = 1024  # tokens of a sequence from which on pages are split


@cache
def attend(
    k_format: Format, v_format: Format, k_dim: int, v_dim: int, has_sinks: bool, splits: int = 1,
    is_joined: bool = False,
) -> Kernel:  # fmt: skip
    """A workgroup attends for one head of one token: pages one by one, with an online softmax.

    It sees so many pages from `first_page` on. Several `splits` take turns at them. Where `join_splits` joins splits
    or buffers of pages, each leaves its sums.
    """
    chunks = -(-v_dim // 16)
    sharing = THREADS // chunks
    body = (
        _span(k_dim, chunks, has_sinks)
        + _pages(k_dim, sharing, splits)
        + _sums(v_dim, is_joined or splits > 1, chunks, sharing)
        + (_store_totals(v_dim) if is_joined or splits > 1 else "")
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
        "first_page", "pages", "first_split", "splits",
        "k_field1", "k_field2", "k_group", "k_groups", "v_field1", "v_field2", "v_group", "v_groups",
    )  # fmt: skip
    signed = (("window", "i32"), ("radius", "i32"))
    bindings = [reads("step", "i32"), reads("k", "u32"), reads("v", "u32"), reads("q"), writes("y")]
    if has_sinks:
        bindings.append(reads("sinks"))
    ends = f"{'_joined' if is_joined else ''}{'_sinks' if has_sinks else ''}"
    name = f"attend_{k_format}_{v_format}_{k_dim}_{v_dim}_{splits}{ends}"
    return Kernel(name, tuple(bindings), (*numbers, *signed, *f32s("scale", "cap")), text)


def _span(k_dim: int, chunks: int, has_sinks: bool) -> str:
    """The tokens that a token sees, its query, and what its sums begin with."""
    start = "select(-3e38, sinks[head], split == 0u)" if has_sinks else "-3e38"
    begun = "select(0.0, 1.0, split == 0u)" if has_sinks else "0.0"
    return f"""\
  let token = wg.y;
  if (token >= u32(step[P.count_at])) {{ return; }}
  let head = wg.x;
  let split = P.first_split + wg.z;
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
    let number = u32(step[table + u32(page)]) - P.first_page;
    if (number >= P.pages) {{ continue; }}
    let rows = (number * P.kv_heads + kv_head) * {PAGE_TOKENS}u;
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


def _sums(v_dim: int, is_joined: bool, chunks: int, sharing: int) -> str:
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
        if (i < {v_dim}u) {{ {_store(v_dim, is_joined)} }}
      }}
    }}
  }}
"""


def _store(v_dim: int, is_joined: bool) -> str:
    if not is_joined:
        return f"y[P.y_offset + token * P.y_stride + head * {v_dim}u + i] = sum[e] / total;"
    return f"y[((token * P.heads + head) * P.splits + split) * {v_dim + 2}u + i] = sum[e];"


def _store_totals(v_dim: int) -> str:
    return f"""\
  if (t == 0u) {{
    let end = ((token * P.heads + head) * P.splits + split) * {v_dim + 2}u + {v_dim}u;
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

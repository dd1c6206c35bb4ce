"""Kernels of routed experts: the choice, and products with the matrices of the chosen ones."""

from __future__ import annotations

from functools import cache

from ...formats.spec import Format
from .activations import ACTIVATIONS
from .decoders import decoder
from .products import LOAD_X, weight_bindings
from .wgsl import Kernel, f32s, main, reads, u32s, writes

THREADS = 32
SCORES = {"softmax": 0, "sigmoid": 1, "softmax_top": 2}
_DECODER = u32s("field1", "field2", "group", "groups")


# Experts of the groups that are not chosen get the lowest rank.
_DROP_GROUPS = """\
  if (P.expert_groups > 1u) {
    let each = P.experts / P.expert_groups;
    for (var skip = P.top_groups; skip < P.expert_groups; skip++) {
      var worst = 0u;
      var least = 3e38;
      for (var g = 0u; g < P.expert_groups; g++) {
        var first = -3e38;
        var second = -3e38;
        for (var i = 0u; i < each; i++) {
          let r = ranked[row + P.experts + g * each + i];
          if (r > first) { second = first; first = r; } else if (r > second) { second = r; }
        }
        let score = select(first, first + second, P.group_top == 2u);
        if (first > -2e38 && score <= least) { least = score; worst = g; }
      }
      for (var i = 0u; i < each; i++) { ranked[row + P.experts + worst * each + i] = -3e38; }
    }
  }
"""


@cache
def route(has_bias: bool, has_scale: bool) -> Kernel:
    """A thread chooses the experts of a token: `chosen` holds their numbers, then `weights` as many factors.

    `ranked` is a row for each token: probabilities, then what experts are ordered by.
    """
    body = f"""\
  let token = block * {THREADS}u + t;
  if (token >= u32(step[P.count_at])) {{ return; }}
  let at = P.s_offset + token * P.s_stride;
  let row = token * 2u * P.experts;
  var most = -3e38;
  for (var i = 0u; i < P.experts; i++) {{ most = max(most, scores[at + i]); }}
  var sum = 0.0;
  for (var i = 0u; i < P.experts; i++) {{ sum += exp(scores[at + i] - most); }}
  for (var i = 0u; i < P.experts; i++) {{
    var p = scores[at + i];
    if (P.score == 0u) {{ p = exp(p - most) / sum; }}
    if (P.score == 1u) {{ p = 1.0 / (1.0 + exp(-p)); }}
    ranked[row + i] = p;
    ranked[row + P.experts + i] = p{" + bias[i]" if has_bias else ""};
  }}
{_DROP_GROUPS}  var total = 0.0;
  var top = 0.0;
  for (var n = 0u; n < P.top_k; n++) {{
    var best = 0u;
    var found = -3.2e38;
    for (var i = 0u; i < P.experts; i++) {{
      let r = ranked[row + P.experts + i];
      if (r > found) {{ found = r; best = i; }}
    }}
    ranked[row + P.experts + best] = -3.3e38;
    chosen[token * P.top_k + n] = best;
    var w = ranked[row + best];
    if (P.score == 2u) {{
      if (n == 0u) {{ top = w; }}
      w = exp(w - top);
    }}
    weights[token * P.top_k + n] = w;
    total += w;
  }}
  for (var n = 0u; n < P.top_k; n++) {{
    var w = weights[token * P.top_k + n];
    if (P.score == 2u) {{ w = w / total; }} else if (P.normalize == 1u) {{ w = w / (total + 1e-20); }}
    w *= P.scale;
{"    w *= expert_scale[chosen[token * P.top_k + n]];" if has_scale else ""}
    weights[token * P.top_k + n] = w;
  }}"""
    bindings = [
        reads("step", "i32"), reads("scores"), writes("ranked"), writes("chosen", "u32"), writes("weights"),
        *([reads("bias")] if has_bias else []), *([reads("expert_scale")] if has_scale else []),
    ]  # fmt: skip
    names = (
        "count_at", "s_offset", "s_stride", "experts", "top_k", "score", "normalize", "expert_groups", "top_groups",
        "group_top",
    )  # fmt: skip
    return Kernel("route", tuple(bindings), (*u32s(*names), *f32s("scale")), main(body, THREADS))


@cache
def expert_rows(fmt: Format, has_bias: bool, is_first: bool) -> Kernel:
    """Products of a token, or of what its chosen experts made of it, with rows of the matrices of these experts.

    A workgroup of 32 makes a number; experts outside `first` to `first + held` are left alone. `is_first`: x has a row
    for each token; else one for each chosen expert.
    """
    x_row = "token" if is_first else "wg.y"
    body = f"""\
  let token = wg.y / P.top_k;
  if (token >= u32(step[P.count_at])) {{ return; }}
  let expert = chosen[wg.y] - P.first;
  let row = block;
  var sum = 0.0;
  let here = expert < P.held && row < P.n;
  if (here) {{
    for (var c = t; c < (P.k + 15u) / 16u; c += {THREADS}u) {{
      let v = whole(w_chunk((expert * P.n + row) * P.row_bytes, c), c);
      let given = load_x(P.x_offset / 4u + ({x_row}) * (P.x_stride / 4u), c);
      for (var q = 0u; q < 4u; q++) {{ sum += dot(v[q], given[q]); }}
    }}
  }}
  part[t] = sum;
  for (var off = {THREADS // 2}u; off > 0u; off >>= 1u) {{
    workgroupBarrier();
    if (t < off) {{ part[t] += part[t + off]; }}
  }}
  if (t == 0u && here) {{
    y[wg.y * P.y_stride + row] = part[0]{" + bias[(expert + P.first) * P.n + row]" if has_bias else ""};
  }}"""
    names = ("n", "k", "row_bytes", "count_at", "top_k", "first", "held", "x_offset", "x_stride", "y_stride")
    bindings = [
        reads("step", "i32"), *weight_bindings(fmt), reads("x", "vec4<f32>"), reads("chosen", "u32"), writes("y"),
        *([reads("bias")] if has_bias else []),
    ]  # fmt: skip
    text = "\n".join(
        [decoder(fmt).named("w"), LOAD_X, f"var<workgroup> part: array<f32, {THREADS}>;", main(body, THREADS)]
    )
    name = f"expert_rows_{fmt.native_name}{'_bias' if has_bias else ''}{'_first' if is_first else ''}"
    return Kernel(name, tuple(bindings), (*u32s(*names), *_DECODER), text)


@cache
def activate_rows(is_gated: bool) -> Kernel:
    """Rows of all chosen experts: the gate's, or an activation, applied in place of what `up` made."""
    value = "gated(P.kind, gate[at], y[at])" if is_gated else "act(P.kind, y[at])"
    body = f"""\
  let i = block * 64u + t;
  if (i >= P.width || wg.y >= u32(step[P.count_at]) * P.top_k) {{ return; }}
  let at = wg.y * P.stride + i;
  y[at] = {value};"""
    bindings = (reads("step", "i32"), *([reads("gate")] if is_gated else []), writes("y"))
    numbers = u32s("count_at", "top_k", "width", "stride", "kind")
    return Kernel("activate_rows", bindings, numbers, f"{ACTIVATIONS}\n{main(body, 64)}")


@cache
def combine() -> Kernel:
    """The weighted sum of what the chosen experts made."""
    body = """\
  let i = block * 64u + t;
  if (i >= P.width || wg.y >= u32(step[P.count_at])) { return; }
  var sum = 0.0;
  for (var n = 0u; n < P.top_k; n++) {
    sum += weights[wg.y * P.top_k + n] * x[(wg.y * P.top_k + n) * P.x_stride + i];
  }
  y[P.y_offset + wg.y * P.y_stride + i] = sum;"""
    numbers = u32s("count_at", "top_k", "width", "x_stride", "y_offset", "y_stride")
    return Kernel("combine", (reads("step", "i32"), reads("x"), reads("weights"), writes("y")), numbers, main(body, 64))


@cache
def linear_heads(fmt: Format) -> Kernel:
    """For each head a product with a matrix of its own: a thread group of 32 makes a number."""
    body = f"""\
  let token = wg.y;
  if (token >= u32(step[P.count_at])) {{ return; }}
  let row = block + P.first;
  let head = row / P.head_rows;
  var sum = 0.0;
  for (var c = t; c < (P.k + 15u) / 16u; c += {THREADS}u) {{
    let v = w_chunk(block * P.row_bytes, c);
    let at = P.x_offset + token * P.x_stride + head * P.k + c * 16u;
    for (var e = 0u; e < min(16u, P.k - c * 16u); e++) {{ sum += v[e / 4u][e % 4u] * x[at + e]; }}
  }}
  part[t] = sum;
  for (var off = {THREADS // 2}u; off > 0u; off >>= 1u) {{
    workgroupBarrier();
    if (t < off) {{ part[t] += part[t + off]; }}
  }}
  if (t == 0u && block < P.n) {{ y[P.y_offset + token * P.y_stride + row] = part[0]; }}"""
    names = ("n", "k", "row_bytes", "count_at", "first", "head_rows", "x_offset", "x_stride", "y_offset", "y_stride")
    bindings = (reads("step", "i32"), *weight_bindings(fmt), reads("x"), writes("y"))
    text = "\n".join([decoder(fmt).named("w"), f"var<workgroup> part: array<f32, {THREADS}>;", main(body, THREADS)])
    return Kernel(f"linear_heads_{fmt.native_name}", bindings, (*u32s(*names), *_DECODER), text)

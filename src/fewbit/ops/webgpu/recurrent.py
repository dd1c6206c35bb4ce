"""Kernels of recurrent layers: tokens of a sequence in their order, states read from a slot and written to another."""

from __future__ import annotations

from functools import cache

from .activations import ACTIVATIONS
from .wgsl import Kernel, f32s, main, reads, u32s, writes

THREADS = 64
_STATE = u32s("count_at", "reads_at", "writes_at", "starts_at", "slot_words", "offset")
_SEQUENCE = """\
  let sequence = wg.y;
  if (sequence >= u32(step[P.count_at])) { return; }
  let before = u32(step[u32(step[P.reads_at]) + sequence]) * P.slot_words + P.offset;
  let after = u32(step[u32(step[P.writes_at]) + sequence]) * P.slot_words + P.offset;
  let begin = u32(step[u32(step[P.starts_at]) + sequence]);
  let end = u32(step[u32(step[P.starts_at]) + sequence + 1u]);
"""
_SOFTPLUS = "fn softplus(v: f32) -> f32 { return max(v, 0.0) + log(1.0 + exp(-abs(v))); }"


@cache
def conv(has_bias: bool) -> Kernel:
    """A thread convolves a column of a sequence."""
    body = f"""\
{_SEQUENCE}  let i = block * {THREADS}u + t;
  if (i >= P.width) {{ return; }}
  let kept = P.taps - 1u;
  for (var token = begin; token < end; token++) {{
    var sum = {"bias[i]" if has_bias else "0.0"};
    for (var tap = 0u; tap < P.taps; tap++) {{
      let place = token - begin + tap;
      var v = 0.0;
      if (place < kept) {{
        v = states[before + place * P.width + i];
      }} else {{
        v = x[P.x_offset + (begin + place - kept) * P.x_stride + i];
      }}
      sum += v * weight[i * P.taps + tap];
    }}
    y[P.y_offset + token * P.y_stride + i] = act(P.kind, sum);
  }}
  for (var n = 0u; n < kept; n++) {{
    let place = end - begin + n;
    if (place < kept) {{
      states[after + n * P.width + i] = states[before + place * P.width + i];
    }} else {{
      states[after + n * P.width + i] = x[P.x_offset + (begin + place - kept) * P.x_stride + i];
    }}
  }}"""
    bindings = [reads("step", "i32"), reads("x"), reads("weight"), writes("states"), writes("y")]
    numbers = u32s("width", "taps", "kind", "x_offset", "x_stride", "y_offset", "y_stride")
    if has_bias:
        bindings.append(reads("bias"))
    return Kernel("conv", tuple(bindings), (*_STATE, *numbers), f"{ACTIVATIONS}\n{main(body, THREADS)}")


@cache
def delta_rule() -> Kernel:
    """A thread keeps a column of a head's matrix; a workgroup has columns of one head."""
    body = f"""\
{_SEQUENCE}  let column = block * {THREADS}u + t;
  if (column >= P.v_heads * P.v_dim) {{ return; }}
  let head = column / P.v_dim;
  let source = select(head / (P.v_heads / P.heads), head % P.heads, P.tiled == 1u);
  let place = head * P.dim * P.v_dim + column % P.v_dim;
  for (var n = 0u; n < P.dim; n++) {{
    states[after + place + n * P.v_dim] = states[before + place + n * P.v_dim];
  }}
  for (var token = begin; token < end; token++) {{
    let fade = exp(gains[head] * softplus(a[P.a_offset + token * P.a_stride + head] + gains[P.v_heads + head]));
    let learn = 1.0 / (1.0 + exp(-b[P.b_offset + token * P.b_stride + head]));
    let key = P.k_offset + token * P.k_stride + source * P.dim;
    let query = P.q_offset + token * P.q_stride + source * P.dim;
    var known = 0.0;
    for (var n = 0u; n < P.dim; n++) {{
      let s = states[after + place + n * P.v_dim] * fade;
      states[after + place + n * P.v_dim] = s;
      known += k[key + n] * s;
    }}
    let change = learn * (v[P.v_offset + token * P.v_stride + column] - known);
    var sum = 0.0;
    for (var n = 0u; n < P.dim; n++) {{
      let s = states[after + place + n * P.v_dim] + k[key + n] * change;
      states[after + place + n * P.v_dim] = s;
      sum += q[query + n] * s;
    }}
    y[P.y_offset + token * P.y_stride + column] = P.scale * sum;
  }}"""
    bindings = (
        reads("step", "i32"), reads("q"), reads("k"), reads("v"), reads("a"), reads("b"), reads("gains"),
        writes("states"), writes("y"),
    )  # fmt: skip
    names = [f"{name}_{what}" for name in "qkvaby" for what in ("offset", "stride")]
    numbers = u32s("heads", "v_heads", "dim", "v_dim", "tiled", *names)
    return Kernel("delta_rule", bindings, (*_STATE, *numbers, *f32s("scale")), f"{_SOFTPLUS}\n{main(body, THREADS)}")


@cache
def scan() -> Kernel:
    """The same for a state-space scan: a matrix of (dim of b, dim of x) for each head."""
    body = f"""\
{_SEQUENCE}  let column = block * {THREADS}u + t;
  if (column >= P.heads * P.dim) {{ return; }}
  let head = column / P.dim;
  let source = head / (P.heads / P.groups) * P.n;
  let place = head * P.n * P.dim + column % P.dim;
  for (var n = 0u; n < P.n; n++) {{ states[after + place + n * P.dim] = states[before + place + n * P.dim]; }}
  for (var token = begin; token < end; token++) {{
    let time = softplus(dt[P.dt_offset + token * P.dt_stride + head] + gains[P.heads * 2u + head]);
    let fade = exp(gains[head] * time);
    let own = x[P.x_offset + token * P.x_stride + column];
    var sum = 0.0;
    for (var n = 0u; n < P.n; n++) {{
      let h = states[after + place + n * P.dim] * fade + b[P.b_offset + token * P.b_stride + source + n] * time * own;
      states[after + place + n * P.dim] = h;
      sum += c[P.c_offset + token * P.c_stride + source + n] * h;
    }}
    y[P.y_offset + token * P.y_stride + column] = sum + gains[P.heads + head] * own;
  }}"""
    bindings = (
        reads("step", "i32"), reads("x"), reads("dt"), reads("b"), reads("c"), reads("gains"), writes("states"),
        writes("y"),
    )  # fmt: skip
    names = [f"{name}_{what}" for name in ("x", "dt", "b", "c", "y") for what in ("offset", "stride")]
    return Kernel(
        "scan", bindings, (*_STATE, *u32s("heads", "groups", "dim", "n", *names)), f"{_SOFTPLUS}\n{main(body, THREADS)}"
    )

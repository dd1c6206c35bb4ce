"""Kernels of row maths: what the model's operations do to each row by itself."""

from __future__ import annotations

from functools import cache

from .activations import ACTIVATIONS
from .wgsl import Binding, Kernel, f32s, main, reads, u32s, writes

THREADS = 64
ROW = u32s("width", "count_at", "x_offset", "x_stride", "y_offset", "y_stride")
_COUNT = "  let count = u32(step[P.count_at]);\n  let token = wg.y;\n  if (token >= count) { return; }\n"
_STEP = reads("step", "i32")
_IN, _OUT = reads("x"), writes("y")


def _each(name: str, value: str, extra: tuple[Binding, ...] = (), parameters: tuple[tuple[str, str], ...] = (),
          before: str = "", lines: str = "") -> Kernel:  # fmt: skip
    """A thread for each number of a row: `i` is its column."""
    body = f"""\
{_COUNT}  let i = block * {THREADS}u + t;
  if (i >= P.width) {{ return; }}
{lines}  y[P.y_offset + token * P.y_stride + i] = {value};"""
    return Kernel(name, (_STEP, _IN, *extra, _OUT), (*ROW, *parameters), f"{before}\n{main(body, THREADS)}")


_X = "x[P.x_offset + token * P.x_stride + i]"
_B = "b[P.b_offset + token * P.b_stride + i]"
_SECOND = u32s("b_offset", "b_stride")


@cache
def add() -> Kernel:
    return _each("add", f"{_X} + {_B}", (reads("b"),), _SECOND)


@cache
def gate() -> Kernel:
    return _each("gate", f"gated(P.kind, {_X}, {_B})", (reads("b"),), (*_SECOND, *u32s("kind")), ACTIVATIONS)


@cache
def activate() -> Kernel:
    return _each("activate", f"act(P.kind, {_X})", (), u32s("kind"), ACTIVATIONS)


@cache
def scale() -> Kernel:
    return _each("scale", f"{_X} * P.by", (), f32s("by"))


@cache
def softcap() -> Kernel:
    return _each("softcap", f"P.cap * tanh_of({_X} / P.cap)", (), f32s("cap"), ACTIVATIONS)


@cache
def clamp() -> Kernel:
    return _each("clamp", f"clamp({_X}, P.low, P.high)", (), f32s("low", "high"))


@cache
def shift() -> Kernel:
    return _each("shift", f"{_X} + vector[i]", (reads("vector"),))


@cache
def columns() -> Kernel:
    value = "x[P.x_offset + token * P.x_stride + i / P.part * P.dim + P.start + i % P.part]"
    return _each("columns", value, (), u32s("part", "dim", "start"))


@cache
def join() -> Kernel:
    lines = """\
  let head = i / (P.a_dim + P.b_dim);
  let place = i % (P.a_dim + P.b_dim);
  let second = min(head, P.b_heads - 1u) * P.b_dim + place - min(place, P.a_dim);
  let first = head * P.a_dim + min(place, P.a_dim - 1u);
"""
    value = (
        "select(x[P.x_offset + token * P.x_stride + first], b[P.b_offset + token * P.b_stride + second], "
        "place >= P.a_dim)"
    )
    return _each("join", value, (reads("b"),), (*_SECOND, *u32s("a_dim", "b_dim", "b_heads")), lines=lines)


@cache
def gather() -> Kernel:
    """The rows whose logits are wanted."""
    value = "x[P.x_offset + u32(step[u32(step[P.ids_at]) + token]) * P.x_stride + i]"
    return _each("gather", value, (), u32s("ids_at"))


@cache
def norm(has_mean: bool = False, has_bias: bool = False) -> Kernel:
    """A workgroup norms a head of a row: root mean square, or mean and variance."""
    mean = f"{_total('sum')}  let mean = total / f32(P.dim);\n" if has_mean else "  let mean = 0.0;\n"
    body = f"""\
{_COUNT}  let at = P.x_offset + token * P.x_stride + wg.x * P.dim;
  var sum = 0.0;
  for (var i = t; i < P.dim; i += {THREADS}u) {{ sum += x[at + i]; }}
{mean}  var square = 0.0;
  for (var i = t; i < P.dim; i += {THREADS}u) {{ let v = x[at + i] - mean; square += v * v; }}
{_total("square").replace("let total", "let squares")}\
  let by = 1.0 / sqrt(squares / f32(P.dim) + P.eps);
  let to = P.y_offset + token * P.y_stride + wg.x * P.dim;
  for (var i = t; i < P.dim; i += {THREADS}u) {{
    y[to + i] = (x[at + i] - mean) * by * weight[i]{" + bias[i]" if has_bias else ""};
  }}"""
    if not has_mean:
        body = body.replace("  var sum = 0.0;\n", "").replace(
            f"  for (var i = t; i < P.dim; i += {THREADS}u) {{ sum += x[at + i]; }}\n", ""
        )
    extra = (reads("weight"), *([reads("bias")] if has_bias else []))
    text = f"var<workgroup> part: array<f32, {THREADS}>;\n{main(body, THREADS)}"
    name = "layer_norm" if has_mean else "norm"
    return Kernel(name, (_STEP, _IN, *extra, _OUT), (*ROW, *u32s("dim"), *f32s("eps")), text)


def _total(name: str) -> str:
    """The sum over all threads as `total`."""
    return f"""\
  workgroupBarrier();
  part[t] = {name};
  for (var off = {THREADS // 2}u; off > 0u; off >>= 1u) {{
    workgroupBarrier();
    if (t < off) {{ part[t] += part[t + off]; }}
  }}
  workgroupBarrier();
  let total = part[0];
"""


@cache
def rope(in_place: bool) -> Kernel:
    """A thread rotates a pair of a head, or copies a number that is not rotated.

    Cosines and sines are products of those of position / 256 * 256 and of position % 256: two small tables.
    """
    source = "y" if in_place else "x"
    places = "P.y_offset + token * P.y_stride" if in_place else "P.x_offset + token * P.x_stride"
    rest = (
        ""
        if in_place
        else """
  if (i >= P.pairs) {
    let place = i + P.pairs;
    y[to + place] = x[at + place];
    return;
  }"""
    )
    body = f"""\
{_COUNT}  let each = {"P.pairs" if in_place else "(P.dim - P.pairs)"};
  let thread = block * {THREADS}u + t;
  if (thread >= P.heads * each) {{ return; }}
  let i = thread % each;
  let at = {places} + thread / each * P.dim;
  let to = P.y_offset + token * P.y_stride + thread / each * P.dim;{rest}
  let position = u32(step[u32(step[P.ids_at]) + token]);
  let high = (position / 256u * P.pairs + i) * 2u;
  let low = (P.high_rows * P.pairs + position % 256u * P.pairs + i) * 2u;
  let c = (angles[high] * angles[low] - angles[high + 1u] * angles[low + 1u]) * P.scale;
  let s = (angles[high + 1u] * angles[low] + angles[high] * angles[low + 1u]) * P.scale;
  let first = select(2u * i, i, P.neox == 1u);
  let second = select(2u * i + 1u, i + P.pairs, P.neox == 1u);
  let a = {source}[at + first];
  let b = {source}[at + second];
  y[to + first] = a * c - b * s;
  y[to + second] = a * s + b * c;"""
    parameters = (*ROW, *u32s("ids_at", "heads", "dim", "pairs", "neox", "high_rows"), *f32s("scale"))
    bindings = (_STEP, *(() if in_place else (_IN,)), reads("angles"), _OUT)
    return Kernel(f"rope{'_in_place' if in_place else ''}", bindings, parameters, main(body, THREADS))


@cache
def hadamard(dim: int) -> Kernel:
    """A workgroup rotates a head of a row, in blocks of the largest power of two that divides it."""
    size = dim & -dim
    body = f"""\
{_COUNT}  let at = P.x_offset + token * P.x_stride + wg.x * {dim}u;
  for (var i = t; i < {dim}u; i += {THREADS}u) {{ v[i] = x[at + i]; }}
  for (var off = 1u; off < {size}u; off <<= 1u) {{
    workgroupBarrier();
    for (var i = t; i < {dim // 2}u; i += {THREADS}u) {{
      let j = i / off * off * 2u + i % off;
      let a = v[j];
      let b = v[j + off];
      v[j] = a + b;
      v[j + off] = a - b;
    }}
  }}
  workgroupBarrier();
  let to = P.y_offset + token * P.y_stride + wg.x * {dim}u;
  for (var i = t; i < {dim}u; i += {THREADS}u) {{ y[to + i] = v[i] * {size**-0.5!r}; }}"""
    text = f"var<workgroup> v: array<f32, {dim}>;\n{main(body, THREADS)}"
    return Kernel(f"hadamard_{dim}", (_STEP, _IN, _OUT), ROW, text)

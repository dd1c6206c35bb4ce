"""Products of rows with packed weights: few rows (a workgroup reduces), many rows (tiles), and tables of rows.

Rows of x are read as vectors of four, so they begin at multiples of four numbers. Every kernel takes the number of
rows from the integers of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from ...formats.spec import Format
from .activations import ACTIVATIONS
from .decoders import decoder
from .wgsl import F16, SUBGROUPS, Binding, Kernel, f32s, main, reads, u32s, writes

THREADS = 64
LANES = 32  # threads that share rows of weights in `few_rows`
MANY = 8  # rows from which on tiles are faster
TILE = 32  # rows of x and of weights of a tile
FEW = (1, 2, 4, 8)  # rows of x that one workgroup of `few_rows` takes

Residual = Literal["none", "own", "other"]  # what products are added to: nothing, what is there, another row


@dataclass(frozen=True)
class Epilogue:
    """What is done with products. `gated`: weights are rows of a gate, then as many that it multiplies."""

    gated: bool = False
    bias: bool = False
    residual: Residual = "none"

    @property
    def name(self) -> str:
        parts = ["gated"] * self.gated + ["bias"] * self.bias
        return "".join(f"_{part}" for part in (*parts, *([] if self.residual == "none" else [self.residual])))


PLAIN = Epilogue()
PRODUCT_PARAMETERS = (
    *u32s("n", "k", "row_bytes", "x_offset", "x_stride", "y_offset", "y_stride", "r_offset", "r_stride", "b_offset"),
    *u32s("count_at", "kind", "field1", "field2", "group", "groups"),
)


def weight_bindings(fmt: Format, prefix: str = "w") -> tuple[Binding, ...]:
    """The buffers that a decoder reads."""
    table = decoder(fmt).table is not None
    return (reads(prefix, "u32"), *([reads(f"{prefix}_table", "u32")] if table else []))


def product_bindings(fmt: Format, epilogue: Epilogue) -> tuple[Binding, ...]:
    rest = [reads("bias")] * epilogue.bias + [reads("residual")] * (epilogue.residual == "other")
    return (reads("step", "i32"), *weight_bindings(fmt), reads("x", "vec4<f32>"), writes("y"), *rest)


def _store(epilogue: Epilogue) -> str:
    """fn store(token, row, a, b): a product, or those of a gate and what it multiplies."""
    value = "gated(P.kind, a, b)" if epilogue.gated else "a"
    if epilogue.bias:
        value += " + bias[P.b_offset + row]"
    if epilogue.residual == "own":
        value += " + y[at]"
    if epilogue.residual == "other":
        value += " + residual[P.r_offset + token * P.r_stride + row]"
    return (
        "fn store(token: u32, row: u32, a: f32, b: f32) {\n"
        f"  let at = P.y_offset + token * P.y_stride + row;\n  y[at] = {value};\n}}"
    )


# Products in f16, for sums in f32.
HALF = """\
alias Half = f16;
alias Half4 = vec4<f16>;
fn to_half(v: f32) -> Half { return Half(v); }
fn to_halves(v: vec4<f32>) -> Half4 { return Half4(v); }
fn times(a: Half4, b: Half4) -> vec4<f32> { return vec4<f32>(a * b); }"""


@cache
def few_rows(
    fmt: Format, tokens: int, epilogue: Epilogue = PLAIN, subgroups: bool = False, f16: bool = False
) -> Kernel:
    """Products of up to `tokens` rows in a workgroup, which reads each row of weights once."""
    rows = rows_of_lanes(fmt, tokens, epilogue)
    parts = 2 if epilogue.gated else 1
    count = parts * rows * tokens
    lines = [*begin_few(tokens, rows, count), *(_load_x(n) for n in range(tokens))]
    for p in range(parts):
        for r in range(rows):
            row = f"min(row0 + {r}u, P.n - 1u)" + (" + P.n" if p else "")
            lines += _dot(f"w_chunk(({row}) * P.row_bytes, c)", p * rows + r, tokens, f16)
    body = "\n".join([*([HALF] if f16 else []), end_few(fmt, lines, tokens, rows, count, epilogue, subgroups)])
    enables = (*([F16] if f16 else []), *([SUBGROUPS] if subgroups else []))
    name = f"few_rows_{fmt.native_name}_{tokens}{epilogue.name}{'_f16' if f16 else ''}"
    return Kernel(name, product_bindings(fmt, epilogue), PRODUCT_PARAMETERS, body, enables)


def begin_few(tokens: int, rows: int, count: int) -> list[str]:
    """The loop over 16 columns at a time, and the sums before it."""
    return [
        f"  let first = wg.y * {tokens}u;",
        "  let count = u32(step[P.count_at]);",
        "  if (first >= count) { return; }",
        f"  let lane = t % {LANES}u;",
        f"  let row0 = (block * {THREADS // LANES}u + t / {LANES}u) * {rows}u;",
        *(f"  var acc{i} = 0.0;" for i in range(count)),
        f"  for (var c = lane; c < (P.k + 15u) / 16u; c += {LANES}u) {{",
    ]


def end_few(
    fmt: Format, lines: list[str], tokens: int, rows: int, count: int, epilogue: Epilogue, subgroups: bool,
    packed: bool = False,
) -> str:  # fmt: skip
    """The shader around the loop: sums are added up, and lanes store them."""
    other = f"sum_at(lane + {rows * tokens}u, t)" if epilogue.gated else "0.0"
    lines = [
        *lines,
        "  }",
        add_lanes(count, subgroups),
        f"  if (lane < {rows * tokens}u) {{",
        f"    let row = row0 + lane / {tokens}u;",
        f"    let token = first + lane % {tokens}u;",
        f"    if (row < P.n && token < count) {{ store(token, row, sum_at(lane, t), {other}); }}",
        "  }",
    ]
    return "\n".join(
        [
            *([ACTIVATIONS] if epilogue.gated else []), decoder(fmt).named("w", packed), _store(epilogue),
            *([] if packed else [LOAD_X]), f"var<workgroup> part: array<f32, {count * THREADS}>;", SUM_AT,
            main("\n".join(lines), THREADS, subgroups),
        ]
    )  # fmt: skip


def rows_per_block(fmt: Format, tokens: int, epilogue: Epilogue) -> int:
    """Rows of weights of a workgroup of `few_rows`."""
    return THREADS // LANES * rows_of_lanes(fmt, tokens, epilogue)


def rows_of_lanes(fmt: Format, tokens: int, epilogue: Epilogue) -> int:
    if decoder(fmt).is_long:
        return 1
    return 4 if tokens == 1 and not epilogue.gated else 2


def _load_x(n: int) -> str:
    token = f"min(first + {n}u, count - 1u)" if n else "first"
    return f"    let x{n} = load_x(P.x_offset / 4u + ({token}) * (P.x_stride / 4u), c);"


def _dot(chunk: str, which: int, tokens: int, f16: bool) -> list[str]:
    lines = [f"    {{\n      var v = {chunk};", "      v = whole(v, c);"]
    lines += [f"      let w{q} = to_halves(v[{q}]);" for q in range(4 if f16 else 0)]
    for n in range(tokens):
        terms = [f"dot(v[{q}], x{n}[{q}])" for q in range(4)]
        if f16:
            products = " + ".join(f"times(w{q}, to_halves(x{n}[{q}]))" for q in range(4))
            terms = [f"dot({products}, vec4<f32>(1.0))"]
        lines.append(f"      acc{which * tokens + n} += {' + '.join(terms)};")
    return [*lines, "    }"]


def add_lanes(count: int, subgroups: bool) -> str:
    """Adds up the accumulators of neighbouring lanes; sums lie at the first of them."""
    put = [f"  part[{i * THREADS}u + t] = acc{i};" for i in range(count)]
    if not subgroups:
        adds = "".join(f" part[{i * THREADS}u + t] += part[{i * THREADS}u + t + off];" for i in range(count))
        return "\n".join(
            [*put, f"  for (var off = {LANES // 2}u; off > 0u; off >>= 1u) {{", "    workgroupBarrier();",
             f"    if (lane < off) {{{adds} }}", "  }", "  workgroupBarrier();"]
        )  # fmt: skip
    lines, off = [], LANES // 2
    while off:
        adds = "".join(f" acc{i} += subgroupShuffleXor(acc{i}, {off}u);" for i in range(count))
        lines.append(f"  if (lanes > {off}u) {{{adds} }}")
        off //= 2
    adds = "".join(f" part[{i * THREADS}u + t] += part[{i * THREADS}u + t + off];" for i in range(count))
    return "\n".join(
        [*lines, *put, f"  for (var off = {LANES // 2}u; off >= lanes; off >>= 1u) {{", "    workgroupBarrier();",
         f"    if (lane < off) {{{adds} }}", "  }", "  workgroupBarrier();"]
    )  # fmt: skip


@cache
def many_rows(fmt: Format, epilogue: Epilogue = PLAIN, f16: bool = False) -> Kernel:
    """Products of many rows: tiles of 32 by 32, 32 columns at a time in workgroup memory, 4 by 4 of a thread."""
    parts = 2 if epilogue.gated else 1
    kind, convert = ("Half4", "to_half") if f16 else ("vec4<f32>", "f32")
    declared = "".join(f"  var a{p}_{i} = vec4<f32>();\n" for p in range(parts) for i in range(4))
    fill = "".join(
        f"    {{ let row = min(row0 + t / 2u, P.n - 1u){' + P.n' if p else ''};\n"
        f"      let v = whole(w_chunk(row * P.row_bytes, c + t % 2u), c + t % 2u);\n"
        f"      for (var q = 0u; q < 4u; q++) {{ for (var i = 0u; i < 4u; i++) {{\n"
        f"        ws{p}[((t % 2u) * 16u + q * 4u + i) * 9u + t / 8u][(t / 2u) % 4u] = {convert}(v[q][i]); }} }} }}\n"
        for p in range(parts)
    )
    adds = [
        [f"a{p}_{i} += {f'times(w, Half4(xv[{i}]))' if f16 else f'w * xv[{i}]'};" for i in range(4)]
        for p in range(parts)
    ]
    inner = "".join(f"      {{ let w = ws{p}[j * 9u + t % 8u]; {' '.join(one)} }}\n" for p, one in enumerate(adds))
    lines = f"""\
  let count = u32(step[P.count_at]);
  let first = wg.y * {TILE}u;
  if (first >= count) {{ return; }}
  let row0 = block * {TILE}u;
{declared}  for (var c = 0u; c < (P.k + 15u) / 16u; c += 2u) {{
    workgroupBarrier();
    {{ let token = min(first + t / 2u, count - 1u);
      let v = load_x(P.x_offset / 4u + token * (P.x_stride / 4u), c + t % 2u);
      for (var q = 0u; q < 4u; q++) {{ for (var i = 0u; i < 4u; i++) {{
        xs[((t % 2u) * 16u + q * 4u + i) * 9u + t / 8u][(t / 2u) % 4u] = {convert}(v[q][i]); }} }} }}
{fill}    workgroupBarrier();
    for (var j = 0u; j < 32u; j++) {{
      let xv = xs[j * 9u + t / 8u];
{inner}    }}
  }}
"""
    for i in range(4):
        lines += f"  {{ let token = first + t / 8u * 4u + {i}u;\n    if (token < count) {{\n"
        for r in range(4):
            lines += (
                f"      {{ let row = row0 + t % 8u * 4u + {r}u; if (row < P.n) {{ "
                f"store(token, row, a0_{i}[{r}], {f'a1_{i}[{r}]' if epilogue.gated else '0.0'}); }} }}\n"
            )
        lines += "    } }\n"
    shared = "".join(f"var<workgroup> ws{p}: array<{kind}, {32 * 9}>;\n" for p in range(parts))
    body = "\n".join(
        [
            *([HALF] if f16 else []), *([ACTIVATIONS] if epilogue.gated else []), decoder(fmt).named("w"),
            _store(epilogue), LOAD_X, f"var<workgroup> xs: array<{kind}, {32 * 9}>;\n{shared}", main(lines, THREADS),
        ]
    )  # fmt: skip
    name = f"many_rows_{fmt.native_name}{epilogue.name}{'_f16' if f16 else ''}"
    return Kernel(name, product_bindings(fmt, epilogue), PRODUCT_PARAMETERS, body, (F16,) if f16 else ())


@cache
def decode_rows(fmt: Format) -> Kernel:
    """Rows of weights as floats: a thread decodes 16."""
    body = f"""\
  let i = block * {THREADS}u + t;
  let chunks = (P.k + 15u) / 16u;
  let row = i / chunks;
  if (row >= P.n) {{ return; }}
  let c = i % chunks;
  let v = w_chunk(row * P.row_bytes, c);
  let at = P.y_offset + row * P.y_stride + c * 16u;
  for (var j = 0u; j < min(16u, P.k - c * 16u); j++) {{ y[at + j] = v[j / 4u][j % 4u]; }}"""
    return Kernel(
        f"decode_rows_{fmt.native_name}",
        (*weight_bindings(fmt), writes("y")),
        u32s("n", "k", "row_bytes", "y_offset", "y_stride", "field1", "field2", "group", "groups"),
        "\n".join([decoder(fmt).named("w"), main(body, THREADS)]),
    )


@cache
def table_rows(fmt: Format) -> Kernel:
    """The row of a table for each token, times a factor; tokens outside `first` to `first + n` are left alone."""
    body = f"""\
  let count = u32(step[P.count_at]);
  let token = wg.y;
  let c = block * {THREADS}u + t;
  if (token >= count || c * 16u >= P.k) {{ return; }}
  let row = u32(step[u32(step[P.ids_at]) + token]) - P.first;
  if (row >= P.n) {{ return; }}
  let v = w_chunk(row * P.row_bytes, c);
  for (var j = 0u; j < min(16u, P.k - c * 16u); j++) {{
    y[P.y_offset + token * P.y_stride + c * 16u + j] = v[j / 4u][j % 4u] * P.scale;
  }}"""
    names = ("n", "k", "row_bytes", "y_offset", "y_stride", "count_at", "ids_at", "first")
    return Kernel(
        f"table_rows_{fmt.native_name}",
        (reads("step", "i32"), *weight_bindings(fmt), writes("y")),
        (*u32s(*names, "field1", "field2", "group", "groups"), *f32s("scale")),
        "\n".join([decoder(fmt).named("w"), main(body, THREADS)]),
    )


# 16 numbers of x, and 16 of a row of weights; zeros after the last column.
LOAD_X = """\
fn within(c: u32, q: u32) -> vec4<bool> {
  return (vec4<u32>(0u, 1u, 2u, 3u) + c * 16u + q * 4u) < vec4<u32>(P.k);
}
fn load_x(row: u32, c: u32) -> array<vec4<f32>, 4> {
  var v = array<vec4<f32>, 4>();
  if (c * 16u + 16u <= P.k) {
    for (var q = 0u; q < 4u; q++) { v[q] = x[row + c * 4u + q]; }
  } else {
    for (var q = 0u; q < 4u; q++) {
      if (c * 16u + q * 4u < P.k) { v[q] = select(vec4<f32>(), x[row + c * 4u + q], within(c, q)); }
    }
  }
  return v;
}
fn whole(given: array<vec4<f32>, 4>, c: u32) -> array<vec4<f32>, 4> {
  var v = given;
  if (c * 16u + 16u > P.k) {
    for (var q = 0u; q < 4u; q++) { v[q] = select(vec4<f32>(), v[q], within(c, q)); }
  }
  return v;
}"""
SUM_AT = f"fn sum_at(i: u32, t: u32) -> f32 {{ return part[i * {THREADS}u + t / {LANES}u * {LANES}u]; }}"

"""Products of up to 8 rows of x in 8 bits: packed dot products of four bytes."""

from __future__ import annotations

from functools import cache

from ...formats.spec import Format
from .products import PLAIN, PRODUCT_PARAMETERS, THREADS, Epilogue, begin_few, end_few, product_bindings, rows_of_lanes
from .wgsl import SUBGROUPS, Kernel, main, reads, u32s, writes

BLOCK_WORDS = 9  # of 32 values as bytes, with their scale


@cache
def pack_bytes() -> Kernel:
    """Rows as signed bytes, with a scale for every 32 values: nine words."""
    body = f"""\
  let count = u32(step[P.count_at]);
  let i = block * {THREADS}u + t;
  if (wg.y >= count || i * 32u >= P.k) {{ return; }}
  let at = P.x_offset + wg.y * P.x_stride + i * 32u;
  let end = min(32u, P.k - i * 32u);
  var greatest = 0.0;
  for (var j = 0u; j < end; j++) {{ greatest = max(greatest, abs(x[at + j])); }}
  let d = greatest / 127.0;
  let by = select(127.0 / greatest, 0.0, greatest == 0.0);
  let to = (wg.y * ((P.k + 31u) / 32u) + i) * {BLOCK_WORDS}u;
  for (var q = 0u; q < 8u; q++) {{
    var v = vec4<f32>();
    for (var j = 0u; j < 4u; j++) {{ if (q * 4u + j < end) {{ v[j] = x[at + q * 4u + j]; }} }}
    let codes = vec4<i32>(round(v * by));
    let bytes = bitcast<vec4<u32>>(codes) & vec4<u32>(255u);
    packed[to + q] = bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
  }}
  packed[to + 8u] = bitcast<u32>(d);"""
    bindings = (reads("step", "i32"), reads("x"), writes("packed", "u32"))
    return Kernel("pack_bytes", bindings, u32s("k", "count_at", "x_offset", "x_stride"), main(body, THREADS))


@cache
def few_bytes(fmt: Format, tokens: int, epilogue: Epilogue = PLAIN, subgroups: bool = False) -> Kernel:
    """`few_rows` for rows of `pack_bytes`: dot products of four bytes at once."""
    rows = rows_of_lanes(fmt, tokens, epilogue)
    parts = 2 if epilogue.gated else 1
    count = parts * rows * tokens
    lines = begin_few(tokens, rows, count)
    for n in range(tokens):
        token = f"min(first + {n}u, count - 1u)" if n else "first"
        lines += [
            f"    let b{n} = (({token}) * ((P.k + 31u) / 32u) + c / 2u) * {BLOCK_WORDS}u;",
            f"    let d{n} = bitcast<f32>(x[b{n} + 8u]);",
            *(f"    let x{n}_{q} = x[b{n} + c % 2u * 4u + {q}u];" for q in range(4)),
            f"    let s{n} = " + " + ".join(f"dot4I8Packed(x{n}_{q}, 0x01010101u)" for q in range(4)) + ";",
        ]
    for p in range(parts):
        for r in range(rows):
            row = f"min(row0 + {r}u, P.n - 1u)" + (" + P.n" if p else "")
            lines.append(f"    {{\n      let v = w_packed(({row}) * P.row_bytes, c);")
            for n in range(tokens):
                dots = " + ".join(f"dot4I8Packed(v.words[{q}], x{n}_{q})" for q in range(4))
                total = f"v.scale * f32({dots}) + v.offset * f32(s{n})"
                lines.append(f"      acc{(p * rows + r) * tokens + n} += d{n} * ({total});")
            lines.append("    }")
    body = end_few(fmt, lines, tokens, rows, count, epilogue, subgroups, packed=True)
    bindings = tuple(reads("x", "u32") if b.name == "x" else b for b in product_bindings(fmt, epilogue))
    name = f"few_bytes_{fmt.native_name}_{tokens}{epilogue.name}"
    return Kernel(name, bindings, PRODUCT_PARAMETERS, body, (SUBGROUPS,) if subgroups else ())

"""Products of many tokens with the matrices of their experts, in tiles: tokens of one expert share decoded weights."""

from __future__ import annotations

from functools import cache

from ...formats.spec import Format
from .decoders import decoder
from .products import LANES, LOAD_X, SUM_AT, THREADS, add_lanes, weight_bindings
from .wgsl import SUBGROUPS, Kernel, main, reads, u32s, writes

TILE_TOKENS = 8  # tokens of an expert that share what is decoded
TOKENS_OF_BLOCK = 128  # tokens of a step for which one workgroup goes through all tiles of an expert
GROUPING_THREADS = 256


@cache
def group_tokens() -> Kernel:
    """Pairs of a token and a chosen expert, by expert: `order` holds where those of each expert begin, then all.

    Pairs of an expert stay in the order of the tokens.
    """
    body = f"""\
  let pairs = u32(step[P.count_at]) * P.top_k;
  for (var e = t; e < P.experts; e += {GROUPING_THREADS}u) {{
    var found = 0u;
    for (var i = 0u; i < pairs; i++) {{ found += select(0u, 1u, chosen[i] == e); }}
    order[e + 1u] = found;
  }}
  storageBarrier();
  if (t == 0u) {{
    order[0] = 0u;
    for (var e = 0u; e < P.experts; e++) {{ order[e + 1u] += order[e]; }}
  }}
  storageBarrier();
  for (var e = t; e < P.experts; e += {GROUPING_THREADS}u) {{
    var at = P.experts + 1u + order[e];
    for (var i = 0u; i < pairs; i++) {{ if (chosen[i] == e) {{ order[at] = i; at++; }} }}
  }}"""
    bindings = (reads("step", "i32"), reads("chosen", "u32"), writes("order", "u32"))
    return Kernel("group_tokens", bindings, u32s("count_at", "top_k", "experts"), main(body, GROUPING_THREADS))


def rows_of_lanes(fmt: Format) -> int:
    """Rows of weights that neighbouring lanes decode at once."""
    return 1 if decoder(fmt).is_long else 4


def rows_per_block(fmt: Format) -> int:
    return THREADS // LANES * rows_of_lanes(fmt)


@cache
def expert_tiles(fmt: Format, has_bias: bool, is_first: bool, subgroups: bool = False) -> Kernel:
    """`expert_rows` for pairs that `group_tokens` has sorted.

    A workgroup takes some rows of an expert's matrix, and the expert's tokens in tiles. `is_first`: x has a row for
    each token; else one for each pair.
    """
    rows = rows_of_lanes(fmt)
    x_row = "pair / P.top_k" if is_first else "pair"
    x_at = f"fn x_at(pair: u32) -> u32 {{ return P.x_offset / 4u + ({x_row}) * (P.x_stride / 4u); }}"
    bindings = (
        reads("step", "i32"), *weight_bindings(fmt), reads("x", "vec4<f32>"), reads("order", "u32"), writes("y"),
        *([reads("bias")] if has_bias else []),
    )  # fmt: skip
    names = ("n", "k", "row_bytes", "count_at", "top_k", "experts", "first", "held", "x_offset", "x_stride", "y_stride")
    part = f"var<workgroup> part: array<f32, {rows * TILE_TOKENS * THREADS}>;"
    body = main("\n".join(_tiles(rows, has_bias, subgroups)), THREADS, subgroups)
    text = "\n".join([decoder(fmt).named("w"), LOAD_X, x_at, part, SUM_AT, body])
    name = f"expert_tiles_{fmt.native_name}{'_bias' if has_bias else ''}{'_first' if is_first else ''}"
    parameters = u32s(*names, "field1", "field2", "group", "groups")
    return Kernel(name, bindings, parameters, text, (SUBGROUPS,) if subgroups else ())


def _tiles(rows: int, has_bias: bool, subgroups: bool) -> list[str]:
    """The loop over the tiles of an expert, and that over 16 columns at a time in it."""
    pair = "order[P.experts + 1u + {}]".format
    count = rows * TILE_TOKENS
    row = "(expert * P.n + min(row0 + {}u, P.n - 1u)) * P.row_bytes".format
    return [
        "  let expert = wg.y % P.held;",
        f"  let shares = (u32(step[P.count_at]) + {TOKENS_OF_BLOCK - 1}u) / {TOKENS_OF_BLOCK}u;",
        "  let end = order[expert + P.first + 1u];",
        f"  let lane = t % {LANES}u;",
        f"  let row0 = (block * {THREADS // LANES}u + t / {LANES}u) * {rows}u;",
        f"  var first = order[expert + P.first] + wg.y / P.held * {TILE_TOKENS}u;",
        f"  for (; first < end; first += shares * {TILE_TOKENS}u) {{",
        f"  let here = min({TILE_TOKENS}u, end - first);",
        *(f"  let at{n} = x_at({pair(f'min(first + {n}u, end - 1u)')});" for n in range(TILE_TOKENS)),
        *(f"  var acc{i} = 0.0;" for i in range(count)),
        f"  for (var c = lane; c < (P.k + 15u) / 16u; c += {LANES}u) {{",
        *(f"    let v{r} = whole(w_chunk({row(r)}, c), c);" for r in range(rows)),
        *(_add_token(n, rows) for n in range(TILE_TOKENS)),
        "  }",
        add_lanes(count, subgroups),
        f"  let row = row0 + lane / {TILE_TOKENS}u;",
        f"  let n = lane % {TILE_TOKENS}u;",
        f"  if (lane < {count}u && n < here && row < P.n) {{",
        f"    y[{pair('first + n')} * P.y_stride + row] = sum_at(lane, t)"
        + (" + bias[(expert + P.first) * P.n + row];" if has_bias else ";"),
        "  }",
        "  workgroupBarrier();",
        "  }",
    ]


def _add_token(n: int, rows: int) -> str:
    """Products of one token of a tile, which may have fewer."""
    sums = " ".join(
        f"acc{r * TILE_TOKENS + n} += {' + '.join(f'dot(v{r}[{q}], x[{q}])' for q in range(4))};" for r in range(rows)
    )
    return f"    if (here > {n}u) {{ let x = load_x(at{n}, c); {sums} }}"

"""Draws bars beside a peer and beside a limit, as SVG that is readable on light and on dark pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from html import escape

Number = int | float | Decimal  # shown as they are written
Value = tuple[Number, ...] | None
Rows = dict[str, list[Value]]

WIDTH, LEFT, MIDDLE, RIGHT = 860, 150, 540, 836  # the two panels begin at LEFT and at MIDDLE
GAP = 40  # between the panels
TOP, BAR, SPACE = 108, 13, 12
STYLE = """
svg { font: 12px sans-serif; }
.page { fill: #ffffff; } text { fill: #1f2328; } .faint { fill: #59636e; }
.title { font-size: 15px; font-weight: bold; }
.a { fill: #2f81c8; } .b { fill: #d9822b; } .c { fill: #3d9970; }
.range { stroke: #1f2328; stroke-width: 1.2; } .mark { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117; } text { fill: #e6edf3; } .faint { fill: #9198a1; }
  .range { stroke: #e6edf3; } .mark { stroke: #ff7b72; }
}
"""


def draw(heading: str, peer: str, columns: Sequence[str], beside: Rows, limits: Rows) -> str:
    """Two panels with a group of bars for each column: `beside` with a mark at 1, `limits` with one at 100 %."""
    each = BAR * max(len(beside), len(limits)) + SPACE
    bottom = TOP + each * len(columns)
    other = peer.partition(" (")[0]
    parts = [
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{bottom + 34}"/>',
        text(16, 28, f"Whole models: fewbit beside {other} and the machine's limit", "title"),
        text(16, 48, heading, "faint"),
        *names(columns, each),
        *panel(LEFT, MIDDLE - GAP, beside, "ab", each, mark=1, title=f"times as fast as {other}"),
        *panel(MIDDLE, RIGHT - GAP, limits, "c", each, mark=100, title="share of the limit, %"),
        text(LEFT, bottom + 18, f"bar: median; thin line: range over rounds; dashed: {other}", "faint"),
        text(MIDDLE, bottom + 18, "dashed: a loop that only reads", "faint"),
    ]
    box = f'width="{WIDTH}" height="{bottom + 34}" viewBox="0 0 {WIDTH} {bottom + 34}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">\n' + "\n".join(parts) + "\n</svg>\n"


def names(columns: Sequence[str], each: int) -> Iterator[str]:
    for i, name in enumerate(columns):
        yield text(LEFT - 12, TOP + i * each + (each - SPACE) / 2 + 4, name, anchor="end")


def panel(left: int, right: int, rows: Rows, colours: str, each: int, mark: float, title: str) -> Iterator[str]:
    """Bars, their values, and a dashed line at `mark`."""
    ends = [float(v[-1]) for values in rows.values() for v in values if v]
    scale = (right - left) / max(*ends, mark)
    columns = max((len(values) for values in rows.values()), default=0)
    yield text(left, TOP - 34, title)
    yield from legend(left, rows, colours)
    for (name, values), colour in zip(rows.items(), colours, strict=False):
        offset = BAR * list(rows).index(name) + (each - SPACE - BAR * len(rows)) / 2
        for i, v in enumerate(values):
            if v is not None:
                yield from bar(left, TOP + i * each + offset, scale, v, colour, mark)
    x = left + mark * scale
    yield f'<line class="mark" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{TOP + each * columns - SPACE + 6}"/>'


def legend(left: float, rows: Rows, colours: str) -> Iterator[str]:
    for name, colour in zip(rows, colours, strict=False):
        yield f'<rect class="{colour}" x="{left:.1f}" y="{TOP - 24}" width="10" height="10"/>'
        yield text(left + 15, TOP - 15, name, "faint")
        left += 34 + 6.2 * len(name)


def bar(left: float, y: float, scale: float, v: Sequence[Number], colour: str, mark: float) -> Iterator[str]:
    """As long as the median, or as the middle of a range; the range as a thin line; the number right of the mark."""
    numbers = [float(n) for n in v]
    middle = sum(numbers) / 2 if len(v) == 2 else numbers[0]
    yield f'<rect class="{colour}" x="{left:.1f}" y="{y:.1f}" width="{middle * scale:.1f}" height="{BAR - 2}"/>'
    if len(v) > 1:
        low, high = (left + n * scale for n in numbers[-2:])
        yield f'<line class="range" x1="{low:.1f}" y1="{y + 5.5:.1f}" x2="{high:.1f}" y2="{y + 5.5:.1f}"/>'
    shown = f"{v[0]}-{v[1]}" if len(v) == 2 else f"{v[0]}"
    yield text(left + max(numbers[-1], mark) * scale + 6, y + 10, shown, "faint")


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "") -> str:
    """
    >>> text(1, 2.25, "a < b", "faint")
    '<text x="1" y="2.25" class="faint">a &lt; b</text>'
    """
    given = {"class": kind, "text-anchor": anchor}
    attributes = "".join(f' {key}="{word}"' for key, word in given.items() if word)
    return f'<text x="{x:.4g}" y="{y:.4g}"{attributes}>{escape(content)}</text>'

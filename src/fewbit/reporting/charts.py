"""The charts of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .axes import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, Frame, frame, linear_axis, log_axis, short
from .svg import Drawing, color

LEGEND_LINE = 18.0
NAME_LINE, NAME_WIDTH = 13.0, 150.0  # of the name of a point
CELL = 15.0  # of a heat map


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a scatter plot, with its name."""

    name: str
    x: float
    y: float


def scatter(title: str, points: Sequence[Point], x_name: str, y_name: str) -> Drawing:
    """Named points; the values of y have a logarithmic axis."""
    x, y = linear_axis(x_name, [p.x for p in points]), log_axis(y_name, [p.y for p in points])
    chart = frame(title, x, y)
    taken: list[tuple[float, float]] = []
    for index, point in enumerate(points):
        at, up = chart.place(point.x, point.y)
        hint = f"{point.name}: {x_name} {short(point.x)}, {y_name} {short(point.y)}"
        chart.drawing.dot(at, up, color(index), hint)
        is_right = at > WIDTH * 0.7
        line = _free_line(at, up + 4, taken)
        taken.append((at, line))
        chart.drawing.label(at + (-9 if is_right else 9), line, point.name, "end" if is_right else "start")
    return chart.drawing


def _free_line(at: float, wanted: float, taken: Sequence[tuple[float, float]]) -> float:
    """The nearest height for a name at which it covers no other."""
    offsets = sorted(range(-30, 31), key=abs)
    for line in (wanted + NAME_LINE * offset for offset in offsets):
        if TOP + 8 <= line <= HEIGHT - BOTTOM and all(
            abs(line - other) >= NAME_LINE or abs(at - place) >= NAME_WIDTH for place, other in taken
        ):
            return line
    return wanted


def lines(
    title: str, series: Mapping[str, Sequence[tuple[float, float]]], x: Axis, y: Axis, x_names: Sequence[str] = ()
) -> Drawing:
    """A line for each series, with a legend below."""
    chart = frame(title, x, y, x_names)
    for index, (name, points) in enumerate(series.items()):
        places = [chart.place(*point) for point in points if math.isfinite(point[1])]
        if len(places) > 1:
            chart.drawing.path(places, color(index))
        for (at, up), (value, height) in zip(places, points, strict=False):
            hint = f"{name}: {x.name} {_named(value, x, x_names)}, {y.name} {short(height)}"
            chart.drawing.dot(at, up, color(index), hint, 3.0)
    _legend(chart, list(series))
    return chart.drawing


def _named(value: float, x: Axis, names: Sequence[str]) -> str:
    return names[x.ticks.index(value)] if names and value in x.ticks else short(value)


def _legend(chart: Frame, names: Sequence[str]) -> None:
    """Names of series below the chart, in rows."""
    drawing, at, line = chart.drawing, LEFT, HEIGHT + 12
    for index, name in enumerate(names):
        width = 30 + 6.6 * len(name)
        if at > LEFT and at + width > WIDTH - RIGHT:
            at, line = LEFT, line + LEGEND_LINE
        drawing.bar(at, line - 9, 12, 10, color(index))
        drawing.label(at + 17, line, name)
        at += width
    drawing.height = line + 10


def heat_map(
    title: str, rows: Sequence[str], columns: Sequence[str], values: Mapping[tuple[str, str], float]
) -> Drawing:
    """A cell for each value, the stronger the larger; hints say the values."""
    left = 12 + 6.6 * max(map(len, rows), default=0)
    width = max(3.0, min(CELL, (WIDTH - left - RIGHT) / max(1, len(columns))))
    drawing = Drawing(WIDTH, TOP + len(rows) * CELL + 40, title)
    top = max(values.values(), default=1.0) or 1.0
    for line, row in enumerate(rows):
        up = TOP + line * CELL
        drawing.label(left - 6, up + 11, row, "end", "tick")
        for place, column in enumerate(columns):
            if (row, column) in values:
                value = values[row, column]
                hint = f"{row}, layer {column}: {short(value)}"
                drawing.bar(
                    left + place * width, up, width - 1, CELL - 1, "var(--heat)", hint, 0.06 + 0.94 * value / top
                )
    bottom = TOP + len(rows) * CELL
    every = max(1, -(-len(columns) // 16))
    for place in range(0, len(columns), every):
        drawing.label(left + (place + 0.5) * width, bottom + 13, columns[place], "middle", "tick")
    drawing.label(left, bottom + 32, f"layer; a full cell is {short(top)}", kind="label")
    return drawing


def histogram(title: str, x_name: str, places: Sequence[float], series: Mapping[str, Sequence[float]]) -> Drawing:
    """Shares of values, as bars for one series and as lines for several. Their axis is logarithmic."""
    shares = [share for values in series.values() for share in values if share > 0]
    low = max(min(shares, default=0.01), 1e-6)
    y = log_axis("share", [low, max(shares, default=1.0)])
    step = places[1] - places[0] if len(places) > 1 else 1.0
    x = linear_axis(x_name, [places[0] - step / 2, places[-1] + step / 2], zero=False)
    if len(series) > 1:
        kept = {
            name: [(at, share) for at, share in zip(places, values, strict=True) if share >= low]
            for name, values in series.items()
        }
        return lines(title, kept, x, y)
    chart = frame(title, x, y)
    ((name, values),) = series.items()
    for at, share in zip(places, values, strict=True):
        if share >= low:
            begin, up = chart.place(at - 0.42 * step, share)
            end, down = chart.place(at + 0.42 * step, y.low)
            chart.drawing.bar(begin, up, end - begin, down - up, color(0), f"{name} {short(at)}: {100 * share:.3g}%")
    return chart.drawing

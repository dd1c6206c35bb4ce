"""Scales and axes of charts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .svg import Drawing

WIDTH, HEIGHT = 720.0, 340.0
LEFT, RIGHT, TOP, BOTTOM = 66.0, 16.0, 14.0, 46.0


@dataclass(frozen=True, slots=True)
class Axis:
    """Values along one side of a chart.

    Args:
        name: What they are.
        low: The value at its begin.
        high: The value at its end.
        ticks: Values that are written beside it.
        is_log: Whether equal ratios have equal distances.
    """

    name: str
    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def share(self, value: float) -> float:
        """Where a value is: 0 at the begin, 1 at the end."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        return (value - low) / (high - low)


def linear_axis(name: str, values: Iterable[float], *, zero: bool = True) -> Axis:
    """An axis with about five round ticks.

    >>> linear_axis("size", [3, 97]).ticks
    (0.0, 20.0, 40.0, 60.0, 80.0, 100.0)
    """
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = (min(0.0, *known) if zero else min(known)), max(known)
    high = high if high > low else low + 1
    rough = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * n for n in (1, 2, 2.5, 5, 10) if size * n >= rough * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return Axis(name, first * step, last * step, tuple(round(n * step, 12) for n in range(first, last + 1)))


def log_axis(name: str, values: Iterable[float]) -> Axis:
    """An axis of whole powers of ten around positive values.

    >>> log_axis("KL", [0.004, 0.2]).ticks
    (0.001, 0.01, 0.1, 1.0)
    """
    known = [value for value in values if value > 0 and math.isfinite(value)] or [0.1, 1.0]
    first, last = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    last = max(last, first + 1)
    return Axis(name, 10.0**first, 10.0**last, tuple(10.0**n for n in range(first, last + 1)), is_log=True)


@dataclass(frozen=True, slots=True)
class Frame:
    """A chart's canvas with two axes."""

    drawing: Drawing
    x: Axis
    y: Axis

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is on the canvas."""
        width, height = self.drawing.width - LEFT - RIGHT, self.drawing.height - TOP - BOTTOM
        return LEFT + self.x.share(x) * width, TOP + (1 - self.y.share(y)) * height


def frame(title: str, x: Axis, y: Axis, x_names: Sequence[str] = (), height: float = HEIGHT) -> Frame:
    """An empty chart with its grid; `x_names` are written in the place of the ticks."""
    chart = Frame(Drawing(WIDTH, height, title), x, y)
    drawing, bottom = chart.drawing, height - BOTTOM
    for tick in y.ticks:
        _, at = chart.place(x.low, tick)
        drawing.line(LEFT, at, WIDTH - RIGHT, at)
        drawing.label(LEFT - 8, at + 4, short(tick), "end", "tick")
    for index, tick in enumerate(x.ticks):
        at, _ = chart.place(tick, y.low)
        drawing.line(at, bottom, at, bottom + 4, "axis")
        drawing.label(at, bottom + 17, x_names[index] if x_names else short(tick), "middle", "tick")
    drawing.line(LEFT, bottom, WIDTH - RIGHT, bottom, "axis")
    drawing.label((LEFT + WIDTH - RIGHT) / 2, height - 10, x.name, "middle")
    drawing.add("text", y.name, x=14.0, y=float((TOP + bottom) / 2), text_anchor="middle", kind="label",
                transform=f"rotate(-90 14 {(TOP + bottom) / 2:.0f})")  # fmt: skip
    return chart


def short(value: float) -> str:
    """A number in few characters.

    >>> [short(value) for value in (0, 1200, 0.25, 0.0001, 3.0)]
    ['0', '1200', '0.25', '0.0001', '3']
    """
    return f"{value:.4g}"

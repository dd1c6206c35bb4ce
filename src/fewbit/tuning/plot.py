"""The page with the losses of a training run."""

from __future__ import annotations

from html import escape

from ..reporting.axes import linear_axis
from ..reporting.charts import lines
from ..reporting.page import CSS
from ..reporting.svg import STYLES, themes
from .trainer import Curve


def loss_page(title: str, curve: Curve) -> str:
    """An HTML page without scripts: the loss of each step, and that on held-out examples."""
    training = [(float(step), loss) for step, loss in enumerate(curve.losses, 1)]
    series = {"training": training}
    if curve.held_out:
        series["held out"] = [(float(step), loss) for step, loss in curve.held_out]
    points = [point for values in series.values() for point in values]
    axes = linear_axis("step", [x for x, _ in points]), linear_axis("loss", [y for _, y in points])
    drawing = lines("Loss by step", series, *axes)
    head = f"<title>{escape(title)}</title><style>{themes(':root')}{CSS}{STYLES}</style>"
    body = f'<h1>{escape(title)}</h1><figure><div class="wide">{drawing.markup()}</div></figure>'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<link rel="icon" href="data:,">{head}</head><body><main>{body}</main></body></html>\n'
    )

"""Which charts a report has, and what they show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .axes import Axis, linear_axis, log_axis
from .charts import Point, heat_map, histogram, lines, scatter
from .svg import Drawing
from .weights import BINS, REACH, TensorLoss, by_layer, code_range

if TYPE_CHECKING:
    from .measuring import ModelReport, Report

SECTIONS = ("Size and loss", "Loss by layer", "Weights and codes", "KV cache")
MOST_CODES = 64  # of a format whose histogram is drawn


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: the name of its file, its section, what it shows, and the drawing."""

    name: str
    section: str
    caption: str
    drawing: Drawing


def draw_all(report: Report) -> list[Chart]:
    """All charts for which there are figures."""
    makers = (_size_charts, _layer_charts, _weight_charts, _kv_charts)
    return [chart for make, section in zip(makers, SECTIONS, strict=True) for chart in make(report, section)]


def _size_charts(report: Report, section: str) -> Iterator[Chart]:
    points = []
    for model in report.models:
        found = model.evaluation.divergence if model.evaluation else None
        if found is not None and found.mean > 0:
            points.append(Point(model.name, model.file_bytes / 1e6, found.mean))
    if points:
        caption = "Size of the file and mean KL divergence from the reference. Lower and further left is better."
        yield Chart("size-kl", section, caption, scatter("Size against KL divergence", points, "size, MB", "KL, nats"))


def _layer_charts(report: Report, section: str) -> Iterator[Chart]:
    texts = {
        "error": ("weight error", "Relative error of weights by layer: root mean square over the layer's matrices."),
        "effect": ("output error", "Relative error of outputs by layer, with inputs as in the text."),
    }
    for figure, (name, caption) in texts.items():
        series = {model.name: [*by_layer(model.weights.losses, figure).items()] for model in report.models}
        known = {model: [(float(x), y) for x, y in points] for model, points in series.items() if points}
        if known:
            x = linear_axis("layer", [x for points in known.values() for x, _ in points])
            y = linear_axis(name, [y for points in known.values() for _, y in points])
            yield Chart(f"layers-{figure}", section, caption, lines(caption, known, x, y))
    for number, model in enumerate(report.models):
        if model.weights.losses:
            yield _heat(model, number, section)


def _heat(model: ModelReport, number: int, section: str) -> Chart:
    """Errors of all matrices of a model."""
    losses = [loss for loss in model.weights.losses if loss.layer is not None]
    figure = "effect" if losses and losses[0].effect is not None else "error"
    kinds = list(dict.fromkeys(loss.kind for loss in losses))
    layers = [str(layer) for layer in sorted({loss.layer for loss in losses if loss.layer is not None})]
    values = {(loss.kind, str(loss.layer)): value_of(loss, figure) for loss in losses}
    what = "outputs" if figure == "effect" else "weights"
    caption = f"{model.name}: relative error of {what} of each matrix."
    return Chart(f"tensors-{number}", section, caption, heat_map(caption, kinds, layers, values))


def value_of(loss: TensorLoss, figure: str) -> float:
    value = getattr(loss, figure)
    return 0.0 if value is None else float(value)


def _weight_charts(report: Report, section: str) -> Iterator[Chart]:
    edges = np.linspace(-REACH, REACH, BINS + 1)
    places = ((edges[1:] + edges[:-1]) / 2).tolist()
    shares = {m.name: (m.weights.weights / max(1.0, m.weights.weights.sum())).tolist() for m in report.models}
    caption = "Weights of sampled rows, in standard deviations of their matrix."
    yield Chart("weights", section, caption, histogram(caption, "standard deviations", places, shares))
    for number, model in enumerate(report.models):
        for name, counts in model.weights.codes.items():
            codes = code_range(name, counts)
            if 2 <= len(codes) <= MOST_CODES:
                yield _codes(model, number, name, counts, codes, section)


def _codes(
    model: ModelReport, number: int, name: str, counts: dict[int, int], codes: Sequence[int], section: str
) -> Chart:
    """How often each code of a format occurs."""
    total = sum(counts.values())
    caption = f"{model.name}: codes of {name}."
    shares = [counts.get(code, 0) / total for code in codes]
    drawing = histogram(caption, "code", [float(code) for code in codes], {name: shares})
    return Chart(f"codes-{number}-{name}", section, caption, drawing)


def _kv_charts(report: Report, section: str) -> Iterator[Chart]:
    series = {}
    for one in report.kv:
        parts = [(begin, part.divergence) for (begin, _), part in one.by_depth().items()]
        series[one.kv] = [(float(begin), float(values.mean())) for begin, values in parts if values is not None]
    if not any(series.values()):
        return
    begins = sorted({begin for points in series.values() for begin, _ in points})
    order = {begin: float(place) for place, begin in enumerate(begins)}
    placed = {kv: [(order[begin], max(value, 1e-9)) for begin, value in points] for kv, points in series.items()}
    names = [f"{begin:.0f}+" for begin in begins]
    x = Axis("tokens before", -0.3, len(begins) - 0.7, tuple(order.values()))
    y = log_axis("KL, nats", [value for points in placed.values() for _, value in points])
    name = report.models[0].name
    caption = f"{name}: KL divergence from itself with K and V in f16, by the number of tokens before."
    yield Chart("kv-depth", section, caption, lines(caption, placed, x, y, names))

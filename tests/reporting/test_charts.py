"""Drawings and axes."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from fewbit.reporting.axes import frame, linear_axis, log_axis
from fewbit.reporting.charts import Point, heat_map, histogram, lines, scatter
from fewbit.reporting.svg import DARK, LIGHT, SERIES, Drawing, themes

SVG = "{http://www.w3.org/2000/svg}"


def parsed(drawing: Drawing) -> ElementTree.Element:
    """A drawing is well-formed, alone and in a page, and every shape is on its canvas."""
    ElementTree.fromstring(drawing.standalone())
    root = ElementTree.fromstring(drawing.markup())
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for shape in root.iter():
        for name, most in (("x", width), ("cx", width), ("x2", width), ("y", height), ("cy", height), ("y2", height)):
            if name in shape.attrib and shape.attrib[name] != "100%":
                assert 0 <= float(shape.attrib[name]) <= most, ElementTree.tostring(shape)
    return root


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


@pytest.mark.parametrize(
    "values", [[0.0], [5, 5], [1e-7, 3e-7], [0, 1e9], [-3, 4], [float("nan"), 2.0], [], [float("inf")]]
)
def test_axes_hold_their_values(values: list[float]) -> None:
    axis = linear_axis("x", values)
    assert 2 <= len(axis.ticks) <= 12
    assert all(-1e-9 <= axis.share(value) <= 1 + 1e-9 for value in values if abs(value) < 1e300)
    ticks = [axis.share(tick) for tick in axis.ticks]
    assert ticks[0] == pytest.approx(0)
    assert ticks[-1] == pytest.approx(1)


@pytest.mark.parametrize("values", [[1.0], [1e-5, 2.0], [0.3, 0.4], [], [0.0]])
def test_logarithmic_axes(values: list[float]) -> None:
    axis = log_axis("y", values)
    assert [axis.share(tick) for tick in axis.ticks] == pytest.approx(
        [n / (len(axis.ticks) - 1) for n in range(len(axis.ticks))]
    )
    assert all(0 <= axis.share(value) <= 1 + 1e-9 for value in values)
    assert axis.share(0) == 0  # what cannot be shown is at the bottom


def test_points_are_where_their_values_are() -> None:
    x, y = linear_axis("x", [0, 10]), linear_axis("y", [0, 10])
    chart = frame("a", x, y)
    (left, low), (right, high) = chart.place(0, 0), chart.place(10, 10)
    assert chart.place(5, 5) == ((left + right) / 2, (low + high) / 2)
    assert high < low


def test_a_scatter_plot_names_its_points() -> None:
    points = [Point(f"model <{n}>", 100.0 + n, 0.01) for n in range(9)]
    root = parsed(scatter("Sizes", points, "size", "KL"))
    assert [text for text in texts(root) if text.startswith("model")] == [point.name for point in points]
    assert len(list(root.iter(f"{SVG}circle"))) == 9
    heights = [float(e.attrib["y"]) for e in root.iter(f"{SVG}text") if (e.text or "").startswith("model")]
    assert len(set(heights)) == 9  # no name covers another


def test_lines_have_a_legend_and_hints() -> None:
    series = {f"a rather long name of a model, number {n}": [(0.0, 1.0), (1.0, 2.0)] for n in range(8)}
    drawing = lines("Lines", series, linear_axis("x", [0, 1]), linear_axis("y", [0, 2]), ())
    root = parsed(drawing)
    assert [text for text in texts(root) if text.startswith("a rather")] == list(series)
    assert len(list(root.iter(f"{SVG}path"))) == 8
    hints = [element.text for element in root.iter(f"{SVG}title")]
    assert "a rather long name of a model, number 3: x 1, y 2" in hints


def test_values_that_are_not_finite_are_left_out() -> None:
    series = {"a": [(0.0, float("nan")), (1.0, 1.0)], "b": []}
    root = parsed(lines("Lines", series, linear_axis("x", [0, 1]), linear_axis("y", [0, 1])))
    assert len(list(root.iter(f"{SVG}circle"))) == 1
    assert not list(root.iter(f"{SVG}path"))


@pytest.mark.parametrize("layers", [1, 6, 96])
def test_heat_maps(layers: int) -> None:
    columns = [str(n) for n in range(layers)]
    values = {(row, column): 0.1 * int(column) for row in ("attn_q", "ffn_down") for column in columns}
    del values["ffn_down", "0"]
    root = parsed(heat_map("Errors", ["attn_q", "ffn_down"], columns, values))
    cells = list(root.iter(f"{SVG}rect"))
    assert len(cells) == 2 * layers - 1
    opacity = [float(cell.attrib["fill-opacity"]) for cell in cells[:layers]]
    assert opacity == sorted(opacity)


def test_histograms() -> None:
    root = parsed(histogram("Codes", "code", [0.0, 1.0, 2.0], {"q": [0.5, 0.0, 0.5]}))
    assert len(list(root.iter(f"{SVG}rect"))) == 2
    several = parsed(histogram("Weights", "sd", [0.0, 1.0, 2.0], {"a": [0.5, 0.2, 0.3], "b": [0.1, 0.0, 0.9]}))
    assert len(list(several.iter(f"{SVG}path"))) == 2


def test_nothing_is_fetched_and_both_themes_have_all_colors() -> None:
    text = scatter("a", [Point("b", 1, 1)], "x", "y").standalone()
    assert re.findall(r"https?://(?!www\.w3\.org/)|url\(|@import|<script", text) == []
    used = set(re.findall(r"var\(--([\w-]+)\)", text + themes(":root"))) | {f"series-{n}" for n in range(SERIES)}
    assert used <= set(LIGHT)
    assert set(LIGHT) == set(DARK)

"""Draws SVG: shapes as text. Colors are CSS variables, so that a page or a file can have a dark theme."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

SERIES = 6  # colors of series, --series-0 and so on

LIGHT = {
    "paper": "#ffffff", "ink": "#1d2129", "faint": "#667080", "grid": "#dfe3e9", "heat": "#c2410c",
    "series-0": "#2563b8", "series-1": "#c2410c", "series-2": "#15803d", "series-3": "#7c3aed",
    "series-4": "#a16207", "series-5": "#be185d",
}  # fmt: skip
DARK = {
    "paper": "#14171c", "ink": "#e7eaef", "faint": "#9aa4b2", "grid": "#2c323c", "heat": "#fb923c",
    "series-0": "#7cb0f5", "series-1": "#fb923c", "series-2": "#5fd08a", "series-3": "#b79cf7",
    "series-4": "#e5c04a", "series-5": "#f58ab8",
}  # fmt: skip


def themes(selector: str) -> str:
    """The CSS variables of both themes.

    >>> themes("svg").startswith("svg { --paper: #ffffff;")
    True
    """
    light, dark = (" ".join(f"--{name}: {color};" for name, color in theme.items()) for theme in (LIGHT, DARK))
    return f"{selector} {{ {light} }}\n@media (prefers-color-scheme: dark) {{ {selector} {{ {dark} }} }}"


def color(series: int) -> str:
    """
    >>> color(7)
    'var(--series-1)'
    """
    return f"var(--series-{series % SERIES})"


def number(value: float) -> str:
    """A coordinate.

    >>> number(2.0), number(1 / 3)
    ('2', '0.33')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


@dataclass
class Drawing:
    """Shapes on a canvas.

    Args:
        width: Of the canvas.
        height: Of the canvas.
        title: What it shows, for those who cannot see it.
    """

    width: float
    height: float
    title: str
    shapes: list[str] = field(default_factory=list)

    def add(self, name: str, text: str = "", hint: str = "", **attributes: object) -> None:
        """Add an element.

        Args:
            name: Its name.
            text: Text inside.
            hint: Shown while the pointer is over it.
            attributes: Its attributes, with _ for -; `kind` is its class.
        """
        given = {key.replace("_", "-").replace("kind", "class"): value for key, value in attributes.items()}
        texts = {key: number(value) if isinstance(value, float) else str(value) for key, value in given.items()}
        pairs = "".join(f' {key}="{escape(value)}"' for key, value in texts.items())
        inner = (f"<title>{escape(hint)}</title>" if hint else "") + escape(text)
        self.shapes.append(f"<{name}{pairs}>{inner}</{name}>" if inner else f"<{name}{pairs}/>")

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> None:
        self.add("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), kind=kind)

    def label(self, x: float, y: float, text: str, anchor: str = "start", kind: str = "label") -> None:
        self.add("text", text, x=float(x), y=float(y), text_anchor=anchor, kind=kind)

    def path(self, points: Iterable[Sequence[float]], stroke: str) -> None:
        """A line through points."""
        places = " L".join(f"{number(x)} {number(y)}" for x, y in points)
        self.add("path", d=f"M{places}", fill="none", stroke=stroke, stroke_width=2, stroke_linejoin="round")

    def dot(self, x: float, y: float, fill: str, hint: str, radius: float = 4.5) -> None:
        self.add("circle", cx=float(x), cy=float(y), r=radius, fill=fill, hint=hint)

    def bar(
        self, x: float, y: float, width: float, height: float, fill: str, hint: str = "", opacity: float = 1
    ) -> None:
        self.add("rect", x=float(x), y=float(y), width=float(width), height=float(height), fill=fill,
                 fill_opacity=float(opacity), hint=hint)  # fmt: skip

    def markup(self) -> str:
        """The element, for a page that has the colors and the styles."""
        size = f'viewBox="0 0 {number(self.width)} {number(self.height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(self.title)}">'
        return f"{head}<title>{escape(self.title)}</title>{''.join(self.shapes)}</svg>"

    def standalone(self) -> str:
        """A file of its own."""
        size = f' width="{number(self.width)}" height="{number(self.height)}"'
        paper = '<rect width="100%" height="100%" fill="var(--paper)"/>'
        head, rest = self.markup().split(">", 1)
        return f"{head}{size}><style>{themes('svg')}\n{STYLES}</style>{paper}{rest}\n"


STYLES = """svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg text.tick { fill: var(--faint); font-size: 11px; }
svg text.head { font-weight: 600; }
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .axis { stroke: var(--faint); stroke-width: 1; }"""

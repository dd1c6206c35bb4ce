"""Draws a roofline of fb.linear: what the kernels reach, below what the memory and the multipliers give.

    python benchmarks/roofline.py --out docs/roofline.svg
    python benchmarks/roofline.py --out q6_k.svg --format q6_k --shape 14336x4096 --batch 1,8,64 --json q6_k.json
    python benchmarks/roofline.py --out q6_k.svg --from q6_k.json

Each point is a batch size. It lies to the right where more is computed for each byte of packed weights, the only bytes
that are counted, and higher where more is computed in a second; a multiply-add counts as two operations. The slanted
roof is a plain loop that reads the weights, the flat ones are multiplications of values that are in registers already.
Each point and each roof is a median over the rounds. The machine must be idle.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from statistics import median

from option_types import batch_option, count_option, shape_option

from fewbit.bench.kernels import KernelCase, Timing, run
from fewbit.bench.machine import cpu_name
from fewbit.errors import FewbitError
from fewbit.formats import Format, get
from fewbit.ops import cpu

FORMATS = ["q4_k", "q8_0"]
BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 512]
PEAKS = ["int8", "bf16"]
PEAK_SECONDS = 0.1

WIDTH, HEIGHT = 880, 580
LEFT, RIGHT, TOP, BOTTOM = 84, 740, 96, 516
INK, FAINT, ROOF = "#222222", "#dddddd", "#555555"
COLOURS = ["#0060a8", "#c44e00", "#00795a", "#a8327d", "#6b4fbb", "#8a6d00"]
FONT_SIZE = 12
LETTER = 0.6 * FONT_SIZE  # about as wide as one is
RADIUS = 3.5
PEAK_LABEL_HEIGHT = 32  # two lines
LABEL_PLACES = [(0, 17), (0, -9), (10, 14), (-10, -7), (13, 4), (-13, 4)]  # of a batch size, from its point

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Measured:
    timings: list[Timing]
    peaks: dict[str, float]  # GFLOP/s; without those that the instruction set does not have
    heading: str

    @property
    def read_gb_per_s(self) -> float:
        return median(t.read_gb_per_s for t in self.timings)

    def series(self) -> dict[str, list[Timing]]:
        """The timings of each format, by batch size."""
        names = dict.fromkeys(t.format for t in self.timings)
        return {name: sorted((t for t in self.timings if t.format == name), key=intensity) for name in names}


@dataclass(frozen=True)
class Axis:
    """A logarithmic one, from one power of ten to another."""

    low: int  # exponents
    high: int
    start: float  # where they lie in the picture
    end: float

    def at(self, value: float) -> float:
        return self.start + (math.log10(value) - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        return [10.0**e for e in range(self.low, self.high + 1)]


def intensity(t: Timing) -> float:
    """FLOP for each byte of packed weights."""
    return t.gflop_per_s / t.weights_gb_per_s


def axis(values: Iterable[float], start: float, end: float) -> Axis:
    """One that has room for all values.

    >>> axis([3, 250], 0, 100).ticks()
    [1.0, 10.0, 100.0, 1000.0]
    """
    logs = [math.log10(v) for v in values]
    low = math.floor(min(logs))
    return Axis(low, max(low + 1, math.ceil(max(logs))), start, end)


def axes(m: Measured) -> tuple[Axis, Axis]:
    """For the points and for the corners of the roofs."""
    read, peaks = m.read_gb_per_s, list(m.peaks.values())
    across = [intensity(t) for t in m.timings]
    up = [t.gflop_per_s for t in m.timings]
    x = axis([*across, *(p / read for p in peaks)], LEFT, RIGHT)
    return x, axis([*up, *peaks, read * min(across)], BOTTOM, TOP)


def element(name: str, content: str = "", **attributes: str | float) -> str:
    """
    >>> element("text", "8", x=1.25, font_size=12)
    '<text x="1.2" font-size="12">8</text>'
    """
    given = {key.replace("_", "-"): f"{v:.1f}" if isinstance(v, float) else v for key, v in attributes.items()}
    opening = " ".join([name, *(f'{key}="{value}"' for key, value in given.items())])
    return f"<{opening}>{content}</{name}>" if content else f"<{opening}/>"


def text(x: float, y: float, words: str, **attributes: str | float) -> str:
    return element("text", escape(words), x=x, y=y, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float = 1) -> str:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, stroke_width=width)


def rounded(value: float) -> str:
    """Three digits and commas, for ticks and rates.

    >>> rounded(0.1), rounded(21.44), rounded(10000)
    ('0.1', '21.4', '10,000')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def frame(x: Axis, y: Axis) -> Iterator[str]:
    """Both axes, with a line across the plot at each power of ten."""
    for tick in x.ticks():
        yield line(x.at(tick), BOTTOM, x.at(tick), TOP, FAINT)
        yield text(x.at(tick), BOTTOM + 20, rounded(tick), text_anchor="middle")
    for tick in y.ticks():
        yield line(LEFT, y.at(tick), RIGHT, y.at(tick), FAINT)
        yield text(LEFT - 8, y.at(tick) + 4, rounded(tick), text_anchor="end")
    yield line(LEFT, BOTTOM, RIGHT, BOTTOM, INK)
    yield line(LEFT, BOTTOM, LEFT, TOP, INK)
    middle = (TOP + BOTTOM) / 2
    yield text((LEFT + RIGHT) / 2, BOTTOM + 46, "FLOP for each byte of packed weights", text_anchor="middle")
    yield text(22, middle, "GFLOP/s", text_anchor="middle", transform=f"rotate(-90 22 {middle:g})")


def read_roof(m: Measured, x: Axis, y: Axis) -> Iterator[str]:
    read = m.read_gb_per_s
    first = max(10.0**x.low, 10.0**y.low / read)
    last = min(10.0**x.high, max(m.peaks.values(), default=10.0**y.high) / read)
    x1, y1, x2, y2 = x.at(first), y.at(first * read), x.at(last), y.at(last * read)
    yield line(x1, y1, x2, y2, ROOF, 1.5)
    angle = math.degrees(math.atan2(y2 - y1, x2 - x1))
    placed = f"translate({x2:.1f} {y2:.1f}) rotate({angle:.1f})"
    yield text(-12, -7, f"memory, {rounded(read)} GB/s", fill=ROOF, text_anchor="end", transform=placed)


def peak_roofs(m: Measured, x: Axis, y: Axis) -> Iterator[str]:
    """Flat lines, told to the right of the plot; what is told of a lower one makes way for that of a higher one."""
    free = -math.inf
    for name, peak in sorted(m.peaks.items(), key=lambda item: -item[1]):
        height = y.at(peak)
        yield line(x.at(peak / m.read_gb_per_s), height, RIGHT, height, ROOF, 1.5)
        at = max(height, free)
        yield text(RIGHT + 8, at - 2, f"{name} peak", fill=ROOF)
        yield text(RIGHT + 8, at + 12, f"{rounded(peak)} GFLOP/s", fill=ROOF)
        free = at + PEAK_LABEL_HEIGHT


def told(t: Timing) -> str:
    return (
        f"{t.format}, batch {t.batch}: {rounded(t.gflop_per_s)} GFLOP/s, {100 * t.share_of_peak:.0f} % of the {t.peak} "
        f"peak; reads {rounded(t.weights_gb_per_s)} GB/s, {100 * t.share_of_read:.0f} % of a plain loop; "
        f"kernel {t.kernel}"
    )


def curves(m: Measured, x: Axis, y: Axis) -> Iterator[str]:
    """A line, points and batch sizes for each format."""
    series = [[(x.at(intensity(t)), y.at(t.gflop_per_s), t) for t in ts] for ts in m.series().values()]
    taken = [around(px, py, 2 * RADIUS, 2 * RADIUS) for points in series for px, py, _ in points]
    for points, colour in zip(series, itertools.cycle(COLOURS), strict=False):
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py, _ in points)
        yield element("polyline", points=path, fill="none", stroke=colour, stroke_width=2)
    for points, colour in zip(series, itertools.cycle(COLOURS), strict=False):
        for px, py, t in points:
            yield element("circle", element("title", escape(told(t))), cx=px, cy=py, r=RADIUS, fill=colour)
        yield from batch_labels(points, colour, taken)


def batch_labels(points: list[tuple[float, float, Timing]], colour: str, taken: list[Box]) -> Iterator[str]:
    """Next to each point where there is room, and next to every second one in any case."""
    left_out = True
    for px, py, t in points:
        places = [(px + dx, py + dy) for dx, dy in LABEL_PLACES]
        boxes = [around(lx, ly - 4, len(str(t.batch)) * LETTER, FONT_SIZE) for lx, ly in places]
        free = [i for i, box in enumerate(boxes) if not any(overlap(box, other) for other in taken)]
        if left_out and not free:
            free = [0]
        left_out = not free
        if free:
            taken.append(boxes[free[0]])
            lx, ly = places[free[0]]
            halo = {"paint_order": "stroke", "stroke": "#ffffff", "stroke_width": "3", "stroke_linejoin": "round"}
            yield text(lx, ly, str(t.batch), text_anchor="middle", fill=colour, font_size=FONT_SIZE - 1, **halo)


def around(x: float, y: float, width: float, height: float) -> Box:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def legend(names: Iterable[str]) -> Iterator[str]:
    """In a row above the plot."""
    at = float(LEFT)
    for name, colour in zip(names, itertools.cycle(COLOURS), strict=False):
        yield line(at, TOP - 20, at + 24, TOP - 20, colour, 2)
        yield element("circle", cx=at + 12, cy=TOP - 20, r=RADIUS, fill=colour)
        yield text(at + 30, TOP - 16, name)
        at += 54 + LETTER * len(name)
    yield text(at, TOP - 16, "numbers at the points: batch size", fill=ROOF)


def draw(m: Measured) -> str:
    """The whole picture, on white: text in dark ink is then readable on every page."""
    x, y = axes(m)
    first = m.timings[0]
    parts = [
        element("rect", width=WIDTH, height=HEIGHT, fill="#ffffff"),
        text(LEFT, 28, m.heading, font_size=16, font_weight="bold"),
        text(LEFT, 50, f"linear by packed weights of {first.n} x {first.k}, read from memory"),
        *legend(m.series()),
        *frame(x, y),
        *read_roof(m, x, y),
        *peak_roofs(m, x, y),
        *curves(m, x, y),
    ]
    return element(
        "svg",
        "\n" + "\n".join(parts) + "\n",
        xmlns="http://www.w3.org/2000/svg",
        width=WIDTH,
        height=HEIGHT,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        font_family="sans-serif",
        font_size=FONT_SIZE,
        fill=INK,
    )


def measure(args: argparse.Namespace) -> Measured:
    n, k = args.shape
    cases = [KernelCase(fmt, n, k, batch, args.threads) for fmt, batch in itertools.product(args.format, args.batch)]
    timings = []
    for case in cases:
        timings.append(run(case, args.rounds))
        print(told(timings[-1]), flush=True)
    gflop = {name: 2e-9 * multiply_rate(name, args.threads, args.rounds) for name in PEAKS}
    threads = f"{args.threads} thread{'s' if args.threads > 1 else ''}"
    return Measured(timings, {name: p for name, p in gflop.items() if p > 0}, f"{cpu_name()}, {cpu.isa()}, {threads}")


def multiply_rate(name: str, threads: int, rounds: int) -> float:
    return median(cpu.multiply_rate(name, threads, PEAK_SECONDS) for _ in range(rounds))


def load(path: Path) -> Measured:
    """What --json wrote."""
    try:
        data = json.loads(path.read_text())
        timings = [Timing(**row) for row in data["timings"]]
        found = Measured(timings, {name: p for name, p in data["peaks"].items() if p > 0}, data["heading"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise SystemExit(f"{path} cannot be read as a file that --json wrote: {error}") from None
    if not timings:
        raise SystemExit(f"{path} has no timings")
    return found


def format_option(text: str) -> Format:
    try:
        return get(text)
    except FewbitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def file_option(text: str) -> Path:
    """Asked for now: it would be a pity to measure and then not to be able to write."""
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written: there is no such folder, or it is one")
    return path


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=file_option, required=True, metavar="FILE", help="the SVG file to write")
    parser.add_argument(
        "-f",
        "--format",
        action="extend",
        nargs="+",
        type=format_option,
        metavar="F",
        help=f"default: {' '.join(FORMATS)}",
    )
    parser.add_argument(
        "--shape", type=shape_option, default=(4096, 4096), metavar="NxK", help="of the weights (default: 4096x4096)"
    )
    parser.add_argument(
        "--batch",
        type=batch_option,
        default=BATCHES,
        metavar="M,M",
        help=f"default: {','.join(map(str, BATCHES))}",
    )
    parser.add_argument(
        "--threads", type=count_option, default=cpu.default_threads(), metavar="T", help="default: %(default)s"
    )
    parser.add_argument("--rounds", type=count_option, default=3, metavar="R", help="default: %(default)s")
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--json", type=file_option, metavar="FILE", help="write the timings and the peaks, too")
    files.add_argument(
        "--from", dest="source", type=Path, metavar="FILE", help="draw what --json wrote, without measuring"
    )
    args = parser.parse_args()
    args.format = args.format or [get(name) for name in FORMATS]
    return args


def main() -> None:
    args = options()
    found = load(args.source) if args.source else measure(args)
    if args.json:
        args.json.write_text(json.dumps(asdict(found), indent=2) + "\n")
    args.out.write_text(draw(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

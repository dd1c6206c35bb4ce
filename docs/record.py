"""Records fewbit in a real terminal: docs/images/run.svg, chat.svg and bench.svg. It needs tmux and a built fewbit.

    .venv/bin/python docs/record.py [run] [chat] [bench]

Each picture is the screen of tmux after some keys, with its colours. The model is the default one. The figures on the
screens are those of this machine, so it should be idle.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

IMAGES = Path(__file__).parent / "images"
SOCKET = "fewbit-record"
WIDTH = 96
LONGEST_SECONDS = 300.0
SHELL = "bash --norc --noprofile"

# rich's picture without its fonts, which would be fetched from elsewhere.
SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g></svg>
"""


@dataclass(frozen=True)
class Recording:
    """Keys, and for each line of them what the screen must show last before it goes on."""

    title: str
    height: int
    steps: list[tuple[str, str]]


SHELL_ASKS = r"^\$ $"
ASKED = r"^> $"
RECORDINGS = {
    "run": Recording(
        "fewbit run",
        20,
        [
            ('fewbit run --temp 0 "Name three planets."', SHELL_ASKS),
            ('fewbit run --temp 0 --max-tokens 80 "Why is the sky blue?"', SHELL_ASKS),
        ],
    ),
    "chat": Recording(
        "fewbit chat",
        26,
        [
            ("fewbit chat --temp 0 --max-tokens 80", ASKED),
            ("Name three planets.", ASKED),
            ("Write one sentence about the last of them.", ASKED),
            ("/?", ASKED),
        ],
    ),
    "bench": Recording("fewbit bench", 14, [("fewbit bench smollm2 --prompt 256 --gen 32", SHELL_ASKS)]),
}


def main() -> None:
    wanted = sys.argv[1:] or list(RECORDINGS)
    unknown = [name for name in wanted if name not in RECORDINGS]
    if unknown:
        sys.exit(f"there is no recording {unknown[0]!r}; there are {', '.join(RECORDINGS)}")
    for name in wanted:
        (IMAGES / f"{name}.svg").write_text(picture(name, RECORDINGS[name]))


def picture(name: str, recording: Recording) -> str:
    tmux("new-session", "-d", "-x", str(WIDTH), "-y", str(recording.height), SHELL)
    try:
        tmux("set", "status", "off")
        tmux("send-keys", "PS1='$ ' HISTFILE= && clear", "Enter")
        wait(SHELL_ASKS)
        for keys, until in recording.steps:
            tmux("send-keys", "-l", keys)
            tmux("send-keys", "Enter")
            wait(until, keys)
        return svg(name, recording.title, tmux("capture-pane", "-e", "-p"))
    finally:
        tmux("kill-session")


def wait(last: str, typed: str = "") -> None:
    """Until the last line with something on it looks like this, and what was typed is above it."""
    end = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < end:
        time.sleep(0.5)
        lines = [line for line in tmux("capture-pane", "-p").splitlines() if line.strip()]
        shown = typed[-20:] in "".join(lines[:-1])
        if lines and shown and re.search(last, lines[-1].rstrip() + " "):
            return
    sys.exit(f"{typed!r} came to no end in {LONGEST_SECONDS:.0f} seconds")


def svg(name: str, title: str, screen: str) -> str:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(screen.rstrip()))
    drawn = console.export_svg(title=title, theme=MONOKAI, code_format=SVG, unique_id=name)
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def tmux(*arguments: str) -> str:
    """On a socket and with a configuration of its own, beside what else may run."""
    command = ["tmux", "-L", SOCKET, "-f", os.devnull, *arguments]
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLORTERM": "truecolor"}
    try:
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        sys.exit("docs/record.py needs tmux: install it with your system's packages")
    except subprocess.CalledProcessError as error:
        sys.exit(f"tmux {arguments[0]} failed: {error.stderr.strip()}")


if __name__ == "__main__":
    main()

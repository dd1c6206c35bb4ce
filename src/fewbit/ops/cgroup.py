"""Control groups, version 1 and 2: the limits of a container, those of parent groups included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def folders(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """The folders of the groups of this process, the innermost first.

    A container may see its path on the host, which does not exist inside; its own group is then the top.
    """
    for top, path in _groups(controller, root):
        for folder in (top / path, *(top / path).parents):
            if folder.is_relative_to(top) and folder.is_dir():
                yield folder


def read_number(path: Path) -> int | None:
    """The number in a file; None if there is none, or "max", which means no limit."""
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def read_table(path: Path) -> dict[str, int]:
    """A file of names and numbers, like `memory.stat` or `/proc/meminfo`."""
    try:
        lines = [line.replace(":", " ").split() for line in path.read_text().splitlines()]
    except (OSError, ValueError):
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}


def _groups(controller: str, root: Path) -> list[tuple[Path, str]]:
    """Where the groups of a controller begin, and the path from there; for each version that has it."""
    top = root / "sys/fs/cgroup"
    try:
        lines = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except (OSError, ValueError):
        return [(top, "")]
    found = []
    for number, controllers, path in (line for line in lines if len(line) == 3):
        if number == "0" and not controllers:
            found.append((top, path.strip("/")))
        elif controller in controllers.split(","):
            own = [top / name for name in (controllers, controller) if (top / name).is_dir()]
            found += [(folder, path.strip("/")) for folder in own[:1]]
    return found

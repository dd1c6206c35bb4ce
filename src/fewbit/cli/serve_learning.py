"""`fewbit serve --learn`: its options."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

import click

from ..errors import ExtraError
from .options import count_option

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def read_duration(_: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """A duration in seconds, such as 90s, 30m, 24h or 7d."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([smhd])", value)
    if found is None:
        raise click.BadParameter(f"{value!r} is not a duration such as 30m, 24h or 7d", param=option)
    return float(found[1]) * _UNITS[found[2]]


LEARN_OPTIONS = [
    click.option("--learn", type=click.Path(file_okay=False), metavar="FOLDER",
                 help="Train an adapter on the votes in --feedback, beside the server; MODEL:learned uses it. FOLDER "
                      "has its versions."),
    click.option("--learn-every", metavar="TIME", callback=read_duration,
                 help="Shortest time between two trainings, such as 24h.",
                 show_default="24h; none with --learn-after"),
    count_option("--learn-after", what="New votes that training waits for.", show_default="1"),
    count_option("--learn-threads", what="Threads of the training.", show_default="half of the usable cores"),
]  # fmt: skip


def learn_options(options: dict[str, Any], num_models: int) -> Any:
    """`LearnOptions` for the server, None without --learn."""
    folder, every, after = options["learn"], options["learn_every"], options["learn_after"]
    threads = options["learn_threads"]
    if folder is None:
        for name, value in (("every", every), ("after", after), ("threads", threads)):
            if value is not None:
                raise click.UsageError(f"--learn-{name} needs --learn")
        return None
    if options["feedback"] is None:
        raise click.UsageError("--learn needs --feedback, the file with the votes")
    if num_models > 1 or options["replicas"] is not None:
        raise click.UsageError("--learn is for one model without replicas")
    if find_spec("torch") is None:
        raise ExtraError("fewbit serve --learn needs torch: pip install 'fewbit[tune]'")
    from ..ops.cpu import default_threads
    from ..server.settings import LearnOptions

    if every is None:
        every = 0.0 if after is not None else 24 * 3600.0
    return LearnOptions(folder, every, after or 1, threads or max(1, default_threads() // 2))

"""Options that several commands share, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_KV = "f16"

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

activations_option = click.option(
    "--activations",
    type=click.Choice(["int8", "int16", "exact"]),
    help="int16 is more exact, and slower where not reading takes longest. [default: int8]",
)

repack_option = click.option(
    "--repack/--no-repack",
    default=None,
    help="Interleave rows of weights, as this machine multiplies fastest. [default: where it gains]",
)

kv_help = "Format of the KV cache; K/V where they differ: q8_0/q4_0."

MODEL_OPTIONS = [
    click.option(
        "--ctx", type=click.IntRange(1), metavar="N", help="Longest text in tokens; the model's if not given."
    ),
    click.option("--threads", type=click.IntRange(1), metavar="N", help="Threads; all usable cores if not given."),
    click.option("--kv", default=DEFAULT_KV, show_default=True, metavar="F", help=kv_help),
    repack_option,
    activations_option,
    click.option("--exact", is_flag=True, help="The same as --activations exact: slow, nothing is lost to them."),
]

# Names are those of the fields of SamplingParams. What is not given is as the model wants it, else as defaults there.
SAMPLING_OPTIONS = [
    click.option("--temp", "temperature", type=click.FloatRange(0), metavar="X", show_default="model's or 0.8",
                 help="How freely tokens are sampled; 0: always the likeliest."),
    click.option("--top-k", type=click.IntRange(0), metavar="N", show_default="model's or 40",
                 help="Sample among the N likeliest tokens; 0: all."),
    click.option("--top-p", type=click.FloatRange(0, 1), metavar="X", show_default="model's or 0.95",
                 help="Sample among the likeliest tokens that together have probability X; 1: all."),
    click.option("--min-p", type=click.FloatRange(0, 1), metavar="X", show_default="model's or 0.05",
                 help="Only tokens at least X times as likely as the likeliest; 0: all."),
    click.option("--repetition-penalty", type=click.FloatRange(0, min_open=True), metavar="X",
                 show_default="model's or 1.0", help="Penalty on tokens that were there; 1: none."),
    click.option("--presence-penalty", type=float, metavar="X", show_default="model's or 0.0",
                 help="Subtracted from the logit of each token in the answer."),
    click.option("--frequency-penalty", type=float, metavar="X", show_default="model's or 0.0",
                 help="Subtracted once for each time a token is in the answer."),
    click.option("--seed", type=click.IntRange(0), metavar="N", help="The same number gives the same answer again."),
]  # fmt: skip


def model_options(command: Command) -> Command:
    """Options of a command that loads a model."""
    return _all(MODEL_OPTIONS, command)


def sampling_options(command: Command) -> Command:
    """Options of a command that samples tokens."""
    return _all(SAMPLING_OPTIONS, command)


def _all(options: Sequence[Callable[[Command], Command]], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def split_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of `model_options`, and the rest.

    >>> split_options({"ctx": 64, "temperature": 0.5})
    ({'ctx': 64}, {'temperature': 0.5})
    """
    names = ("ctx", "threads", "kv", "repack", "activations", "exact")
    of_model = {name: value for name, value in options.items() if name in names}
    return of_model, {name: value for name, value in options.items() if name not in of_model}


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that have a value.

    >>> given({"top_k": None, "temperature": 0.0})
    {'temperature': 0.0}
    """
    return {name: value for name, value in options.items() if value is not None}


def kv_formats(text: str) -> str | tuple[str, str]:
    """Formats of K and V as the library wants them.

    >>> kv_formats("f16"), kv_formats("q8_0/q4_0")
    ('f16', ('q8_0', 'q4_0'))
    """
    parts = text.split("/")
    if len(parts) > 2 or not all(parts):
        raise click.BadParameter(f"{text!r} is not like q8_0 or q8_0/q4_0", param_hint="--kv")
    return (parts[0], parts[1]) if len(parts) == 2 else text


def numbers(text: str, separator: str, option: str, count: int | None = None, least: int = 1) -> list[int]:
    """Whole numbers out of an option.

    >>> numbers("1,8", ",", "--batch")
    [1, 8]
    """
    parts = text.split(separator)
    if not all(_is_number(part, least) for part in parts) or len(parts) != (count or len(parts)):
        example = separator.join(["64"] * (count or 2))
        raise click.BadParameter(f"{text!r} is not like {example}", param_hint=option)
    return [int(part) for part in parts]


def _is_number(text: str, least: int) -> bool:
    return text.isdecimal() and len(text) <= 18 and int(text) >= least

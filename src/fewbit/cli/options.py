"""Options that several commands share, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from ..errors import FewbitError
from .output import QUIET

Command = TypeVar("Command", bound=Callable[..., Any])

SEVERAL_KV = "F,.."

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

system_option = click.option("--system", metavar="TEXT", help="System message.")

stop_option = click.option(
    "--stop", multiple=True, metavar="TEXT", help="End the answer before this text; may be given again."
)

exact_option = click.option("--exact", is_flag=True, help="The same as --activations exact.")

activations_option = click.option(
    "--activations",
    type=click.Choice(["int8", "int16", "exact"]),
    show_default="see fewbit doctor; int16 for smollm2",
    help="Precision of the inputs of matrix products: int16 is more exact and somewhat slower, exact is slow.",
)

repack_option = click.option(
    "--repack/--no-repack",
    default=None,
    show_default="where it gains",
    help="Reorder weights in memory for speed; --no-repack uses the file's memory map.",
)


def keep_quiet(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[QUIET] = value


quiet_option = click.option(
    "-q", "--quiet", is_flag=True, expose_value=False, callback=keep_quiet,
    help="Print no remarks, figures or progress; only results, warnings and errors.",
)  # fmt: skip

server_option = click.option(
    "--server", metavar="URL", help="Ask a model of a running server (OpenAI's API); MODEL is its name there."
)


def stop_setting(stop: tuple[str, ...]) -> dict[str, list[str]]:
    return {"stop": list(stop)} if stop else {}


def count_option(*names: str, what: str, least: int = 1, **more: Any) -> Callable[[Command], Command]:
    """An option that is a whole number."""
    return click.option(*names, type=click.IntRange(least), metavar="N", help=what, **more)


def max_tokens_option(
    default: int | None, what: str = "Longest answer, in tokens.", **more: Any
) -> Callable[[Command], Command]:
    return count_option("-n", "--max-tokens", what=what, default=default, **{"show_default": True, **more})


def check_kv(_: click.Context, option: click.Parameter, text: str) -> str:
    """Formats of the KV cache, checked before a model is fetched for them."""
    from ..loading import kv_formats

    try:
        for one in text.split(",") if option.metavar == SEVERAL_KV else [text]:
            kv_formats(one)
    except FewbitError as error:
        raise click.BadParameter(str(error), param=option) from None
    return text


def kv_option(metavar: str) -> Callable[[Command], Command]:
    return click.option(
        "--kv",
        default="f16",
        show_default=True,
        metavar=metavar,
        callback=check_kv,
        help="Format of the KV cache, such as q8_0 or f8_e4m3; K/V where they differ: q8_0/q4_0.",
    )


batch_invariant_option = click.option(
    "--batch-invariant",
    is_flag=True,
    help="Same results alone and in any batch, so that a seed gives the same answer again. Slower.",
)

device_option = click.option(
    "--device",
    default="cpu",
    show_default=True,
    metavar="D",
    help="Where the model runs: cpu, cuda (an NVIDIA GPU), cuda:1, or auto: a GPU where there is one.",
)

MODEL_OPTIONS = [
    device_option,
    count_option(
        "--gpu-layers",
        what="Layers that run on the GPU, the last ones; the others run on the CPU.",
        least=0,
        show_default="all, or as many as fit",
    ),
    count_option(
        "-c",
        "--ctx",
        what="Longest text, prompt and answer, in tokens.",
        show_default="the model's, at most 8192, as memory allows",
    ),
    count_option("-t", "--threads", what="Threads to use.", show_default="all usable cores"),
    kv_option("F"),
    click.option(
        "--format", metavar="F", help="Quantize weights that are f32, f16 or bf16 to this, such as q8_0 or q4_k_m."
    ),
    click.option(
        "--keep/--no-keep", default=True, show_default=True, help="Keep what --format makes for the next start."
    ),
    repack_option,
    activations_option,
    batch_invariant_option,
    exact_option,
    count_option(
        "--max-batched-tokens",
        what="Tokens of a prompt that are run at once; fewer need less memory.",
        show_default="512, on a GPU 4096",
    ),
]

# Of a model that runs many requests at once, or again and again.
CACHE_OPTIONS = [
    count_option("--max-seqs", what="Outputs in one batch.", show_default="64"),
    count_option("--cache-bytes", what="Size of each model's KV cache.", show_default="as memory allows"),
    click.option(
        "--cache-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="Where long prompts are kept when the KV cache has no room for them, and at the end.",
    ),
    count_option("--cache-dir-bytes", what="Size of that folder.", show_default="8 GiB"),
]

# Names are those of the fields of SamplingParams. What is not given is as the model wants it, else as defaults there.
SAMPLING_OPTIONS = [
    click.option("--temp", "temperature", type=click.FloatRange(0), metavar="X", show_default="model's or 0.8",
                 help="Sampling temperature; 0: always the likeliest token."),
    click.option("--top-k", type=click.IntRange(0), metavar="N", show_default="model's or 40",
                 help="Sample among the N likeliest tokens; 0: all."),
    click.option("--top-p", type=click.FloatRange(0, 1), metavar="X", show_default="model's or 0.95",
                 help="Sample among the likeliest tokens that together have probability X; 1: all."),
    click.option("--min-p", type=click.FloatRange(0, 1), metavar="X", show_default="model's or 0.05",
                 help="Only tokens at least X times as likely as the likeliest; 0: all."),
    click.option("--repetition-penalty", type=click.FloatRange(0, min_open=True), metavar="X",
                 show_default="model's or 1.0", help="Penalty on tokens that occurred before; 1: none."),
    click.option("--presence-penalty", type=float, metavar="X", show_default="model's or 0.0",
                 help="Subtracted from the logit of each token in the answer."),
    click.option("--frequency-penalty", type=float, metavar="X", show_default="model's or 0.0",
                 help="Subtracted once for each time a token is in the answer."),
    click.option("-s", "--seed", type=click.IntRange(0), metavar="N",
                 help="The same number gives the same answer again; after other messages, with --batch-invariant."),
]  # fmt: skip


def model_options(command: Command) -> Command:
    """Options of a command that loads a model."""
    return _all(MODEL_OPTIONS, command)


def cache_options(command: Command) -> Command:
    """Options of a command that loads a model for many requests."""
    return _all(CACHE_OPTIONS, command)


def sampling_options(command: Command) -> Command:
    """Options of a command that samples tokens."""
    return _all(SAMPLING_OPTIONS, command)


def _all(options: Sequence[Callable[[Command], Command]], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def split_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of `model_options` and `cache_options`, and the rest.

    >>> split_options({"ctx": 64, "temperature": 0.5})
    ({'ctx': 64}, {'temperature': 0.5})
    """
    names = ("device", "gpu_layers", "ctx", "threads", "kv", "repack", "activations", "exact",
             "max_batched_tokens", "batch_invariant", "format", "keep", "max_seqs", "cache_bytes", "cache_dir",
             "cache_dir_bytes")  # fmt: skip
    of_model = {name: value for name, value in options.items() if name in names}
    return of_model, {name: value for name, value in options.items() if name not in of_model}


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that have a value.

    >>> given({"top_k": None, "temperature": 0.0})
    {'temperature': 0.0}
    """
    return {name: value for name, value in options.items() if value is not None}


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

"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from ..errors import FewbitError
from ..load_options import LoadOptions, load_options
from ..option_fields import OptionField
from .output import QUIET
from .structure import STRUCTURE_OPTIONS, read_structure

Command = TypeVar("Command", bound=Callable[..., Any])

SEVERAL = "NAME,.."  # values of an option

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def keep_quiet(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[QUIET] = value


quiet_option = click.option(
    "-q", "--quiet", is_flag=True, expose_value=False, callback=keep_quiet,
    help="Print no remarks, figures or progress; only results, warnings and errors.",
)  # fmt: skip


def count_option(*names: str, what: str, least: int = 1, **settings: Any) -> Callable[[Command], Command]:
    """An option that is a whole number."""
    return click.option(*names, type=click.IntRange(least), metavar="N", help=what, **settings)


def max_tokens_option(
    default: int | None, what: str = "Longest answer, in tokens.", **settings: Any
) -> Callable[[Command], Command]:
    return count_option("-n", "--max-tokens", what=what, default=default, **settings)


def check_value(_: click.Context, option: click.Parameter, value: Any) -> Any:
    """A value of a field of `LoadOptions`, checked before a model is fetched. One that cannot be right is refused."""
    try:
        for one in value.split(",") if value and option.metavar == SEVERAL else [value]:
            LoadOptions(**{str(option.name): one})
    except FewbitError as error:
        raise click.BadParameter(str(error), param=option) from None
    return value


def load_option(name: str, **changes: Any) -> Callable[[Command], Command]:
    """The option of a command for a field of `LoadOptions`.

    Args:
        name: Name of the field.
        changes: Arguments of `click.option` in place of those that follow from the field.
    """
    option = next(option for option in load_options() if option.name == name)
    settings: dict[str, Any] = {"callback": check_value}
    if option.kind is Path and option.choice.metavar:  # a place, which may be elsewhere
        settings |= {"type": str, "metavar": option.choice.metavar}
    elif option.kind is Path:
        settings |= {"type": click.Path(file_okay=False, path_type=Path), "metavar": "FOLDER"}
    return field_option(option, **settings | changes)


def field_option(option: OptionField, **changes: Any) -> Callable[[Command], Command]:
    """The option of a command for a field of a record of options."""
    dashed = (option.choice.command or option.name).replace("_", "-")
    flag = f"--{dashed}"
    if option.kind is bool and option.default is not False:
        flag += f"/--no-{dashed}"
    settings: dict[str, Any] = {
        "help": as_flags(first_sentence(option.doc)).replace('"', "").replace("`", ""),
        "default": option.default,
        "show_default": option.choice.default or None,
    }
    if option.choice.values:
        settings |= {"type": click.Choice(option.choice.values)}
    elif option.kind is bool:
        settings |= {"is_flag": True}
    elif option.kind is int:
        settings |= {"type": click.IntRange(option.choice.least), "metavar": "N"}
    elif option.kind is float:
        settings |= {"type": float, "metavar": "N"}
    elif option.kind is Path:
        settings |= {"type": click.Path(exists=True, dir_okay=False, path_type=Path), "metavar": "FILE"}
    else:
        settings |= {"metavar": option.choice.metavar or "NAME"}
    names = filter(None, (option.choice.flag, flag, option.name))
    return click.option(*names, **settings | changes)


def first_sentence(text: str) -> str:
    """
    >>> first_sentence("Size, e.g. 1.5 GiB. Defaults to 8.")
    'Size, e.g. 1.5 GiB.'
    """
    return re.split(r"(?<=[.]) (?=[A-Z])", text)[0]


def as_flags(text: str) -> str:
    """Options of the library as those of the command.

    >>> as_flags('try ctx=512 or kv="q8_0" or gpu_layers=8 or repack=False; see `cache_dir`')
    'try --ctx 512 or --kv q8_0 or --gpu-layers 8 or --no-repack; see --cache-dir'
    """
    names = "|".join(option.name for option in load_options())

    def flag(found: re.Match[str]) -> str:
        name = (found["quoted"] or found["name"]).replace("_", "-")
        value = found["text"] or found["value"] or ""
        return f"--no-{name}" if value == "False" else f"--{name} {value}".rstrip()

    pattern = rf'`(?P<quoted>{names})`|\b(?P<name>{names})=(?:"(?P<text>[\w/]+)"|(?P<value>\w+))'
    return re.sub(pattern, flag, text)


def read_adapters(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    """NAME=PATH of each --lora; a path alone is called as its folder or file."""
    found: dict[str, str] = {}
    for value in values:
        name, is_named, path = value.partition("=")
        if not is_named:
            name, path = Path(value).stem if value.endswith(".gguf") else Path(value).name, value
        if not name or not path:
            raise click.BadParameter(f"{value!r} is not like NAME=PATH", param=option)
        if name in found:
            raise click.BadParameter(f"two adapters are called {name!r}; use NAME=PATH", param=option)
        found[name] = path
    return found or None


lora_option = click.option(
    "--lora", "adapters", multiple=True, metavar="NAME=PATH", callback=read_adapters,
    help="A LoRA adapter: a folder of PEFT or a GGUF file; may be given again.",
)  # fmt: skip


def whole(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    return None if value is None else int(value)


def split_samplers(_: click.Context, option: click.Parameter, value: str | None) -> list[str] | None:
    """Names of samplers, checked before a model is fetched."""
    if value is None:
        return None
    from ..ops.sampler_chain import sampler_names

    try:
        return [str(name) for name in sampler_names([part for part in re.split("[;,\\s]+", value) if part])]
    except FewbitError as error:
        raise click.BadParameter(str(error), param=option) from None


# Names are those of the options of `LLM.generate`. What is not given is as the model wants it, else as defaults there.
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
    click.option("--typical-p", type=click.FloatRange(0, 1), metavar="X",
                 help="Sample among the tokens about as surprising as usual that together have probability X; 1: all."),
    click.option("--top-n-sigma", type=click.FloatRange(-1), metavar="X",
                 help="Only logits at most X standard deviations below the largest; 0: all."),
    click.option("--xtc-probability", type=click.FloatRange(0, 1), metavar="X",
                 help="How often the likeliest tokens are excluded (XTC)."),
    click.option("--xtc-threshold", type=click.FloatRange(0, 1), metavar="X", show_default="0.1",
                 help="Those of at least this probability, but the least likely of them."),
    click.option("--dry-multiplier", type=click.FloatRange(0), metavar="X",
                 help="Strength of DRY, a penalty on tokens that would extend a repetition; 0: off."),
    click.option("--dry-base", type=click.FloatRange(1), metavar="X", show_default="1.75",
                 help="The penalty grows by this factor with each token of the repetition."),
    click.option("--dry-allowed-length", type=click.IntRange(0), metavar="N", show_default="2",
                 help="Repetitions of fewer tokens are not penalized."),
    click.option("--dry-penalty-last-n", type=click.IntRange(-1), metavar="N", show_default="all",
                 help="Search repetitions in the last N tokens; -1: in all."),
    click.option("--dry-sequence-breaker", "dry_sequence_breakers", multiple=True, metavar="TEXT",
                 help="Repetitions begin anew at this text, in place of line ends and the like; may be given again."),
    click.option("--dynatemp-range", type=click.FloatRange(0), metavar="X",
                 help="Let the temperature vary by X with the entropy."),
    click.option("--dynatemp-exponent", type=click.FloatRange(0), metavar="X", show_default="1.0",
                 help="Exponent of the entropy's share."),
    click.option("--mirostat", type=click.Choice(["0", "2"]), callback=whole,
                 help="2: Mirostat 2 in place of the samplers that cut off tokens."),
    click.option("--mirostat-tau", type=click.FloatRange(0), metavar="X", show_default="5.0",
                 help="Surprise that Mirostat aims at, in bits."),
    click.option("--mirostat-eta", type=click.FloatRange(0), metavar="X", show_default="0.1",
                 help="How fast Mirostat learns."),
    click.option("--samplers", metavar="NAME;..", callback=split_samplers,
                 help="The samplers that run, in their order, such as 'penalties;top_k;temperature'."),
    click.option("--no-repeat-ngram-size", type=click.IntRange(0), metavar="N",
                 help="No N tokens in a row come twice."),
    click.option("--bad-word", "bad_words", multiple=True, metavar="TEXT",
                 help="This text does not occur in the answer; may be given again."),
    click.option("--allowed-word", "allowed_words", multiple=True, metavar="TEXT",
                 help="Only tokens of this text are sampled; may be given again."),
    click.option("--beams", type=click.IntRange(1), metavar="N",
                 help="Search the likeliest answer with N beams; it is printed when it is complete."),
    click.option("--length-penalty", type=float, metavar="X", show_default="1.0",
                 help="Power of the length that scores of beams are divided by."),
    click.option("-s", "--seed", type=click.IntRange(0), metavar="N",
                 help="The same number gives the same answer again; after other messages, with --batch-invariant."),
]  # fmt: skip


def model_options(command: Command, scope: str = "commands") -> Command:
    """Options of a command that loads a model."""
    return all_options([load_option(option.name) for option in load_options() if option.choice.scope == scope], command)


def serve_options(command: Command) -> Command:
    """Options of a command that loads models for many requests, beside `model_options`."""
    return model_options(command, "serve")


def answer_options(max_tokens: int) -> Callable[[Command], Command]:
    """Options of a command in which a model, of this machine or of a server, answers."""
    return partial(
        all_options,
        [
            click.option("--system", metavar="TEXT", help="System message."),
            max_tokens_option(max_tokens),
            click.option("--stop", multiple=True, metavar="TEXT",
                         help="End the answer before this text; may be given again."),
            *STRUCTURE_OPTIONS,
            *SAMPLING_OPTIONS,
            lora_option,
            model_options,
            click.option("--server", metavar="URL",
                         help="Ask a model of a running server (OpenAI's API); MODEL is its name there."),
            quiet_option,
        ],
    )  # fmt: skip


def all_options(options: Sequence[Callable[[Command], Command]], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def split_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of `LoadOptions`, and the other options.

    >>> split_options({"ctx": 64, "temperature": 0.5})
    ({'ctx': 64}, {'temperature': 0.5})
    """
    names = {option.name for option in load_options()}
    loading = {name: value for name, value in options.items() if name in names}
    return loading, {name: value for name, value in options.items() if name not in names}


def answer_settings(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of `LoadOptions`, and the options of `LLM.chat` that have a value.

    >>> answer_settings({"ctx": None, "top_k": None, "temperature": 0.0, "stop": ("a",)})
    ({'ctx': None}, {'temperature': 0.0, 'stop': ['a']})
    """
    loading, rest = split_options(options)
    given = {name: value for name, value in rest.items() if value not in (None, ())}
    settings = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    if loading.get("adapters"):
        settings["adapter"] = dict.fromkeys(loading["adapters"], 1.0)
    return loading, read_structure(settings)


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

"""`fewbit serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import ExtraError
from .model import DEFAULT, load
from .options import cache_options, count_option, max_tokens_option, model_options, split_options
from .output import shown


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Where to listen; 0.0.0.0: for other machines too, which wants --api-key-file.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, metavar="N", help="0: any.")
@click.option(
    "--api-key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="API keys, one a line; without it everybody who reaches the port may ask.",
)
@click.option(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    metavar="URL",
    help="A web page's origin that may use the server; may be given again.",
)
@count_option(
    "--max-queue",
    "Outputs that may wait for a model; more are refused with 429.",
    least=0,
    default=256,
    show_default=True,
)
@count_option(
    "--max-models", "Models loaded at a time; the least recently used goes first.", show_default="as many as fit"
)
@click.option("--pin", "pinned", multiple=True, metavar="NAME", help="A model that stays loaded; may be given again.")
@click.option(
    "--max-seconds",
    type=click.IntRange(1, 10**8),
    default=3600,
    show_default=True,
    metavar="S",
    help="Longest time for one request; what is written by then is its answer.",
)
@max_tokens_option(None, "Longest answer that may be asked for.", show_default="until the context is full")
@click.option("--strict", is_flag=True, help="Refuse requests with unknown fields, which are ignored otherwise.")
@click.option(
    "--tools-without-template",
    type=click.Choice(["omit", "prompt", "refuse"]),
    default="omit",
    show_default=True,
    help="Tools that the model's chat template ignores: leave them out, describe them in a message, or refuse them.",
)
@click.option("--allow-changes", is_flag=True, help="Let clients add, load, unload and remove models.")
@click.option("--log-json", is_flag=True, help="Log lines are JSON.")
@cache_options
@model_options
def serve(models: tuple[str, ...], **options: Any) -> None:
    """Serve models to OpenAI's clients and others, over HTTP.

    MODEL is a GGUF file, a URL, hf:org/repo or a built-in name; NAME=MODEL gives it another name. The first is loaded
    at once, the others when they are asked for. Ctrl-C ends it when running requests are done; again: at once.

    \b
    Examples:
      fewbit serve
      fewbit serve model.gguf --port 8080 --kv q8_0
      fewbit serve small=a.gguf large=b.gguf --max-models 1
      fewbit serve --host 0.0.0.0 --api-key-file keys.txt
      fewbit serve model.gguf --cache-dir ~/.cache/prompts --max-seconds 600
    """
    try:
        from ..llm import LLM
        from ..server.app import make_app
        from ..server.log import use_json
        from ..server.pool import Pool
        from ..server.serving import listen
        from ..server.serving import serve as run
        from ..server.settings import Settings, read_keys
    except ImportError as error:
        raise ExtraError(f"fewbit serve needs {error.name}: pip install 'fewbit[server]'") from None
    of_model, rest = split_options(options)
    keys = rest.pop("api_key_file")
    names = model_names(models or (DEFAULT,))
    settings = Settings(
        host=rest["host"], port=rest["port"], api_keys=() if keys is None else read_keys(keys),
        cors_origins=rest["cors_origins"], max_queue=rest["max_queue"], request_seconds=rest["max_seconds"],
        max_output_tokens=rest["max_tokens"], max_models=rest["max_models"], log_json=rest["log_json"],
        strict=rest["strict"], tools_without_template=rest["tools_without_template"],
        allow_changes=rest["allow_changes"],
        pinned=check_pinned(rest["pinned"], names, rest["max_models"]),
    )  # fmt: skip
    use_json(settings.log_json)
    warn_if_open(settings.is_loopback, bool(keys))
    pool = Pool(
        names, lambda source: LLM(source, **of_model), pinned=settings.pinned, max_models=settings.max_models,
        load_seconds=settings.load_seconds,
    )  # fmt: skip
    with listen(settings) as at:
        for name in dict.fromkeys([next(iter(names)), *settings.pinned]):
            pool.entries[name].llm = load(names[name], **of_model)
        app = make_app(settings, pool)
        url = f"http://{url_host(settings.host)}:{at.getsockname()[1]}"
        run(app, at, lambda: click.echo(f"fewbit serves {', '.join(names)} at {url}; Ctrl-C ends it", err=True))


def model_names(models: tuple[str, ...]) -> dict[str, str]:
    """Models by the names that clients give.

    >>> model_names(("a/tiny.gguf", "big=hf:org/repo", "hf:org/other"))
    {'tiny': 'a/tiny.gguf', 'big': 'hf:org/repo', 'other': 'hf:org/other'}
    """
    found: dict[str, str] = {}
    for model in models:
        name, is_named, source = model.partition("=")
        if not is_named or "/" in name or ":" in name:
            last = model.rstrip("/").rpartition("/")[2].rpartition("@")[0] or model.rstrip("/").rpartition("/")[2]
            name, source = last.removesuffix(".gguf"), model
        if not name or not source:
            raise click.BadParameter(f"{shown(model)!r} is not like NAME=MODEL", param_hint="MODEL")
        if name in found:
            raise click.BadParameter(f"two models are called {shown(name)!r}; use NAME=MODEL", param_hint="MODEL")
        found[name] = source
    return found


def check_pinned(pinned: tuple[str, ...], names: dict[str, str], most: int | None) -> tuple[str, ...]:
    for name in pinned:
        if name not in names:
            raise click.BadParameter(f"there is no model {shown(name)!r}; there are: {', '.join(names)}",
                                     param_hint="--pin")  # fmt: skip
    if most is not None and len(pinned) > most:
        raise click.BadParameter(f"{len(pinned)} models cannot stay where {most} may be loaded", param_hint="--pin")
    return pinned


def warn_if_open(is_loopback: bool, has_keys: bool) -> None:
    if not is_loopback and not has_keys:
        click.echo("fewbit: other machines can use this server without a key; --api-key-file asks for one", err=True)


def url_host(host: str) -> str:
    """
    >>> url_host("::1"), url_host("0.0.0.0")
    ('[::1]', '127.0.0.1')
    """
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host

"""`fewbit serve`."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from ..errors import ExtraError
from .completion import ModelName
from .model import DEFAULT, fetched_path, load
from .options import (
    all_options,
    count_option,
    lora_option,
    max_tokens_option,
    model_options,
    serve_options,
    split_options,
)
from .output import shown
from .serve_learning import LEARN_OPTIONS, learn_options
from .serve_replicas import CLUSTER_OPTIONS, check_options, serve_replicas

OPTIONS = [
    click.option("--host", default="127.0.0.1", metavar="ADDRESS",
                 help="Where to listen; 0.0.0.0: for other machines too, which wants --api-key-file or --api-keys."),
    click.option("--port", type=click.IntRange(0, 65535), default=8000, metavar="N", help="0: any."),
    click.option("--api-key-file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                 help="API keys, one a line; without keys everybody who reaches the port may ask."),
    click.option("--api-keys", "api_key_table", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                 help="API keys with names, quotas and models: TOML or JSON."),
    click.option("--no-key", is_flag=True, help="Let other machines use the server without a key."),
    click.option("--allowed-host", "allowed_hosts", multiple=True, metavar="NAME",
                 help="A name by which clients reach the server; may be given again."),
    click.option("--tls-cert", type=click.Path(dir_okay=False, exists=True), metavar="FILE",
                 help="Certificate, for https."),
    click.option("--tls-key", type=click.Path(dir_okay=False, exists=True), metavar="FILE", help="Its private key."),
    click.option("--cors-origin", "cors_origins", multiple=True, metavar="URL",
                 help="A web page's origin that may use the server; may be given again."),
    count_option("--max-connections", what="Open connections; more get 503.", default=1000),
    count_option("--max-connections-per-address", what="The same for one address.", default=250),
    click.option("--min-body-rate", type=click.IntRange(1), default=64, metavar="KIB",
                 help="Slowest upload, in KiB a second; slower ones get 408."),
    click.option("--body-idle", type=click.FloatRange(0.1, 3600), default=0.8, metavar="S",
                 help="Longest pause in headers and bodies that are sent."),
    count_option("--max-body", what="Largest request body, in MiB; larger ones get 413.", default=16),
    count_option("--max-queue", what="Outputs that may wait for a model; more are refused with 429.", least=0,
                 default=256),
    count_option("--max-models", what="Models loaded at a time; the least recently used goes first.",
                 show_default="as many as fit"),
    click.option("--pin", "pinned", multiple=True, metavar="NAME",
                 help="A model that stays loaded; may be given again."),
    click.option("--max-seconds", type=click.IntRange(1, 10**8), default=3600, metavar="S",
                 help="Longest time for one request; what is written by then is its answer."),
    click.option("--load-seconds", type=click.IntRange(1, 10**8), default=600, metavar="S",
                 help="Longest time to load a model, also one that is fetched."),
    click.option("--drain-seconds", type=click.FloatRange(0, 10**8), default=30, metavar="S",
                 help="Time that running requests get when the server shuts down."),
    max_tokens_option(None, "Longest answer that may be asked for.", show_default="until the context is full"),
    click.option("--strict", is_flag=True, help="Refuse requests with unknown fields, which are ignored otherwise."),
    click.option("--tools-without-template", type=click.Choice(["omit", "prompt", "refuse"]), default="omit",
                 help="Tools that the model's chat template ignores: leave them out, describe them in a message, or "
                      "refuse them."),
    click.option("--keep-volatile-lines", is_flag=True,
                 help="Leave system messages as they are: a header for billing, the time and ids of requests, which "
                      "change in every request, keep prompts from sharing a prefix."),
    click.option("--allow-image-urls", is_flag=True,
                 help="Fetch images from http URLs that clients name, from public addresses only."),
    click.option("--share-models", is_flag=True, help="Let pages at /local fetch the files of models."),
    click.option("--allow-changes", is_flag=True, help="Let clients add, load, unload and remove models."),
    click.option("--feedback", type=click.Path(dir_okay=False), metavar="FILE",
                 help="Let clients rate answers (/v1/feedback); those that they ask to keep are in this SQLite file."),
    *LEARN_OPTIONS,
    click.option("--files-dir", type=click.Path(file_okay=False), metavar="FOLDER",
                 help="Let clients upload files and run batches (/v1/files, /v1/batches), kept in this folder."),
    count_option("--max-file", what="Largest file that may be uploaded, in MiB.", default=100),
    click.option("--log-json", is_flag=True, help="Log lines are JSON."),
    lora_option,
    *CLUSTER_OPTIONS,
    serve_options,
    model_options,
]  # fmt: skip


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...", type=ModelName())
@partial(all_options, OPTIONS)
@click.pass_context
def serve(context: click.Context, /, models: tuple[str, ...], **options: Any) -> None:
    """Serve models to OpenAI's clients and others, over HTTP.

    MODEL is a GGUF file, a URL, hf:org/repo or a built-in name; NAME=MODEL gives it another name. The first is loaded
    at once, the others when they are asked for. Ctrl-C ends it when running requests are done; again: at once.

    \b
    Examples:
      fewbit serve
      fewbit serve model.gguf --port 8080 --kv q8_0
      fewbit serve small=a.gguf large=b.gguf --max-models 1
      fewbit serve model.gguf --lora sql=adapters/sql
      fewbit serve model.gguf --feedback votes.db --learn adapters/
      fewbit serve --host 0.0.0.0 --api-key-file keys.txt
      fewbit serve --api-keys keys.toml --tls-cert c.pem --tls-key k.pem
      fewbit serve model.gguf --cache-dir ~/.cache/prompts --max-seconds 600
      fewbit serve model.gguf --replicas 4 --address auto
    """
    has_replicas = check_options(context)
    try:
        from ..llm import LLM
        from ..server.app import make_app
        from ..server.listening import listen
        from ..server.local import LocalBackend
        from ..server.log import use_json
        from ..server.pool import Pool, fetch_within
        from ..server.serving import raise_file_limit
        from ..server.serving import serve as run
        from ..server.settings import Settings
    except ImportError as error:
        raise ExtraError(f"fewbit serve needs {error.name}: pip install 'fewbit[server]'") from None
    loading, rest = split_options(options)
    names = {name: fetched_path(source) or source for name, source in model_names(models or (DEFAULT,)).items()}
    check_pinned(rest["pinned"], names, rest["max_models"])
    if loading["adapters"] and (len(names) > 1 or has_replicas):
        raise click.UsageError("--lora is for one model without replicas")
    settings = Settings(**server_options(rest), learn=learn_options(rest, len(names)))
    refuse_open(settings.is_loopback, bool(settings.api_keys), rest["no_key"])
    if has_replicas:
        url = server_url(settings.host, settings.port, settings.tls_cert is not None)
        serve_replicas(names, server_options(rest), loading, rest, url)
        return
    use_json(settings.log_json)
    raise_file_limit(settings.max_connections)

    def load_later(source: str) -> LLM:
        return LLM(source, **loading, progress=fetch_within(settings.load_seconds))

    pool = Pool(
        names, load_later, pinned=settings.pinned, max_models=settings.max_models, load_seconds=settings.load_seconds,
        turn_seconds=settings.turn_seconds,
    )  # fmt: skip
    with listen(settings) as at:
        for name in dict.fromkeys([next(iter(names)), *settings.pinned]):
            pool.entries[name].backend = LocalBackend(load(names[name], **loading), name)
        app = make_app(settings, pool)
        url = server_url(settings.host, at.getsockname()[1], settings.tls_cert is not None)
        run(app, at, lambda: click.echo(f"fewbit serves {', '.join(names)} at {url}; Ctrl-C ends it", err=True))
    leave()


def leave() -> None:
    """End at once if threads do work whose result nobody needs, such as loading a model."""
    from ..server.text_work import is_busy

    if is_busy():
        sys.stderr.flush()
        os._exit(0)


def server_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of the command as `Settings` takes them."""
    from ..server.keys import read_key_table, read_keys

    lines, table = options["api_key_file"], options["api_key_table"]
    if (options["tls_cert"] is None) != (options["tls_key"] is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    same = (
        "host", "port", "allowed_hosts", "tls_cert", "tls_key", "cors_origins", "max_connections",
        "max_connections_per_address", "max_queue", "max_models", "pinned", "load_seconds", "drain_seconds", "log_json",
        "strict", "tools_without_template", "allow_image_urls", "allow_changes", "share_models",
        "files_dir", "feedback",
    )  # fmt: skip
    return {
        **{name: options[name] for name in same},
        "api_keys": (*(() if lines is None else read_keys(lines)), *(() if table is None else read_key_table(table))),
        "keeps_volatile_lines": options["keep_volatile_lines"],
        "request_seconds": options["max_seconds"],
        "max_output_tokens": options["max_tokens"],
        "max_body_bytes": options["max_body"] << 20,
        "max_file_bytes": options["max_file"] << 20,
        "max_files_bytes": max(1 << 30, options["max_file"] << 23),
        "max_bodies_bytes": max(256 << 20, options["max_body"] << 22),
        "min_body_rate": options["min_body_rate"] << 10,
        "body_idle_seconds": options["body_idle"],
        "head_seconds": options["body_idle"],
    }


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


def check_pinned(pinned: tuple[str, ...], names: dict[str, str], most: int | None) -> None:
    for name in pinned:
        if name not in names:
            raise click.BadParameter(f"there is no model {shown(name)!r}; there are: {', '.join(names)}",
                                     param_hint="--pin")  # fmt: skip
    if most is not None and len(pinned) > most:
        raise click.BadParameter(f"{len(pinned)} models cannot stay where {most} may be loaded", param_hint="--pin")


def refuse_open(is_loopback: bool, has_keys: bool, no_key: bool) -> None:
    """Other machines need a key, unless --no-key is given."""
    if not is_loopback and not has_keys and not no_key:
        raise click.UsageError(
            "other machines could use this server without a key; give --api-key-file or --api-keys, or --no-key if "
            "everybody may"
        )
    if has_keys and no_key:
        raise click.UsageError("--no-key does not go with keys")


def server_url(host: str, port: int, has_tls: bool) -> str:
    return f"{'https' if has_tls else 'http'}://{url_host(host)}:{port}"


def url_host(host: str) -> str:
    """
    >>> url_host("::1"), url_host("0.0.0.0")
    ('[::1]', '127.0.0.1')
    """
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host

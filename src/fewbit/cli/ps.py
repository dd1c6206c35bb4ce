"""`fewbit ps`."""

from __future__ import annotations

import time
from typing import Any

import click

from .options import as_json
from .output import print_json, print_table, shown
from .remote import DEFAULT_URL, RemoteServer


@click.command()
@click.option("--server", "url", default=DEFAULT_URL, metavar="URL", help="Of which server.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 60),
    default=1.0,
    metavar="S",
    help="How long tokens are counted.",
)
@as_json  # fmt: skip
def ps(url: str, seconds: float, as_json: bool) -> None:
    """What a server runs: its models, requests and speed.

    FEWBIT_API_KEY is the key for a server that asks for one.

    \b
    Examples:
      fewbit ps
      fewbit ps --server http://192.168.1.5:8000 --json
    """
    server = RemoteServer(url)
    before = server.get("/stats")
    time.sleep(seconds)
    after = server.get("/stats")
    models = rates(before, after)
    if as_json:
        print_json({**after, "models": models})
        return
    heads = dict.fromkeys(("running", "waiting", "tokens/s", "prompt tokens/s", "pages", "prefix hits"), "right")
    print_table({"model": "left", **heads}, [cells(model) for model in models])


def rates(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """The models, with tokens a second between two answers of a server.

    >>> old = {"time": 0.0, "models": [{"model": "a", "generated_tokens": 5, "prompt_tokens": 0}]}
    >>> new = {"time": 2.0, "models": [{"model": "a", "generated_tokens": 9, "prompt_tokens": 0}]}
    >>> rates(old, new)[0]["tokens_per_second"]
    2.0
    """
    seconds = max(after["time"] - before["time"], 1e-9)
    known = {model["model"]: model for model in before["models"]}
    found = []
    for model in after["models"]:
        old = known.get(model["model"], model)
        found.append(
            {
                **model,
                "tokens_per_second": _rate(model, old, "generated_tokens", seconds),
                "prompt_tokens_per_second": _rate(model, old, "prompt_tokens", seconds),
            }
        )
    return found


def cells(model: dict[str, Any]) -> list[str]:
    if not model["loaded"]:
        return [shown(model["model"]), "not loaded", "", "", "", "", ""]
    return [
        shown(model["model"]),
        str(model["running"]),
        str(model["waiting"]),
        f"{model['tokens_per_second']:.1f}",
        f"{model['prompt_tokens_per_second']:.1f}",
        f"{model['pages_used']} of {model['pages_total']}",
        f"{model['prefix_hit_rate']:.0%}",
    ]


def _rate(model: dict[str, Any], old: dict[str, Any], name: str, seconds: float) -> float:
    return max(0.0, float(model[name] - old[name]) / seconds)

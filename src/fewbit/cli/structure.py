"""Options that say what an answer must look like, and the files that they name."""

from __future__ import annotations

import json
from typing import Any

import click

from ..errors import FewbitError, RequestError
from .files import decoded, read_bytes

STRUCTURE_OPTIONS = [
    click.option("--schema", metavar="FILE", help="The answer is JSON that matches this JSON schema."),
    click.option("--regex", metavar="REGEX", help="The answer matches this regular expression as a whole."),
    click.option("--choice", multiple=True, metavar="TEXT", help="The answer is one of these; given once for each."),
    click.option("--grammar", metavar="FILE", help="The answer follows this grammar, in GBNF or Lark syntax."),
    click.option("--json-object", "json", is_flag=True, default=None, help="The answer is a JSON object."),
]


def read_structure(options: dict[str, Any]) -> dict[str, Any]:
    """Options with the contents of the files that they name. What cannot be right is refused, with the file's name."""
    from ..llm.structure import pop_structure

    found, source = dict(options), ""
    for name in ("schema", "grammar"):
        if name in found:
            source = found[name]
            found[name] = decoded(read_bytes(source), source)
    try:
        if "schema" in found:
            json.loads(found["schema"])
        pop_structure({**found})
    except ValueError as error:
        where = f"{source}: " if source else ""
        what = str(error) if isinstance(error, RequestError) else f"not JSON: {error}"
        raise FewbitError(f"{where}{what}") from None
    return found

"""The tables of docs/schemas.md say what is true."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fewbit.errors import RequestError
from fewbit.text.grammar import Grammar, limits, schema_validator

from .walks import compiler

PAGE = (Path(__file__).parents[3] / "docs" / "schemas.md").read_text()
ROW = re.compile(r"^\| (.*?) \| `(.*?)` \| (grammar|check|nothing|refused) \| (?:`(.*?)`)? ?\|$", re.MULTILINE)
ROWS = ROW.findall(PAGE)
LIMIT = re.compile(r"^\| (.*?) \| ([\d,]+) \|$", re.MULTILINE)


def test_every_row_is_read() -> None:
    table = PAGE.split("breaks it |\n|---|---|---|---|\n")[1].split("\n\n")[0]
    assert len(ROWS) == len(table.splitlines())


@pytest.mark.parametrize(("feature", "schema", "holder", "broken"), ROWS, ids=[row[0] for row in ROWS])
def test_a_feature_is_held_as_the_table_says(feature: str, schema: str, holder: str, broken: str) -> None:
    if holder == "refused":
        with pytest.raises(RequestError, match=r"^the (JSON schema|pattern) .+"):
            compiler("bytes").compile(Grammar.schema(schema))
        return
    grammar = Grammar.schema(schema)
    constraint = compiler("bytes").compile(grammar)()
    if holder == "grammar":
        assert Grammar.schema(schema, strict=True).unheld == ()
        eos = set(compiler("bytes").vocabulary.eos_ids)
        assert not constraint.accept_bytes(broken.encode()) or not (constraint.is_finished or eos & ends(constraint))
        return
    with pytest.raises(RequestError, match=re.escape(grammar.unheld[0])):
        Grammar.schema(schema, strict=True)
    if holder == "check":
        json.loads(broken)
        assert grammar.check(broken)


def ends(constraint: object) -> set[int]:
    from .walks import allowed

    return allowed(constraint)  # type: ignore[arg-type]


def test_the_limits() -> None:
    said = {name: int(number.replace(",", "")) for name, number in LIMIT.findall(PAGE)}
    assert list(said.values()) == [
        limits.MAX_SCHEMA_BYTES,
        limits.MAX_GRAMMAR_BYTES,
        limits.MAX_REGEX_BYTES,
        limits.MAX_DEPTH,
        limits.MAX_PROPERTIES,
        limits.MAX_OPTIONS,
        limits.MAX_SECONDS,
        schema_validator.MAX_SECONDS,
    ]

"""`fewbit run` and `fewbit chat` with answers that have a structure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fewbit.cli import main
from fewbit.cli.remote import RemoteModel
from fewbit.errors import ArgumentError

pytest.importorskip("llguidance")

COLOR = {"type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"]}
COLOR["additionalProperties"] = False
TWICE = {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2, "uniqueItems": True}


def run(*args: str, command: str = "run", stdin: str = "") -> Result:
    return CliRunner().invoke(main, [command, *args], input=stdin)


def write(path: Path, content: Any) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_an_answer_is_json_that_matches_a_schema(tiny: str, tmp_path: Path) -> None:
    schema = write(tmp_path / "color.json", COLOR)
    result = run(tiny, "hi", "--schema", schema, "-q")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["color"] in ("red", "blue")
    facts = json.loads(run(tiny, "hi", "--schema", schema, "--json").stdout)
    assert (facts["parsed"], facts["finish_reason"]) == (json.loads(facts["text"]), "stop")


def test_an_answer_that_breaks_its_schema_fails(tiny: str, tmp_path: Path) -> None:
    schema = write(tmp_path / "twice.json", TWICE)
    result = run(tiny, "hi", "--schema", schema)
    assert (result.exit_code, result.stdout) == (1, "[1, 1]\n")
    assert result.stderr.splitlines()[-1] == ("fewbit: the answer breaks the schema: $: [1, 1] has non-unique elements")


def test_regexes_choices_and_grammars(tiny: str, tmp_path: Path) -> None:
    grammar = write(tmp_path / "laugh.gbnf", 'root ::= ("ha" | "ho") "!"\n')
    assert run(tiny, "hi", "--grammar", grammar, "-q").stdout in ("ha!\n", "ho!\n")
    assert run(tiny, "hi", "--regex", "[0-9]{3}", "-q").stdout.strip().isdecimal()
    assert run(tiny, "hi", "--choice", "yes", "--choice", "no", "-q").stdout in ("yes\n", "no\n")
    assert run(tiny, "hi", "--raw", "--json-object", "-q", "-n", "8").stdout.startswith("{")


def test_answers_of_a_conversation(tiny: str, tmp_path: Path) -> None:
    schema = write(tmp_path / "color.json", COLOR)
    result = run(tiny, "--schema", schema, "--json", command="chat", stdin="hi\nanother\n")
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["parsed"].keys() for answer in answers] == [{"color"}, {"color"}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--schema", "nothere.json"], "nothere.json: cannot be read: No such file or directory"),
        (["--schema", "{bad}"], "bad: not JSON: Expecting value: line 1 column 9 (char 8)"),
        (["--schema", "{wrong}"], "the JSON schema"),
        (["--regex", "("], "the regex cannot be compiled"),
        (["--regex", "a", "--choice", "b"], "regex and choice cannot be used together"),
        (["--grammar", "{bad}"], "bad: "),
    ],
    ids=str,
)
def test_what_is_refused_in_a_sentence(tiny: str, tmp_path: Path, options: list[str], message: str) -> None:
    files = {"bad": write(tmp_path / "bad", '{"type":'), "wrong": write(tmp_path / "wrong", {"type": "objec"})}
    result = run(tiny, "hi", *(option.format(**files) if option[0] == "{" else option for option in options))
    assert result.exit_code == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("fewbit: ")
    assert message in last


def test_what_is_asked_of_a_server() -> None:
    sent: list[dict[str, Any]] = []

    class Server:
        url = "http://127.0.0.1"

        def models(self) -> list[str]:
            return ["one"]

        def get(self, path: str, body: Any = None) -> Any:
            return {"max_model_len": 64}

        def open(self, path: str, body: Any = None) -> Any:
            sent.append(body)

    model = RemoteModel(Server())  # type: ignore[arg-type]
    model.chat([], schema=json.dumps(COLOR))
    model.chat([], json=True)
    model.chat([])
    assert sent[0]["response_format"]["json_schema"]["schema"] == COLOR
    assert sent[1]["response_format"] == {"type": "json_object"}
    assert not {"schema", "json", "response_format"} & sent[2].keys()
    with pytest.raises(ArgumentError, match="--regex is for models that are loaded here; a server takes"):
        model.chat([], regex="a")

"""`fewbit eval`, `fewbit calibrate` and `fewbit report`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import fewbit as fb
from fewbit.cli import main

from ..evaluation.reference import TEXT


def fewbit(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_one_row_for_each_combination(tiny: str, text: Path) -> None:
    result = fewbit("eval", tiny, "--text", text, "-c", "32", "--kv", "f16,q4_0", "--activations", "exact,int8",
                    "--against", tiny)  # fmt: skip
    assert result.exit_code == 0, result.output
    heads, *rows = [line.split() for line in result.stdout.splitlines()]
    assert heads[:5] == ["kv", "activations", "perplexity", "error", "KL"]
    assert [row[:2] for row in rows] == [["f16", "exact"], ["f16", "int8"], ["q4_0", "exact"], ["q4_0", "int8"]]
    assert float(rows[0][4]) < float(rows[2][4])
    assert "tokens of" in result.stderr
    assert "against tiny" in result.stderr


def test_json_is_what_the_library_gives(tiny: str, text: Path) -> None:
    result = fewbit(
        "eval", tiny, "--text", text, "-c", "32", "--stride", "16", "--skip", "20", "--json", "-q", "-t", "1"
    )
    assert result.exit_code == 0, result.output
    (facts,) = json.loads(result.stdout)["text"]
    (found,) = fb.evaluate(tiny, text, ctx=32, stride=16, skip=20, threads=1)
    expected = found.to_dict()
    for one in (facts, expected):
        one.pop("seconds")
    assert facts == json.loads(json.dumps(expected))
    assert result.stderr == ""


@pytest.mark.parametrize("by", ["depth", "position"])
def test_parts(tiny: str, text: Path, by: str) -> None:
    result = fewbit("eval", tiny, "--text", text, "-c", "140", "--skip", "1", "--by", by)
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.split("\n\n")[1].splitlines()]
    assert rows[0] == ["kv", by, "tokens", "perplexity", "KL"]
    assert sum(int(row[2]) for row in rows[1:]) == 139
    assert rows[1][1] == ("0-63" if by == "depth" else "0-12%")


def test_logits_are_saved_and_read(tiny: str, text: Path, tmp_path: Path) -> None:
    saved = tmp_path / "base.gguf"
    result = fewbit("eval", tiny, "--text", text, "-c", "32", "--save", saved, "--top", "16")
    assert result.exit_code == 0, result.output
    assert f"{saved}: the logits of" in result.stderr
    result = fewbit("eval", tiny, "--logits", saved, "--json")
    assert result.exit_code == 0, result.output
    (facts,) = json.loads(result.stdout)["text"]
    assert facts["divergence"]["mean"] < 1e-4
    assert facts["reference"] == "tiny"


def test_multiple_choice(tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "ab", "choices": ["cd", "efg"], "answer": 0}\n' * 3)
    result = fewbit("eval", tiny, "--choices", path, "--kv", "f16,q8_0")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[:2] for row in rows[1:]] == [["f16", "3"], ["q8_0", "3"]]
    facts = json.loads(fewbit("eval", tiny, "--choices", path, "--json").stdout)
    assert facts["text"] == []
    assert facts["choices"][0]["questions"] == 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "there is nothing to evaluate: give --text, --logits or --choices"),
        (["--text", "none.txt"], "none.txt: cannot be read"),
        (["--kv", "f16,nothing", "--text", "x"], "nothing"),
        (["--activations", "int4", "--text", "x"], "int4"),
        (["--threads", "a", "--text", "x"], "is not like"),
        (["--ctx", "1", "--text", "x"], "--ctx"),
        (["--choices", "none.jsonl"], "none.jsonl: cannot be read"),
        (["--logits", "none.gguf"], "none.gguf"),
    ],
)
def test_mistakes_are_one_sentence(tiny: str, args: list[str], message: str) -> None:
    result = fewbit("eval", tiny, *args)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_an_importance_matrix(tiny: str, text: Path, tmp_path: Path) -> None:
    path = tmp_path / "imatrix.gguf"
    result = fewbit("calibrate", tiny, "--text", text, "-o", path, "-c", "32", "--hessian")
    assert result.exit_code == 0, result.output
    assert "4 windows of 32 tokens" in result.stderr
    found = fb.read_imatrix(path)
    assert "blk.0.ffn_down.weight" in found
    assert list(found.datasets) == [str(text)]
    assert (tmp_path / "imatrix.hessian.gguf").exists()
    result = fewbit("calibrate", tiny, "--text", text)
    assert result.exit_code == 2
    assert "'--output'" in result.stderr


def test_a_report(tiny: str, text: Path, tmp_path: Path) -> None:
    page, charts = tmp_path / "a.html", tmp_path / "charts"
    result = fewbit("report", tiny, "--text", text, "--reference", tiny, "-c", "32", "-o", page, "--svg", charts)
    assert result.exit_code == 0, result.output
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert len(list(charts.glob("*.svg"))) > 3
    assert f"{page}: 1 model" in result.stderr
    result = fewbit("report", tiny, "-o", tmp_path / "none" / "a.html")
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr

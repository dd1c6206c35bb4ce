"""`fewbit embed`: texts in, cosines or vectors out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fewbit.cli import main
from fewbit.llm import LLM

from .tiny import write_tiny

BERT = str(Path(__file__).parents[1] / "zoo" / "bert" / "model.gguf")


def embed(*args: str, stdin: str = "") -> Result:
    return CliRunner().invoke(main, ["embed", BERT, *args], input=stdin)


def vectors(*args: str, stdin: str = "") -> np.ndarray:
    result = embed(*args, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert (facts["object"], facts["model"]) == ("list", "model")
    assert [one["index"] for one in facts["data"]] == list(range(len(facts["data"])))
    return np.array([one["embedding"] for one in facts["data"]], np.float32)


def test_one_text_prints_the_beginning_of_its_vector() -> None:
    result = embed("the cat")
    assert result.exit_code == 0
    assert result.stdout.startswith("32 values: ")
    assert result.stdout.endswith(" ...\n")


def test_several_texts_print_cosines() -> None:
    result = embed("the cat", "the cat", "you and he")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0] == ["text", "1", "2", "3"]
    assert rows[1][:3] == ["1", "the", "cat"]
    assert rows[1][3:5] == ["1.000", "1.000"]
    assert float(rows[1][5]) < 1


def test_many_texts_print_their_nearest(tmp_path: Path) -> None:
    words = ["the cat", "of it", "you", "in that"]
    texts = [" ".join([*words[n:], *words[:n], "on"][: 2 + n % 3] * (1 + n % 2)) + f" {n}" for n in range(13)]
    path = tmp_path / "lines.txt"
    path.write_text("\n".join([*texts, texts[4]]) + "\n")
    lines = embed("--file", str(path)).stdout.splitlines()
    assert lines[0].split() == ["text", "nearest", "cosine"]
    assert len(lines) == 1 + 14
    assert lines[5].split() == [*texts[4].split(), *texts[4].split(), "1.000"]


def test_json_is_what_the_library_gives(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("of it\n\nyou\n")
    with LLM(BERT) as llm:
        expected = llm.embed(["the cat", "of it", "", "you", "in that"])
        first = llm.embed(["the cat"], "cls", normalize=False)
    got = vectors("the cat", "--file", str(path), "-", stdin="in that\n")
    np.testing.assert_allclose(got, expected, atol=1e-3)
    np.testing.assert_allclose(vectors("the cat", "--pooling", "cls", "--no-normalize"), first, rtol=1e-3, atol=1e-3)


def test_lines_of_standard_input() -> None:
    assert vectors(stdin="the cat\nof it\n").shape == (2, 32)


@pytest.mark.parametrize("text", ["of it\n\n  \nyou\n\n", "of it\r\n\r\n  \r\nyou\r\n\r\n", "of it\n\n  \nyou\n"])
def test_each_line_has_a_vector(text: str) -> None:
    """Blank ones too, as the embedding of the empty text."""
    got = vectors(stdin=text)
    assert len(got) == text.count("\n")
    with LLM(BERT) as llm:
        empty = llm.embed("")
        np.testing.assert_allclose(got[:4], [llm.embed("of it"), empty, empty, llm.embed("you")], atol=1e-3)


def test_other_line_ends_stay_in_their_line() -> None:
    assert vectors(stdin="the\u2028cat\x0cyou\nof it\n").shape == (2, 32)


def test_empty_arguments_keep_their_place() -> None:
    assert vectors("the", "", "of").shape == (3, 32)


def test_a_blank_line_that_has_no_tokens_is_named(tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "tiny.gguf")  # without BOS
    lines = tmp_path / "lines.txt"
    lines.write_text("a\nb\n\nc\n")
    result = CliRunner().invoke(main, ["embed", str(tiny), "--file", str(lines)])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"line 3 of {lines} is empty: it has no tokens, and the model adds none" in result.stderr


def test_a_line_that_is_too_long(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("you\n" + "the " * 70 + "\n")
    result = embed("--file", str(lines))
    assert result.exit_code == 1
    assert f"line 2 of {lines} has 72 tokens, and 64 fit" in result.stderr
    with LLM(BERT) as llm:
        expected = llm.embed(["you", "the " * 62])
    np.testing.assert_allclose(vectors("--file", str(lines), "--truncate"), expected, atol=1e-3)


def test_nothing_to_embed() -> None:
    result = embed()
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "there is no text" in result.stderr


def test_an_encoder_answers_no_prompt() -> None:
    for command in ("run", "bench"):
        arguments = [command, BERT, *(["the cat"] if command == "run" else ["--prompt", "8", "--gen", "1"])]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert "the model is an encoder: it" in result.stderr
        assert result.stderr.count("\n") == 1

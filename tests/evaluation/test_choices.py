"""Multiple choice by log-likelihood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.errors import DataError, PathError
from fewbit.evaluation.choices import Question, read_questions, summarize_choices

from .reference import EXACT, models

ASKED = [
    {"question": "ab cd", "choices": ["ef", "g h i", "jklmnop"], "answer": 1},
    {"question": "x ", "choices": ["one", "two"], "answer": "B"},
    {"question": "y", "choices": [" one", "two"], "answer": "two"},
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models(tmp_path_factory.mktemp("models"))[0]


def write(path: Path, records: list[Any]) -> Path:
    path.write_text("\n\n".join(one if isinstance(one, str) else json.dumps(one) for one in records) + "\n")
    return path


def test_likelihoods_are_sums_of_scores(base: Path, tmp_path: Path) -> None:
    done: list[tuple[int, int]] = []
    path = write(tmp_path / "a.jsonl", ASKED)
    found = fb.evaluate_choices(base, path, progress=lambda *args: done.append(args), **EXACT)
    texts = [["ab cd ef", "ab cd g h i", "ab cd jklmnop"], ["x one", "x two"], ["y one", "y two"]]
    with fb.LLM(base, **EXACT) as llm:
        for one, wholes, likelihoods in zip(ASKED, texts, found.likelihoods, strict=True):
            first = len(str(one["question"])) - 1  # a token is a byte
            expected = [float(llm.score(whole)[first:].sum(dtype=np.float64)) for whole in wholes]
            np.testing.assert_allclose(likelihoods, expected, rtol=1e-4)
        again = fb.evaluate_choices(llm, read_questions(path))
    np.testing.assert_allclose(np.concatenate(again.likelihoods), np.concatenate(found.likelihoods), rtol=1e-4)
    assert sorted(done) == [(1, 3), (2, 3), (3, 3)]
    rights = [int(np.argmax(values)) == answer for values, answer in zip(found.likelihoods, (1, 1, 1), strict=True)]
    assert found.accuracy == pytest.approx(np.mean(rights))
    assert found.to_dict()["questions"] == 3


def test_longer_answers_are_not_less_likely_when_normalized() -> None:
    questions = [Question("", ("ab", "abcdefgh"), 1), Question("", ("ab", "é"), 0), Question("", ("a", "b"), 1)]
    found = summarize_choices(questions, [[-2.0, -4.0], [-3.0, -4.0], [-1.0, -0.5]])
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.normalized_accuracy == 1.0
    assert found.normalized_error == 0
    assert found.accuracy_error == pytest.approx(np.std([0, 1, 1], ddof=1) / np.sqrt(3))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"a.jsonl, line 3: not JSON"),
        ("[1]", r"line 3: an object with question, choices and answer"),
        ({"question": 1}, "line 3: an object"),
        ({"question": "a", "choices": ["b"], "answer": 0}, "choices must be a list of at least two"),
        ({"question": "a", "choices": ["b", " "], "answer": 0}, "choices must be a list of at least two"),
        ({"question": "a", "choices": ["b", "c"], "answer": 2}, "a number from 0 to 1, a letter or a choice, not 2"),
        ({"question": "a", "choices": ["b", "c"], "answer": True}, "not True"),
        ({"question": "a", "choices": ["b", "c"], "answer": "D"}, "not 'D'"),
        ({"question": "a", "choices": ["b", "c"]}, "not None"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_questions(write(tmp_path / "a.jsonl", [ASKED[0], line]))


def test_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(PathError, match="No such file"):
        read_questions(tmp_path / "none.jsonl")
    (tmp_path / "a.jsonl").write_bytes(b"\n")
    with pytest.raises(DataError, match="there is no question"):
        read_questions(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").write_bytes(b"\xff")
    with pytest.raises(DataError, match="not UTF-8"):
        read_questions(tmp_path / "a.jsonl")

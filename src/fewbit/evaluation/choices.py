"""Multiple choice: which of some answers a model finds likeliest, by log-likelihood."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays import Floats
from ..errors import DataError, PathError
from ..llm import LLM
from ..llm.progress import Progress, ProgressMeter
from ..load_options import KvFormats
from .results import standard_error

QUESTIONS_AT_A_TIME = 16


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its answers, and the number of the right one."""

    question: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True, slots=True)
class ChoiceScores:
    """How often a model finds the right answer likeliest.

    Args:
        questions: Number of questions.
        accuracy: Share of questions whose right answer has the highest log-likelihood.
        accuracy_error: Its standard error.
        normalized_accuracy: The same with log-likelihoods divided by the number of bytes of the answer.
        normalized_error: Its standard error.
        likelihoods: The log-likelihood of each answer of each question.
    """

    questions: int
    accuracy: float
    accuracy_error: float
    normalized_accuracy: float
    normalized_error: float
    likelihoods: tuple[tuple[float, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        """All figures, ready for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def evaluate_choices(
    model: str | PathLike[str] | LLM,
    questions: str | PathLike[str] | Sequence[Question],
    *,
    format: str | None = None,
    kv: KvFormats = "f16",
    activations: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    progress: Progress = False,
) -> ChoiceScores:
    """Let a model choose among answers by their log-likelihood after the question.

    Args:
        model: The model: whatever `LLM` takes, or an `LLM`.
        questions: Path of a JSONL file whose lines have `question`, `choices` and `answer`: the number of the right
            choice, from 0, its letter, or its text.
        format: Format to quantize f32, f16 and bf16 weights to.
        kv: Format of the KV cache.
        activations: Precision of the inputs of matrix products.
        device: Where the model runs.
        threads: Number of threads.
        progress: True for a line on standard error, or a function that is called with (done, total).
    """
    chosen = read_questions(questions) if isinstance(questions, str | PathLike) else list(questions)
    if isinstance(model, LLM):
        return _evaluate(model, chosen, progress)
    with LLM(model, device=device, kv=kv, threads=threads, activations=activations, format=format) as llm:
        return _evaluate(llm, chosen, progress)


def read_questions(path: str | PathLike[str]) -> list[Question]:
    """The questions of a JSONL file.

    Args:
        path: The file. Blank lines are skipped.
    """
    try:
        lines = Path(path).read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise PathError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start})") from None
    found = [_question(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise DataError(f"{path}: there is no question")
    return found


def _question(line: str, place: str) -> Question:
    """A line of the file.

    >>> _question('{"question": "1 + 1 =", "choices": ["2", "3"], "answer": "A"}', "line 1")
    Question(question='1 + 1 =', choices=('2', '3'), answer=0)
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON: {error}") from None
    if not isinstance(record, dict) or not isinstance(record.get("question"), str):
        raise DataError(f"{place}: an object with question, choices and answer is expected")
    choices = record.get("choices")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(c, str) and c.strip() for c in choices):
        raise DataError(f"{place}: choices must be a list of at least two texts")
    return Question(record["question"], tuple(choices), _answer(record.get("answer"), choices, place))


def _answer(answer: object, choices: Sequence[str], place: str) -> int:
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return answer
    if isinstance(answer, str) and choices.count(answer) == 1:
        return choices.index(answer)
    letters = string.ascii_uppercase[: len(choices)]
    if isinstance(answer, str) and len(answer) == 1 and answer.upper() in letters:
        return letters.index(answer.upper())
    last = len(choices) - 1
    raise DataError(f"{place}: answer must be a number from 0 to {last}, a letter or a choice, not {answer!r}")


def _evaluate(llm: LLM, questions: Sequence[Question], progress: Progress) -> ChoiceScores:
    """The prompts of several questions run together."""

    def ask(question: Question) -> list[float]:
        scores = llm.score([_continuation(question, choice) for choice in question.choices], question.question)
        meter.add(sum(map(len, scores)))
        return [_sum(one) for one in scores]

    with (
        closing(ProgressMeter(progress, len(questions), "questions")) as meter,
        ThreadPoolExecutor(QUESTIONS_AT_A_TIME) as pool,
    ):
        return summarize_choices(questions, list(pool.map(ask, questions)))


def _continuation(question: Question, choice: str) -> str:
    """The text of a choice after the question: a space stands between them unless one of them has it."""
    is_apart = not question.question or question.question[-1].isspace() or choice[0].isspace()
    return choice if is_apart else f" {choice}"


def _sum(scores: Floats) -> float:
    return float(scores.sum(dtype=np.float64))


def summarize_choices(questions: Sequence[Question], likelihoods: Sequence[Sequence[float]]) -> ChoiceScores:
    """The shares of right answers.

    >>> question = Question("1 + 1 =", ("two", "3"), 0)
    >>> found = summarize_choices([question], [[-3.0, -2.0]])
    >>> found.accuracy, found.normalized_accuracy
    (0.0, 1.0)
    """
    plain, normalized = [], []
    for question, values in zip(questions, likelihoods, strict=True):
        sizes = [len(choice.encode()) for choice in question.choices]
        plain.append(int(np.argmax(values)) == question.answer)
        normalized.append(int(np.argmax(np.divide(values, sizes))) == question.answer)
    first, second = (np.array(values, np.float64) for values in (plain, normalized))
    errors = standard_error(first), standard_error(second)
    shares = float(first.mean()), float(second.mean())
    return ChoiceScores(len(questions), shares[0], errors[0], shares[1], errors[1], tuple(map(tuple, likelihoods)))

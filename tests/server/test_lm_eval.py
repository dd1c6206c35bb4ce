"""lm-evaluation-harness, where it is installed, scores a local task by the server, and its numbers are `LLM.score`'s.

pip install "lm-eval[api]"
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fewbit.llm import LLM

from .conftest import Live

lm_eval: Any = pytest.importorskip("lm_eval")
pytest.importorskip("tenacity")  # of its extra for APIs
tasks: Any = pytest.importorskip("lm_eval.tasks")

pytestmark = pytest.mark.filterwarnings("ignore")  # its own

QUESTIONS = [
    {"question": "The sky is", "choices": ["blue", "made of stone"], "answer": 0},
    {"question": "Two and two are", "choices": ["three", "four", "\u4e94"], "answer": 1},
    {"question": "A cat says", "choices": ["meow", "moo"], "answer": 0},
]
TASK = """
task: few_questions
dataset_path: json
dataset_kwargs: {{data_files: {{validation: "{path}"}}}}
validation_split: validation
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
doc_to_choice: choices
metric_list: [{{metric: acc}}]
"""


@pytest.fixture
def live_server(llm: LLM) -> Iterator[Live]:
    found = Live(llm)
    yield found
    found.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a task; nothing is looked for elsewhere."""
    for name, value in {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(f"{json.dumps(one)}\n" for one in QUESTIONS))
    (tmp_path / "few_questions.yaml").write_text(TASK.format(path=questions))
    return tmp_path


@pytest.mark.parametrize("more", [{}, {"num_concurrent": 4}], ids=["one by one", "together"])
def test_log_likelihoods_are_those_of_score(llm: LLM, live_server: Live, folder: Path, more: dict[str, Any]) -> None:
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={"model": "tiny", "base_url": f"{live_server.url}/v1/completions", "max_length": 1024, **more},
        tasks=["few_questions"],
        task_manager=tasks.TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )
    samples = sorted(found["samples"]["few_questions"], key=lambda one: one["doc_id"])
    told = [[likelihood for likelihood, _ in one["filtered_resps"]] for one in samples]
    expected = [[log_likelihood(llm, one["question"], choice) for choice in one["choices"]] for one in QUESTIONS]
    assert told == expected
    right = [
        max(range(len(of)), key=of.__getitem__) == one["answer"] for of, one in zip(expected, QUESTIONS, strict=True)
    ]
    assert found["results"]["few_questions"]["acc,none"] == sum(right) / len(right)


def log_likelihood(llm: LLM, context: str, continuation: str) -> float:
    begin = len(llm.tokenize(context))
    return sum(llm.score(llm.tokenize(f"{context} {continuation}"))[begin - 1 :].tolist())

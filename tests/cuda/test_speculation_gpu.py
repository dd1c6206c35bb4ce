"""Drafts on a GPU: steps that verify them are captured as graphs, and the text is that without."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import fewbit as fb
from fewbit.devices.cuda_executor import CudaExecutor
from fewbit.engine.request import Generation
from fewbit.engine.speculation.drafter import Prospect

from ..engine.speculation.test_mtp import Model, check_schedules
from ..mtp_models import ZOO, with_mtp

pytestmark = pytest.mark.cuda
IS_EMULATED = bool(os.environ.get("FEWBIT_EMULATE_CUDA"))
SMALL: dict[str, Any] = {
    "device": "cuda", "kv": "f16", "max_batched_tokens": 64, "max_seqs": 8, "ctx": 128, "cache_bytes": 1 << 22,
    "batch_invariant": True,
}  # fmt: skip
TOKENS = 12 if IS_EMULATED else 24
PROMPTS = [[5 + 3 * i % 40 for i in range(20)], [9, 8, 7]]


class Oracle:
    """Guesses what plain decoding gave, and now and then something else."""

    max_tokens = 4

    def __init__(self, texts: list[list[int]]) -> None:
        self.texts, self.turn = texts, 0

    def prospect(self, request: Generation) -> Prospect:
        return Prospect(4, "oracle")

    def seconds(self, length: int) -> float:
        return 0.0

    def propose(self, requests: Any, lengths: Any) -> list[list[int]]:
        self.turn += 1
        return [self.guess(request.tokens)[: (self.turn + i) % 5] for i, request in enumerate(requests)]

    def guess(self, tokens: list[int]) -> list[int]:
        text = next(text for text in self.texts if text[: len(tokens)] == tokens)
        rest = text[len(tokens) :][:4]
        return [token + (self.turn % 3 == 0 and place == 2) for place, token in enumerate(rest)]

    def finish(self, request: Generation) -> None:
        pass


def outputs(path: Path, **options: Any) -> tuple[list[list[int]], int, Any]:
    with fb.LLM(path, **SMALL, **options) as llm:
        speculation = llm.engine._speculation
        if speculation is not None:
            speculation.is_adaptive = False
        answers = llm.generate(PROMPTS, max_tokens=TOKENS, temperature=0)
        return [one.tokens for one in answers], sum(one.draft_tokens for one in answers), llm.loaded.executor


@pytest.mark.parametrize(
    "name", ["llama"] if IS_EMULATED else ["llama", "qwen35", "granitehybrid", "gemma3", "gpt-oss"]
)
def test_captured_steps_of_several_tokens(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ZOO / name / "model.gguf"
    plain, _, _ = outputs(path, speculate="off")
    oracle = Oracle([prompt + text for prompt, text in zip(PROMPTS, plain, strict=True)])
    monkeypatch.setattr("fewbit.llm.drafting.LookupDrafter", lambda *_: oracle)
    guessed, drafted, executor = outputs(path, speculate="ngram")
    assert guessed == plain
    assert drafted > 2
    assert isinstance(executor, CudaExecutor)
    assert any(key.is_drafted and bucket.graphs for key, bucket in executor.buckets.items())


@pytest.mark.parametrize("name", ["glm4moe"] if IS_EMULATED else ["glm4moe", "qwen35", "deepseek2"])
def test_guesses_by_the_layer_of_the_model(tmp_path: Path, name: str) -> None:
    path = with_mtp(tmp_path, name, own_tables=False, likely=3)
    plain, _, _ = outputs(path, speculate="off")
    guessed, drafted, _ = outputs(path, speculate="mtp", draft_tokens=2)
    assert guessed == plain
    assert drafted > 2


@pytest.mark.skipif(IS_EMULATED, reason="the emulator is slow")
@pytest.mark.parametrize("name", ["glm4moe", "qwen35"])
def test_any_schedule_has_the_same_bits(tmp_path: Path, name: str) -> None:
    check_schedules(Model(with_mtp(tmp_path, name, own_tables=False, likely=3), device="cuda"), 32)

"""Stages in Ray actors on a cluster of two nodes: the text of one process, and what happens when a stage is gone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import fewbit as fb
from fewbit.errors import DeviceError, FileError, RequestError

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("cluster")]  # of Ray
ZOO = Path(__file__).parents[1] / "zoo"
PROMPTS = [[i + 3, *range(5, 5 + 7 * i)] for i in range(5)]
EXACT: dict[str, Any] = {
    "batch_invariant": True, "max_batched_tokens": 64, "max_seqs": 8, "cache_bytes": 1 << 20, "ctx": 64, "threads": 1,
}  # fmt: skip


def text(llm: fb.LLM) -> list[list[int]]:
    found = llm.generate(PROMPTS, max_tokens=9, seed=5, n=2)
    tokens = [one.tokens for first in found for one in first.outputs]
    return [*tokens, llm.generate(PROMPTS[2], max_tokens=3, regex="[a-f]+", seed=1).tokens]


@pytest.mark.parametrize(
    ("name", "stages"),
    [("smollm3", 3), ("gemma3", 2), ("qwen35", 3), ("granitehybrid", 2), ("qwen3moe", 2), ("mistral3", 2)],
)
def test_the_text_is_that_of_one_process(name: str, stages: int) -> None:
    path = ZOO / name / "model.gguf"
    with fb.LLM(path, **EXACT) as one, fb.LLM(path, stages=stages, **EXACT) as several:
        assert several.loaded.executor.depth == stages  # type: ignore[attr-defined]
        assert text(several) == text(one)
        assert several.score(PROMPTS[3]).tolist() == one.score(PROMPTS[3]).tolist()
        assert several.loaded.cache.stats().used == 0


def test_pages_are_read_and_written(tmp_path: Path) -> None:
    path = ZOO / "smollm3" / "model.gguf"
    with fb.LLM(path, stages=2, **EXACT) as several, fb.LLM(path, **EXACT) as one:
        prompt = list(range(3, 43))
        expected = one.generate(prompt, max_tokens=4, seed=1).tokens
        assert several.generate(prompt, max_tokens=4, seed=1).tokens == expected
        for number, llm in enumerate((several, one)):
            llm.loaded.cache.save(llm.loaded.cache.new(prompt), tmp_path / str(number))
        assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()
    with fb.LLM(path, stages=2, **EXACT) as several:
        several.loaded.cache.load(tmp_path / "1")
        assert several.generate(prompt, max_tokens=4, seed=1).tokens == expected
        assert several.loaded.cache.stats().hits


@ray.remote(num_cpus=0)
def stop(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def write_until(llm: fb.LLM, end: float) -> None:
    while time.monotonic() < end:
        llm.generate(PROMPTS, max_tokens=4)


def test_a_stage_that_dies_is_an_error() -> None:
    with fb.LLM(ZOO / "smollm3" / "model.gguf", stages=3, **EXACT) as llm:
        llm.generate(PROMPTS, max_tokens=4)
        actor = llm.loaded.executor.stages[1]._actor  # type: ignore[attr-defined]
        ray.get(stop.remote(ray.get(actor.describe.remote()).pid))
        begin = time.monotonic()
        with pytest.raises(DeviceError, match=r"^stage 2 on node .* has stopped, and its K and V are lost"):
            write_until(llm, begin + 30)
        with pytest.raises(DeviceError, match="load the model again"):
            llm.generate(PROMPTS[0], max_tokens=4)
    with fb.LLM(ZOO / "smollm3" / "model.gguf", stages=3, **EXACT) as llm:
        assert llm.generate(PROMPTS[0], max_tokens=4).tokens


def test_what_cannot_be_stages() -> None:
    with pytest.raises(RequestError, match="cannot be cut into 3 stages: at most into 2"):
        fb.LLM(ZOO / "llama" / "model.gguf", stages=3, **EXACT)
    with pytest.raises(RequestError, match="give stages, or several devices"):
        fb.LLM(ZOO / "llama" / "model.gguf", device="cpu,cpu", stages=2, **EXACT)


def test_the_file_must_be_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fewbit.cluster import stages

    monkeypatch.setattr(stages, "model_fingerprint", lambda file: "other")
    with pytest.raises(FileError, match=r"of stage 2 on node .* is another model than the one here"):
        fb.LLM(ZOO / "smollm3" / "model.gguf", stages=2, **EXACT)

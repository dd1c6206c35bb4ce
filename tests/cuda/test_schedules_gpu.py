"""The engine on a GPU: the same bits in any schedule, all that a step can do, and errors that end one alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit import devices
from fewbit.devices.batch import resolve_masks
from fewbit.devices.cuda_executor import CudaExecutor, CudaHandle
from fewbit.engine.engine import Engine
from fewbit.errors import OutOfMemory
from fewbit.models import open_model
from fewbit.ops.cuda import Session
from fewbit.ops.sampling import SamplingParams

from ..engine import test_batch_invariant
from ..engine.alone import run
from ..engine.test_batch_invariant import CROWD, Job, Model, check, check_schedules
from ..engine.toy_constraints import Pattern
from ..loading import load
from ..models.random_llama import write_llama

pytestmark = pytest.mark.cuda
IS_EMULATED = bool(os.environ.get("FEWBIT_EMULATE_CUDA"))
ZOO_LLAMA = Path(__file__).parents[1] / "zoo" / "llama" / "model.gguf"
SMALL: dict[str, Any] = {"device": "cuda", "kv": "f16", "max_batched_tokens": 64, "max_seqs": 8, "ctx": 128}
PROMPT = [5 + 3 * i % 40 for i in range(36)]
GREEDY = SamplingParams(temperature=0.0)


def model_path(folder: Path) -> Path:
    return write_llama(folder / "model.gguf", format="q8_0")  # tiny: the emulator is slow


@pytest.mark.parametrize("kv", ["q8_0"] if IS_EMULATED else ["f16", "f8_e4m3", "q8_0"])
def test_any_schedule_has_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv: str) -> None:
    model = Model(model_path(tmp_path), kv=kv, device="cuda")
    if not IS_EMULATED:
        check_schedules(model, 64)
        return
    monkeypatch.setattr(test_batch_invariant, "OUTPUT", 4)
    check(model, CROWD[:2], (64, 96))  # their second pages do not fit
    assert model.preemptions
    check(model, [Job(0, 50, 0, 0, False), Job(0, 36, 2, 1, False), Job(0, 33, 1, 0, True)], (48, 400))
    assert model.hits


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[fb.LLM, fb.LLM]]:
    """The same model on the CPU, exactly, and on the GPU."""
    with fb.LLM(ZOO_LLAMA, exact=True, ctx=128) as cpu, fb.LLM(ZOO_LLAMA, cache_bytes=1 << 22, **SMALL) as gpu:
        yield cpu, gpu


class Odd:
    """Lets odd tokens follow even ones, and the other way round."""

    is_finished = False

    def __init__(self, words: int) -> None:
        self.words, self.word = words, 0xAAAAAAAA

    def mask(self) -> Any:
        return np.full(self.words, self.word, np.uint32)

    def accept(self, token: int) -> None:
        self.word ^= 0xFFFFFFFF

    def forced(self) -> list[int]:
        return []

    def rollback(self, count: int) -> None:
        for _ in range(count):
            self.accept(0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"repetition_penalty": 1.5},
        {"presence_penalty": 1.0, "frequency_penalty": 0.7},
        {"logit_bias": {7: 100.0, 9: 99.0}, "frequency_penalty": 2.0},
        {"n": 3},
    ],
    ids=["plain", "repetition", "frequency", "bias", "forks"],
)
def test_outputs_are_those_of_the_cpu(both: tuple[fb.LLM, fb.LLM], options: dict[str, Any]) -> None:
    expected, got = (llm.generate([PROMPT, PROMPT[:3]], max_tokens=5, temperature=0.0, **options) for llm in both)
    assert [one.tokens for one in got] == [one.tokens for one in expected]


def test_a_step_is_not_padded_past_the_rows_that_there_are(both: tuple[fb.LLM, fb.LLM]) -> None:
    """Five sequences at most, where graphs are captured for four and for six."""
    prompts = [[token] for token in PROMPT[:5]]
    expected = both[0].generate(prompts, max_tokens=3, temperature=0.0)
    few = {**SMALL, "max_batched_tokens": 5, "max_seqs": 5}
    with fb.LLM(ZOO_LLAMA, cache_bytes=1 << 22, **few) as llm:
        got = llm.generate(prompts, max_tokens=3, temperature=0.0)
    assert [one.tokens for one in got] == [one.tokens for one in expected]


def test_constraints_are_kept(both: tuple[fb.LLM, fb.LLM]) -> None:
    words = -(-both[1].loaded.executor.vocab // 32)
    free, bound = both[1].generate(PROMPT, max_tokens=6, temperature=0.0), []
    for llm in both:
        bound.append(llm.generate(PROMPT, max_tokens=6, temperature=0.0, constraint=lambda: Odd(words)).tokens)
    assert bound[0] == bound[1] != free.tokens
    assert [token % 2 for token in bound[1]] == [1, 0] * 3


def test_masks_that_come_after_the_forward_pass_was_launched(
    both: tuple[fb.LLM, fb.LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forced tokens and late masks beside free outputs, as graphs and not; a mask that fails ends its output alone."""
    vocab, log = both[1].loaded.executor.vocab, list[str]()
    choices = [range(vocab), [7], [8], range(9, vocab), [3, 5], range(0, vocab, 2), range(1, vocab, 2)]
    launch = CudaExecutor._launch
    monkeypatch.setattr(CudaExecutor, "_launch", lambda *args: (log.append("forward"), launch(*args))[1])
    monkeypatch.setattr(
        "fewbit.devices.cuda_executor.resolve_masks", lambda samples: (log.append("masks"), resolve_masks(samples))[1]
    )

    class Failing(Pattern):
        def mask(self) -> Any:
            if len(self.accepted) == 4:
                raise ValueError("no mask")
            return super().mask()

    outputs = []
    for llm in both:
        made = [
            llm.engine.generation(prompt, GREEDY, max_tokens=9, constraint=constraint)[0]
            for prompt, constraint in (
                (PROMPT, lambda: Pattern(choices, vocab)),
                (PROMPT[:3], None),
                (PROMPT[:5], lambda: Pattern(choices, vocab, repeats=True)),
                (PROMPT[:7], lambda: Failing(choices, vocab)),
            )
        ]
        llm._worker.call(lambda engine, made=made: [engine.add([request]) for request in made])
        llm._worker.call(run)
        outputs.append([(request.output_tokens, request.finish_reason) for request in made])
    assert outputs[0] == outputs[1]
    assert [reason for _, reason in outputs[1]] == ["stop", "length", "length", "error"]
    assert outputs[1][0][0][1:3] == [7, 8]
    assert log[:2] == ["forward", "masks"]  # and a step without late masks packs its samples first
    buckets = both[1].loaded.executor.buckets.values()  # type: ignore[attr-defined]
    assert any(False in bucket.graphs for bucket in buckets)


def test_logprobs_and_scores_are_near_those_of_the_cpu(both: tuple[fb.LLM, fb.LLM]) -> None:
    expected, got = (llm.generate(PROMPT, max_tokens=4, temperature=0.0, logprobs=3) for llm in both)
    for one, other in zip(expected.logprobs, got.logprobs, strict=True):
        assert (one.token, len(other.top)) == (other.token, 3)
        assert abs(one.logprob - other.logprob) < 0.1
    scores = [llm.score(PROMPT) for llm in both]
    assert scores[0].shape == scores[1].shape == (len(PROMPT) - 1,)
    assert np.abs(scores[0] - scores[1]).max() < 0.2


def test_embeddings_of_a_decoder_are_near_those_of_the_cpu(both: tuple[fb.LLM, fb.LLM]) -> None:
    expected, got = (llm.embed([PROMPT, PROMPT[:3]]) for llm in both)
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()


def test_the_next_step_is_launched_before_one_is_fetched(
    both: tuple[fb.LLM, fb.LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = []
    executor, fetch = both[1].loaded.executor, CudaHandle.fetch
    launch = executor.launch
    monkeypatch.setattr(executor, "launch", lambda batch: (log.append("launch"), launch(batch))[1])
    monkeypatch.setattr(CudaHandle, "fetch", lambda handle: (log.append("fetch"), fetch(handle))[1])
    assert executor.runs_ahead
    both[1].generate([9, 8, 7], max_tokens=5, temperature=0.0)
    assert log == ["launch", *["launch", "fetch"] * 4, "fetch"]


def engine_of(path: Path) -> Engine:
    loaded = load(open_model(path), cache_bytes=1 << 20, **SMALL)
    return Engine(loaded.executor, loaded.cache, loaded.ctx)


def outputs(engine: Engine, prompt: Sequence[int]) -> Any:
    (request,) = engine.generation(prompt, GREEDY, max_tokens=4)
    engine.add([request])
    run(engine)
    return request


def test_a_card_without_memory_ends_a_step_and_the_engine_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(model_path(tmp_path))
    device: Session = engine.executor.device  # type: ignore[attr-defined]
    allocate, failures = device.allocate, [1]
    device._scratch.clear()  # memory that preparing has left

    def failing(nbytes: int) -> Any:
        if failures:
            failures.pop()
            raise OutOfMemory("the GPU cannot give any memory")
        return allocate(nbytes)

    monkeypatch.setattr(device, "allocate", failing)
    ended = outputs(engine, PROMPT)
    assert not failures
    assert (ended.finish_reason, str(ended.error)) == ("error", "the GPU cannot give any memory")
    assert engine.cache.stats().used == 0
    got = outputs(engine, PROMPT)
    assert got.finish_reason == "length"
    assert got.output_tokens == outputs(engine_of(model_path(tmp_path)), PROMPT).output_tokens


def test_errors_of_cuda_are_said_in_a_sentence() -> None:
    device = devices.get("cuda").device  # type: ignore[attr-defined]
    if IS_EMULATED:
        pytest.skip("the emulator has no driver")
    with pytest.raises(fb.FewbitError, match=r"^the GPU reports an error: CUDA_ERROR_INVALID_VALUE, \S.*\S$"):
        device.download(16, np.empty(4, np.uint8))

"""With `batch_invariant` a request gets the same bits alone and in any schedule: chunks, prefix hits, preemptions.

`FEWBIT_EXAMPLES=200 pytest tests/engine/test_batch_invariant.py` runs as many schedules.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import fewbit as fb
from fewbit import devices
from fewbit.engine.engine import Engine
from fewbit.engine.reading import Scoring
from fewbit.engine.request import Generation, Request
from fewbit.files.hub import find
from fewbit.load_options import LoadOptions
from fewbit.loading import load_weights, place
from fewbit.ops.sampling import SamplingParams

from ..examples import examples
from ..loading import load
from ..models.random_llama import write_llama
from .alone import run

CTX, OUTPUT = 96, 8
PARAMS = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


@dataclass(frozen=True)
class Job:
    """A prompt of the pool, up to some token: many begin alike."""

    text: int
    length: int
    wait: int  # steps after the one before
    seed: int
    scores: bool


jobs = st.builds(
    Job,
    text=st.integers(0, 2),
    length=st.sampled_from([1, 7, 30, 33, 60, 80]),
    wait=st.integers(0, 3),
    seed=st.integers(0, 1),
    scores=st.sampled_from([False, False, True]),
)
CROWD = [Job(text, length=30, wait=0, seed=0, scores=False) for text in (0, 1, 2, 0)]
AGAIN = [Job(0, length=60, wait=wait, seed=0, scores=False) for wait in (0, 12)]
sizes = st.sampled_from([(48, 130), (64, 400), (200, 1000)])  # tokens of a step, and of the cache


class Model:
    """A model file, what its requests give alone, and the counts of all schedules."""

    def __init__(self, path: Path, kv: str = "q8_0", device: str = "cpu") -> None:
        self.model, self.kv, self.device = load_weights(fb.read_gguf(path), devices.get(device)), kv, device
        vocab = self.model.config.vocab
        self.texts = [[(i * i * 31 + i * text + 17) % (vocab - 4) + 4 for i in range(CTX)] for text in range(3)]
        self.alone = cache(self._alone)
        self.preemptions = self.hits = 0

    def engine(self, step_tokens: int, cache_tokens: int) -> Engine:
        device = devices.get(self.device, LoadOptions(max_batched_tokens=step_tokens, batch_invariant=True))
        loaded = place(self.model, device, self.kv, CTX, cache_tokens)
        return Engine(loaded.executor, loaded.cache, CTX)

    def request(self, engine: Engine, job: Job) -> Request:
        tokens = self.texts[job.text][: job.length]
        if job.scores:
            return engine.scoring(tokens)
        (request,) = engine.generation(tokens, PARAMS, max_tokens=OUTPUT, seed=job.seed, logprobs=3)
        return request

    def _alone(self, text: int, length: int, seed: int, scores: bool) -> object:
        engine = self.engine(200, 1000)
        request = self.request(engine, Job(text, length, 0, seed, scores))
        engine.add([request])
        run(engine)
        return result(request)


def result(request: Request) -> object:
    """Everything that has bits."""
    if isinstance(request, Scoring):
        return request.scores.values.tolist()
    assert isinstance(request, Generation)
    return request.output_tokens, [(one.own, one.tokens.tolist(), one.logprobs.tolist()) for one in request.logprobs]


def check(model: Model, work: list[Job], size: tuple[int, int]) -> None:
    engine = model.engine(*size)
    asked = []
    for job in work:
        for _ in range(job.wait):
            engine.step()
        asked.append(model.request(engine, job))
        engine.add([asked[-1]])
    run(engine)
    model.preemptions += engine.stats().preemptions
    model.hits += engine.cache.stats().hits
    for job, request in zip(work, asked, strict=True):
        assert result(request) == model.alone(job.text, job.length, job.seed, job.scores)


def check_schedules(model: Model, count: int, max_jobs: int = 16) -> None:
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(work=st.lists(jobs, min_size=1, max_size=max_jobs), size=sizes)
    @example(work=CROWD, size=(64, 130))  # their second pages do not fit
    @example(work=AGAIN, size=(64, 400))  # the second one finds the pages of the first
    def any_schedule(work: list[Job], size: tuple[int, int]) -> None:
        check(model, work, size)

    any_schedule()
    assert model.preemptions
    assert model.hits


@pytest.mark.slow
def test_any_schedule_of_the_default_model_has_the_same_bits() -> None:
    try:
        path = find("smollm2", offline=True)
    except fb.FewbitError as error:
        pytest.skip(f"the default model is not here: {error}")
    check_schedules(Model(path), examples(usual=10, full=10))


@pytest.mark.parametrize("kv", ["f16", "f8_e4m3", "q8_0", "q4_0"])
@pytest.mark.parametrize("format", ["q4_0", "q4_k", "q6_k", "f16"])
def test_any_schedule_has_the_same_bits(tmp_path: Path, isa: str, format: str, kv: str) -> None:
    path = write_llama(tmp_path / "model.gguf", hidden=256, feed_forward=512, heads=8, layers=2, format=format)
    if isa == "scalar":  # is slow
        check_schedules(Model(path, kv=kv), examples(usual=2, full=8), max_jobs=5)
    else:
        check_schedules(Model(path, kv=kv), examples(usual=8, full=8))


def test_without_it_kernels_change_with_the_number_of_rows(tmp_path: Path) -> None:
    """Else the other tests would show nothing."""
    path = write_llama(tmp_path / "model.gguf", hidden=256, feed_forward=512, heads=8, layers=2, format="q4_0")
    tokens = list(range(50))
    scores = []
    for max_batched_tokens in (1, 64):
        loaded = load(fb.read_gguf(path), ctx=CTX, max_batched_tokens=max_batched_tokens)
        engine = Engine(loaded.executor, loaded.cache, CTX)
        request = engine.scoring(tokens)
        engine.add([request])
        run(engine)
        scores.append(request.scores.values.tolist())
    assert scores[0] != scores[1]


def test_numpy_has_no_such_mode(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model.gguf")
    with pytest.raises(fb.FewbitError, match="not batch-invariant"):
        load(fb.read_gguf(path), device="numpy", batch_invariant=True)

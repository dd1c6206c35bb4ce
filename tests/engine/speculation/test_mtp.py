"""Guesses by the layer that predicts a further token: what it should guess, and the same text as without it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fewbit as fb
from fewbit import devices
from fewbit.arrays import Floats
from fewbit.devices.batch import Row
from fewbit.devices.forward import forward, make_batch
from fewbit.devices.mtp import MtpExecutor
from fewbit.devices.stage import inner_batch
from fewbit.engine.engine import Engine
from fewbit.engine.request import Generation, Request
from fewbit.engine.speculation.mtp import MtpDrafter
from fewbit.engine.speculation.speculation import Speculation
from fewbit.errors import FileError, RequestError
from fewbit.load_options import LoadOptions
from fewbit.loading import Loaded, load_weights, place
from fewbit.models import open_eagle_head, open_model
from fewbit.ops.sampling import SamplingParams

from ...examples import examples
from ...loading import load
from ...mtp_models import FAMILIES, ZOO, with_mtp
from ..alone import run

GREEDY = SamplingParams(temperature=0)
WARM = SamplingParams(temperature=2.0, top_k=0, top_p=1.0, min_p=0.0)
CTX = 128
families = pytest.mark.parametrize("name", FAMILIES)


class Recording(MtpDrafter):
    """Keeps what it guessed, with the tokens before it."""

    def __init__(self, executor: MtpExecutor, max_tokens: int) -> None:
        super().__init__(executor, max_tokens)
        self.guesses: list[tuple[list[int], list[int]]] = []

    def propose(self, requests: Sequence[Generation], lengths: Sequence[int]) -> list[Sequence[int]]:
        drafts = super().propose(requests, lengths)
        self.guesses += [(one.tokens[:], [*draft]) for one, draft in zip(requests, drafts, strict=True)]
        return drafts


def make_engine(loaded: Loaded, max_tokens: int = 3) -> tuple[Engine, Recording]:
    assert isinstance(loaded.executor, MtpExecutor)
    drafter = Recording(loaded.executor, max_tokens)
    engine = Engine(loaded.executor, loaded.cache, CTX, speculation=Speculation(drafter, is_adaptive=False))
    return engine, drafter


def texts(vocab: int) -> list[list[int]]:
    """Three texts; the last two begin alike."""
    first, second = ([(i * i * 31 + i * n + 17) % (vocab - 4) + 4 for i in range(CTX)] for n in (1, 2))
    return [first, second, second[:40] + first[40:]]


# What is guessed


def expected_guesses(loaded: Loaded, tokens: list[int], count: int) -> list[int]:
    """By the definition, from the whole text: row i of the model with token i + 1, then rows of the layer itself."""
    executor, cache = loaded.executor, loaded.cache
    assert isinstance(executor, MtpExecutor)
    known = tokens[:]
    given: list[Floats] = [np.zeros(executor._rows._width, np.float32)]
    given += [*_rows(executor._layers, cache, tokens[:-1])[:, -executor._rows._width :]] if len(tokens) > 1 else []
    for _ in range(count):
        own = _rows(executor._layer, cache, known, np.array(given))
        given.append(own[-1])
        known.append(int(np.argmax(_rows(executor._own_head, cache, known, own)[-1])))
    return known[len(tokens) :]


def _rows(part: Any, cache: Any, tokens: list[int], given: Floats | None = None) -> Floats:
    """What a part of the executor makes of a text."""
    sequence = cache.new()
    batch = make_batch(cache, [Row(sequence, tokens, len(tokens))])
    batch = inner_batch(batch) if part.graph.has_head is False else batch
    rows: Floats = part.launch(batch, given).values().copy()
    cache.free(sequence)
    return rows


@families
@pytest.mark.parametrize("own_tables", [True, False])
def test_guesses_are_those_of_the_definition(tmp_path: Path, name: str, own_tables: bool) -> None:
    file = open_model(with_mtp(tmp_path, name, own_tables))
    loaded = load(file, kv="f32", activations="exact", ctx=CTX, speculate="mtp", threads=1)
    reference = load(file, device="numpy", kv="f32", ctx=CTX, speculate="mtp")
    engine, drafter = make_engine(loaded)
    prompts = [text[:length] for text in texts(engine.executor.vocab) for length in (1, 33, 64)]
    for some in (prompts[:5], prompts[5:], prompts[3:4]):  # the last one finds all of its pages
        engine.add_batch([engine.generation(prompt, GREEDY, max_tokens=6) for prompt in some])
        run(engine)
    assert engine.cache.stats().hits
    assert all(draft for _, draft in drafter.guesses)
    wrong = sum(expected_guesses(reference, before, len(draft)) != draft for before, draft in drafter.guesses)
    assert len(drafter.guesses) > 20
    assert wrong <= 1  # a tie


def test_a_page_that_many_begin_with_gives_each_its_row(tmp_path: Path) -> None:
    """The first token after a shared page is paired with the row of the page's last token."""
    loaded = load(open_model(with_mtp(tmp_path, "glm4moe")), kv="f32", activations="exact", ctx=CTX, speculate="mtp")
    executor, (text, *_) = loaded.executor, texts(loaded.executor.vocab)
    assert isinstance(executor, MtpExecutor)
    first = loaded.cache.new()
    forward(executor, loaded.cache, [Row(first, text[:40], 1)])
    second = loaded.cache.new(text[:34])
    assert loaded.cache.length(second) == 32
    np.testing.assert_array_equal(executor._rows.find(second, 31, 1), executor._rows.find(first, 31, 1))
    assert executor._rows.find(second, 30, 1) is None


# The same text


class Model:
    """A model with and without its MTP layer, or an EAGLE head, and what requests give without."""

    def __init__(self, path: Path, device: str = "cpu", head: Path | None = None) -> None:
        self.options: dict[str, Any] = {"device": device, "batch_invariant": True}
        file, target = open_model(path), devices.get(device)
        beside = None if head is None else open_eagle_head(head)
        self.plain = load_weights(file, target)
        self.mtp = load_weights(file, target, mtp=head is None, head=beside)
        self.texts = texts(self.plain.config.vocab)
        self.known: dict[object, object] = {}
        self.preemptions = self.hits = self.accepted = self.wrong = 0

    def engine(self, step_tokens: int, cache_tokens: int, draft_tokens: int = 0) -> Engine:
        threads = 1 if self.options["device"] == "cpu" else None
        options = LoadOptions(**self.options, max_batched_tokens=step_tokens, threads=threads)
        device = devices.get(options.device, options)
        loaded = place(self.mtp if draft_tokens else self.plain, device, "f16", CTX, cache_tokens)
        if draft_tokens:
            return make_engine(loaded, draft_tokens)[0]
        return Engine(loaded.executor, loaded.cache, CTX)

    def alone(self, prompt: list[int], options: dict[str, Any]) -> object:
        key = repr((prompt, options))
        if key not in self.known:
            engine = self.engine(200, 1000)
            requests = engine.generation(prompt, **options)
            engine.add(requests)
            run(engine)
            self.known[key] = [result(one) for one in requests]
        return self.known[key]


def result(request: Request) -> object:
    assert isinstance(request, Generation)
    return request.output_tokens, request.finish_reason, [one.own for one in request.logprobs]


jobs = st.tuples(
    st.integers(0, 2),  # text
    st.sampled_from([1, 7, 30, 33, 60, 80]),  # its length
    st.integers(0, 3),  # steps after the one before
    st.fixed_dictionaries(
        {
            "params": st.sampled_from([GREEDY, WARM]),
            "max_tokens": st.integers(1, 12),
            "seed": st.integers(0, 1),
            "n": st.sampled_from([1, 1, 2]),
            "logprobs": st.sampled_from([None, 2]),
        }
    ),
    st.none() | st.integers(1, 8),  # steps after which it is cancelled
)


def check_schedule(model: Model, work: list[Any], size: tuple[int, int], draft_tokens: int) -> None:
    engine = model.engine(*size, draft_tokens)
    asked, cancels, step = [], list[tuple[int, list[Request]]](), 0
    for text, length, wait, options, cancel in work:
        for _ in range(wait):
            step += 1
            engine.step()
            engine.cancel([one for when, gone in cancels if when <= step for one in gone])
        prompt = model.texts[text][:length]
        requests = engine.generation(prompt, **options)
        engine.add(requests)
        asked.append((prompt, options, requests))
        cancels += [] if cancel is None else [(step + cancel, list[Request](requests))]
    run(engine)
    assert engine._speculation is not None
    assert engine._speculation.error is None
    for prompt, options, requests in asked:
        for request, expected in zip(requests, model.alone(prompt, options), strict=True):  # type: ignore[call-overload]
            if request.finish_reason == "cancelled":
                assert request.output_tokens == expected[0][: len(request.output_tokens)]
            else:
                assert result(request) == expected
    assert engine.cache.stats().used == 0
    stats = engine.stats()
    model.preemptions += stats.preemptions
    model.accepted += stats.accepted_tokens
    model.wrong += stats.draft_tokens - stats.accepted_tokens
    model.hits += engine.cache.stats().hits


@families
def test_any_schedule_has_the_same_bits(tmp_path: Path, name: str) -> None:
    check_schedules(Model(with_mtp(tmp_path, name, own_tables=False, likely=3)), examples(usual=12, full=75))


def check_schedules(model: Model, count: int) -> None:
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        work=st.lists(jobs, min_size=1, max_size=8),
        size=st.sampled_from([(48, 160), (64, 400), (200, 1000)]),
        draft_tokens=st.integers(1, 4),
    )
    def any_schedule(work: list[Any], size: tuple[int, int], draft_tokens: int) -> None:
        check_schedule(model, work, size, draft_tokens)

    crowd = [(text, 60, 0, {"params": WARM, "max_tokens": 12, "seed": 0, "n": 1, "logprobs": None}, None)
             for text in (0, 1, 2, 0)]  # fmt: skip
    check_schedule(model, crowd, (48, 160), 3)
    any_schedule()
    assert min(model.preemptions, model.hits, model.accepted, model.wrong) > 0


def test_llm_counts_guesses(tmp_path: Path) -> None:
    path = with_mtp(tmp_path, "glm4moe", own_tables=False, likely=3)
    with fb.LLM(path, speculate="mtp", draft_tokens=2, ctx=CTX) as llm, fb.LLM(path, speculate="off", ctx=CTX) as plain:
        options: dict[str, Any] = {"max_tokens": 60, "temperature": 0}
        answer = llm.generate("hello", **options)
        assert answer.text == plain.generate("hello", **options).text
        assert 0 < answer.accepted_tokens <= answer.draft_tokens


def test_what_else_a_model_does_is_the_same(tmp_path: Path) -> None:
    path = with_mtp(tmp_path, "glm4moe")
    options: dict[str, Any] = {"ctx": CTX, "batch_invariant": True, "threads": 1}
    with fb.LLM(path, speculate="mtp", **options) as llm, fb.LLM(path, speculate="off", **options) as plain:
        np.testing.assert_array_equal(llm.score("the cat sat on the mat"), plain.score("the cat sat on the mat"))
        np.testing.assert_array_equal(llm.embed(["the cat", "a mat"]), plain.embed(["the cat", "a mat"]))
        sampled: dict[str, Any] = {"max_tokens": 12, "seed": 4, "logprobs": 2, "repetition_penalty": 1.3}
        answers = [one.generate("the cat", **sampled) for one in (llm, plain)]
        assert answers[0].tokens == answers[1].tokens
        assert [one.logprob for one in answers[0].logprobs] == [one.logprob for one in answers[1].logprobs]


# What is refused


def test_a_model_without_such_a_layer() -> None:
    with pytest.raises(FileError, match="no layer that predicts a further token"):
        load(open_model(ZOO / "glm4moe/model.gguf"), speculate="mtp")
    with pytest.raises(FileError, match="no layer that predicts a further token"):
        load(open_model(ZOO / "llama/model.gguf"), speculate="mtp")


def test_several_devices(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="one device for all layers, not cpu and cpu"):
        load(open_model(with_mtp(tmp_path, "glm4moe")), device="cpu,cpu", speculate="mtp")

"""What a request carries: constraints, bias, lengths, stop tokens, namespaces, adapters, its kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fewbit.arrays import Floats, Words
from fewbit.devices.batch import Batch
from fewbit.devices.host import HostHandle
from fewbit.engine.engine import Engine
from fewbit.engine.request import Generation
from fewbit.errors import DataError, DtypeError, RequestError
from fewbit.ops import sampling
from fewbit.ops.sampling import SamplingParams

from .alone import WARM, alone, is_clean, make_engine, run
from .toy import Toy, fingerprint, logits_of

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


class Evens:
    """Even tokens, then odd ones, by turns; what it was told is kept."""

    is_finished = False

    def __init__(self, vocab: int = 40) -> None:
        self.vocab, self.accepted = vocab, list[int]()

    def mask(self) -> Words:
        words = np.zeros(-(-self.vocab // 32), np.uint32)
        for token in range(len(self.accepted) % 2, self.vocab, 2):
            words[token // 32] |= np.uint32(1 << token % 32)
        return words

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def forced(self) -> list[int]:
        return []

    def rollback(self, count: int) -> None:
        del self.accepted[len(self.accepted) - count :]


def finish(engine: Engine, *requests: list[Generation]) -> list[Generation]:
    for group in requests:
        engine.add(group)
    run(engine)
    return [one for group in requests for one in group]


def test_a_constraint_masks_what_is_sampled_and_no_log_probability() -> None:
    engine = make_engine(Toy())
    made: list[Evens] = []

    def constraint() -> Evens:
        made.append(Evens())
        return made[-1]

    requests = engine.generation(PROMPT, WARM, max_tokens=8, n=2, seed=1, logprobs=1, constraint=constraint)
    other = engine.generation([1, 2], WARM, max_tokens=8, seed=5)
    *constrained, free = finish(engine, requests, other)
    for request, held in zip(constrained, made, strict=True):
        assert [token % 2 for token in request.output_tokens] == [0, 1] * 4
        assert held.accepted == request.output_tokens
        logits = logits_of(request.tokens)[len(PROMPT) - 1 : -1]
        own = sampling.log_probabilities(logits, request.output_tokens)
        assert [one.own for one in request.logprobs] == own.tolist()
    assert free.output_tokens == alone([1, 2], 8, 5)[0]


def test_a_constrained_request_that_is_preempted_goes_on() -> None:
    engine = make_engine(toy := Toy(pages=8, page_tokens=4, ctx=30))
    groups = [engine.generation([i] * 5, WARM, max_tokens=20, seed=i, constraint=Evens) for i in range(3)]
    requests = finish(engine, *groups)
    assert engine.stats().preemptions > 0
    for request in requests:
        assert [token % 2 for token in request.output_tokens] == [0, 1] * 10
    assert is_clean(toy)


def test_a_constraint_that_fails_ends_its_request_alone() -> None:
    class Broken(Evens):
        def accept(self, token: int) -> None:
            raise ValueError("no way")

    engine = make_engine(toy := Toy())
    broken, other = finish(
        engine, engine.generation(PROMPT, constraint=Broken), engine.generation([1], WARM, max_tokens=4, seed=2)
    )
    assert (broken.finish_reason, str(broken.error)) == ("error", "no way")
    assert other.output_tokens == alone([1], 4, 2)[0]
    assert is_clean(toy)


def test_one_bad_row_ends_its_request_alone() -> None:
    class Bad(Toy):
        def logits(self, sums: np.ndarray, batch: Batch) -> Floats:
            logits = super().logits(sums, batch)
            logits[np.flatnonzero(batch.tokens[batch.logits_indices] == 39)] = np.nan
            return logits

    engine = make_engine(toy := Bad())
    bad, other = finish(engine, engine.generation([1, 39], WARM), engine.generation([1, 2], WARM, max_tokens=1, seed=2))
    assert (bad.finish_reason, bad.output_tokens) == ("error", [])
    assert isinstance(bad.error, DataError)
    assert other.output_tokens == alone([1, 2], 1, 2)[0]
    assert is_clean(toy)


def test_bias_moves_the_likeliest_token() -> None:
    engine = make_engine(Toy())
    greedy = SamplingParams(temperature=0)
    forced, banned, plain = finish(
        engine,
        engine.generation(PROMPT, greedy, max_tokens=3, logit_bias={17: 100}),
        engine.generation(PROMPT, greedy, max_tokens=3, logit_bias={17: 100, 18: 200, 19: -np.inf}),
        engine.generation(PROMPT, greedy, max_tokens=3, logit_bias={}),
    )
    assert forced.output_tokens == [17] * 3
    assert banned.output_tokens == [18] * 3
    assert plain.output_tokens == alone(PROMPT, 3, params=greedy)[0]
    with pytest.raises(RequestError, match="logit_bias: tokens must be from 0 to 39, got 40"):
        engine.generation(PROMPT, logit_bias={40: 1})
    with pytest.raises(RequestError, match="must be finite, or -inf"):
        engine.generation(PROMPT, logit_bias={4: np.nan})


def test_stop_tokens_of_a_request_and_least_lengths() -> None:
    free = alone(PROMPT, 12, 3)[0]
    engine = make_engine(Toy(), eos_ids=[free[2]])
    own, early, late = finish(
        engine,
        engine.generation(PROMPT, WARM, max_tokens=12, seed=3, eos_ids=[free[5]]),
        engine.generation(PROMPT, WARM, max_tokens=12, seed=3),
        engine.generation(PROMPT, WARM, max_tokens=12, min_tokens=6, seed=3),
    )
    assert (own.output_tokens, own.finish_reason, own.stop_token) == (free[: free.index(free[5])], "stop", free[5])
    assert (early.output_tokens, early.stop_token) == (free[: free.index(free[2])], free[2])
    assert len(late.output_tokens) >= 6
    assert free[2] not in late.output_tokens


def test_namespaces_share_no_pages() -> None:
    engine = make_engine(toy := Toy(page_tokens=4))
    for name, cached in (("a", 0), ("a", 8), ("b", 0), ("", 0), ("b", 8)):
        (request,) = finish(engine, engine.generation(PROMPT, WARM, max_tokens=2, seed=1, namespace=name))
        assert request.cached_tokens == cached
        assert request.output_tokens == alone(PROMPT, 2, 1)[0]
    assert is_clean(toy)


def test_adapters_are_those_that_were_added_and_share_no_pages_either() -> None:
    toy = Toy(page_tokens=4)
    used: list[list[tuple[str, float]]] = []
    launch = toy.launch

    def watched(batch: Batch) -> HostHandle:
        used.extend(
            [(one.name, weight) for one, weight in row.adapter.terms] if row.adapter else [] for row in batch.rows
        )
        return launch(batch)

    toy.launch = watched  # type: ignore[method-assign]
    engine = make_engine(toy)
    engine.adapters.add("poet", "p1", {})
    engine.adapters.add("cook", "c1", {})
    with pytest.raises(RequestError, match="there is no adapter 'chef'; there are: cook, poet"):
        engine.generation(PROMPT, adapter="chef")
    mix = {"poet": 0.5, "cook": 1}
    for adapter, cached in (
        (None, 0),
        ("poet", 0),
        ("poet", 8),
        (mix, 0),
        ({"cook": 1.0, "poet": 0.5}, 8),
        ({"cook": 0}, 8),
    ):
        (request,) = finish(engine, engine.generation(PROMPT, WARM, max_tokens=1, adapter=adapter))
        assert request.cached_tokens == cached
    both = [("cook", 1.0), ("poet", 0.5)]
    assert used == [[], [("poet", 1.0)], [("poet", 1.0)], both, both, []]


def test_an_adapter_with_other_values_shares_no_pages_with_one_of_its_name() -> None:
    engine = make_engine(Toy(page_tokens=4))
    for key, cached in (("p1", 0), ("p2", 0), ("p1", 8)):
        engine.adapters.add("poet", key, {})
        (request,) = finish(engine, engine.generation(PROMPT, WARM, max_tokens=1, adapter="poet"))
        assert request.cached_tokens == cached
        engine.adapters.remove("poet")
    assert engine.adapters.names == ()


def test_a_request_keeps_its_adapter() -> None:
    engine = make_engine(Toy())
    engine.adapters.add("poet", "p1", {})
    requests = engine.generation(PROMPT, WARM, max_tokens=4, adapter="poet")
    engine.add(requests)
    engine.step()
    engine.adapters.remove("poet")
    run(engine)
    assert requests[0].finish_reason == "length"
    with pytest.raises(RequestError, match="there is no adapter 'poet'; there are: none"):
        engine.generation(PROMPT, adapter="poet")


@pytest.mark.parametrize(
    ("adapter", "why"),
    [
        ({"poet": float("nan")}, "the weight of adapter 'poet' must be a finite number, got nan"),
        ({"poet": True}, "must be a finite number, got True"),
        ({"poet": "1"}, "must be a finite number, got '1'"),
        ({"poet": 1, "chef": 1}, "no adapter 'chef'"),
    ],
)
def test_weights_of_adapters_are_checked(adapter: Any, why: str) -> None:
    engine = make_engine(Toy())
    engine.adapters.add("poet", "p1", {})
    with pytest.raises(RequestError, match=why):
        engine.generation(PROMPT, adapter=adapter)
    with pytest.raises(RequestError, match="there is an adapter 'poet' already"):
        engine.adapters.add("poet", "p2", {})
    with pytest.raises(RequestError, match="an adapter's name has letters"):
        engine.adapters.add("../x y", "p2", {})


def test_kinds_run_beside_each_other() -> None:
    engine = make_engine(toy := Toy(max_batched_tokens=6, max_logits=6))
    text = [i * i % 40 for i in range(17)]
    embedding, scoring = engine.embedding(text), engine.scoring(text)
    writing = engine.generation(PROMPT, WARM, max_tokens=20, seed=8)
    engine.add([embedding])
    engine.add([scoring])
    (written,) = finish(engine, writing)
    assert embedding.finish_reason == scoring.finish_reason == "stop"
    np.testing.assert_array_equal(embedding.hidden, fingerprint(text).astype(np.float32))
    np.testing.assert_array_equal(scoring.scores.values, sampling.log_probabilities(logits_of(text)[:-1], text[1:]))
    assert written.output_tokens == alone(PROMPT, 20, 8)[0]
    assert is_clean(toy)


def test_rows_of_the_last_token_alone() -> None:
    engine = make_engine(toy := Toy(max_batched_tokens=6, max_logits=6))
    text = [i * i % 40 for i in range(17)]
    for cached in (0, 16):
        request = engine.embedding(text, last_only=True)
        engine.add([request])
        run(engine)
        np.testing.assert_array_equal(request.hidden, fingerprint(text)[-1:].astype(np.float32))
        assert request.cached_tokens == cached
    assert is_clean(toy)


def test_an_encoder_runs_each_text_in_one_step_and_keeps_nothing() -> None:
    toy = Toy(max_batched_tokens=16, max_logits=16)
    engine = Engine(toy, toy.cache, toy.ctx, encoder=True)
    texts = [[i * n % 40 for i in range(n)] for n in (10, 9, 6, 16, 1, 1, 14, 16)]
    requests = [engine.embedding(text, last_only=n > 4) for n, text in enumerate(texts)]
    for request in requests:
        engine.add([request])
    run(engine)
    for request, text in zip(requests, texts, strict=True):
        np.testing.assert_array_equal(request.hidden, fingerprint(text).astype(np.float32))
    assert toy.batches == [[10], [9, 6], [16], [1, 1, 14], [16]]
    assert toy.cache.stats().cached == 0
    assert engine.max_length == 16
    with pytest.raises(RequestError, match="a text of 17 tokens is too long"):
        engine.embedding(range(17))
    for ask in (engine.generation, engine.scoring):
        with pytest.raises(RequestError, match="the model is an encoder"):
            ask(PROMPT)


def test_who_hears_of_the_end_is_not_counted_any_more() -> None:
    engine = make_engine(Toy())
    request = engine.generation(PROMPT, WARM, max_tokens=3)[0]
    counts = []
    request.sink = lambda _: counts.append(engine.stats().active)
    engine.add([request])
    run(engine)
    assert counts == [0]


@pytest.mark.parametrize(
    "options",
    [
        {"namespace": 5},
        {"adapter": []},
        {"params": 5},
        {"constraint": 5},
        {"logit_bias": 5},
        {"logit_bias": [1]},
        {"max_tokens": 1.5},
        {"eos_ids": 5},
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_before_they_reach_a_step(options: dict[str, Any]) -> None:
    engine = make_engine(Toy())
    with pytest.raises(DtypeError):
        engine.generation(PROMPT, **options)


def test_a_namespace_is_text_for_every_kind_of_request() -> None:
    engine = make_engine(Toy())
    for make in (engine.scoring, engine.embedding):
        with pytest.raises(DtypeError, match="namespace must be str, not int"):
            make(PROMPT, namespace=5)  # type: ignore[operator]

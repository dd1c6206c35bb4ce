"""A batch whose texts begin alike computes what they share once, also where that fills no page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fewbit.engine.engine import Engine
from fewbit.engine.reading import Scoring
from fewbit.engine.request import Generation
from fewbit.engine.scores import PositionScores
from fewbit.engine.sharing import MIN_TOKENS
from fewbit.ops import sampling

from .alone import WARM, alone, is_clean, make_engine, run
from .late import Late
from .toy import HybridToy, Toy, logits_of

PREFIX = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
TEXTS = [[*PREFIX, i, i + 1, i + 2] for i in range(8)]

kinds = pytest.mark.parametrize("kind", [Toy, HybridToy])


def make(kind: type[Toy] = Toy, late: bool = False, **options: int) -> tuple[Engine, Toy]:
    sizes = {"pages": 64, "page_tokens": 16, "max_batched_tokens": 128, "max_logits": 128} | options
    toy = kind(**sizes)  # type: ignore[arg-type]
    return make_engine(toy, executor=Late(toy, toy.cache.store) if late else None), toy


def add(engine: Engine, texts: Sequence[list[int]], max_tokens: int = 3, **options: object) -> list[Generation]:
    groups = [
        engine.generation(text, WARM, max_tokens=max_tokens, seed=i, **options)  # type: ignore[arg-type]
        for i, text in enumerate(texts)
    ]
    engine.add_batch(groups)
    return [request for group in groups for request in group]


def check(requests: Sequence[Generation], texts: Sequence[list[int]], max_tokens: int = 3) -> None:
    for i, (request, text) in enumerate(zip(requests, texts, strict=True)):
        if request.finish_reason not in ("cancelled", "error"):
            assert request.output_tokens == alone(text, max_tokens, i)[0]


def prompt_tokens(toy: Toy, requests: Sequence[Generation]) -> int:
    """Tokens that were run, without those of outputs that were run after their prompts."""
    return sum(map(sum, toy.batches)) - sum(max(0, len(request.output_tokens) - 1) for request in requests)


@kinds
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 3])  # the first is finished when the others begin, or not
def test_a_prefix_shorter_than_a_page_is_computed_once(kind: type[Toy], late: bool, max_tokens: int) -> None:
    engine, toy = make(kind, late)
    requests = add(engine, TEXTS, max_tokens)
    run(engine)
    check(requests, TEXTS, max_tokens)
    assert engine.stats().prompt_tokens == 10 + 8 * 3
    assert [request.cached_tokens for request in requests] == [0] + [10] * 7
    assert is_clean(toy)


@kinds
def test_the_ragged_tail_of_a_longer_prefix_is_computed_once(kind: type[Toy]) -> None:
    texts = [[*range(30), *text] for text in TEXTS]  # 40 tokens are shared: two pages, and half of one
    engine, toy = make(kind)
    requests = add(engine, texts)
    run(engine)
    check(requests, texts)
    assert engine.stats().prompt_tokens == 40 + 8 * 3
    assert is_clean(toy)


def test_groups_within_a_batch_share_what_each_has_in_common() -> None:
    texts = [[*PREFIX, *(10 * group + i for i in range(9)), own] for group in range(2) for own in range(3)]
    engine, toy = make()
    requests = add(engine, texts)
    run(engine)
    check(requests, texts)
    assert engine.stats().prompt_tokens == 10 + 2 * 9 + 6
    assert is_clean(toy)


@kinds
def test_several_outputs_of_each_prompt(kind: type[Toy]) -> None:
    engine, toy = make(kind)
    requests = add(engine, TEXTS, n=2)
    run(engine)
    for place, request in enumerate(requests):
        assert request.output_tokens == alone(TEXTS[place // 2], 3, place // 2 + place % 2)[0]
    assert engine.stats().prompt_tokens == 10 + 8 * 3
    assert is_clean(toy)


def test_few_tokens_and_other_namespaces_are_not_shared() -> None:
    engine, _ = make()
    texts = [[*PREFIX[: MIN_TOKENS - 1], 20 + i, 1] for i in range(3)]
    check_cost(engine, [engine.generation(text, WARM, max_tokens=1) for text in texts], 3 * (MIN_TOKENS + 1))
    groups = [engine.generation(TEXTS[0], WARM, max_tokens=1, namespace=name) for name in "abc"]
    check_cost(engine, groups, 3 * 13)


def check_cost(engine: Engine, groups: Sequence[Sequence[Generation]], tokens: int) -> None:
    before = engine.stats().prompt_tokens
    engine.add_batch(groups)
    run(engine)
    assert engine.stats().prompt_tokens - before == tokens


def test_a_request_of_its_own_forks_an_active_one_and_never_waits_for_a_short_prefix() -> None:
    engine, toy = make()
    first, second = (engine.generation(text, WARM, max_tokens=6, seed=i)[0] for i, text in enumerate(TEXTS[:2]))
    engine.add([first])
    engine.add([second])
    engine.step()
    assert first.sequence
    assert second.sequence
    third = engine.generation(TEXTS[2], WARM, max_tokens=6, seed=2)[0]
    engine.add([third])
    run(engine)
    assert third.cached_tokens == 10
    check([first, second, third], TEXTS[:3], 6)
    assert is_clean(toy)


@kinds
@pytest.mark.parametrize("first", [1, 10])  # token that is scored
def test_scores_of_texts_that_begin_alike(kind: type[Toy], first: int) -> None:
    engine, toy = make(kind)
    requests = [engine.scoring(text, first=first, logprobs=2) for text in TEXTS]
    engine.add_batch([[request] for request in requests])
    run(engine)
    check_scores(requests)
    assert engine.stats().prompt_tokens == 9 + 8 * 3  # the last token of the prefix scores the one after it
    assert is_clean(toy)


def check_scores(requests: Sequence[Scoring]) -> None:
    for request in requests:
        wanted = sampling.log_probabilities(logits_of(request.tokens)[:-1], request.tokens[1:])
        np.testing.assert_array_equal(request.scores.values, wanted[request.scores.first - 1 :])
        assert len(request.scores.tops) == len(request.scores.values)


def test_equal_texts_are_scored_once() -> None:
    engine, toy = make()
    requests = [engine.scoring(TEXTS[0]) for _ in range(4)]
    engine.add_batch([[request] for request in requests])
    run(engine)
    check_scores_values = [request.scores.values.tolist() for request in requests]
    assert check_scores_values == [check_scores_values[0]] * 4
    assert engine.stats().prompt_tokens == 12 + 3
    assert is_clean(toy)


@kinds
def test_prompts_are_scored_once_and_continued(kind: type[Toy]) -> None:
    engine, toy = make(kind)
    requests = add(engine, TEXTS, n=2, prompt_logprobs=2)
    run(engine)
    for place, request in enumerate(requests):
        assert request.output_tokens == alone(TEXTS[place // 2], 3, place // 2 + place % 2)[0]
        assert request.scores is not None
        wanted = sampling.log_probabilities(logits_of(TEXTS[place // 2])[:12], TEXTS[place // 2][1:])
        np.testing.assert_array_equal(request.scores.values, wanted)
        assert len(request.scores.tops) == 12
    assert engine.stats().prompt_tokens == 9 + 8 * 4
    assert is_clean(toy)


def test_a_prompt_in_the_cache_is_run_again_if_it_is_scored() -> None:
    engine, toy = make(page_tokens=4)
    add(engine, TEXTS[:1])
    run(engine)
    (request,) = add(engine, TEXTS[:1], prompt_logprobs=0)
    run(engine)
    assert request.cached_tokens == 0
    assert engine.stats().prompt_tokens == 26
    check([request], TEXTS[:1])
    assert is_clean(toy)


@kinds
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("which", [[0], [1], [0, 1], [1, 2], list(range(7)), list(range(8))])
def test_some_are_cancelled(kind: type[Toy], late: bool, step: int, which: list[int]) -> None:
    """The one that computes the prefix, those that wait for it, or both, before, while and after it is computed."""
    engine, toy = make(kind, late, max_batched_tokens=6, max_logits=6)
    requests = add(engine, TEXTS)
    for _ in range(step):
        engine.step()
    engine.cancel([requests[i] for i in which])
    run(engine)
    for i, request in enumerate(requests):
        assert (request.finish_reason == "cancelled") == (i in which)
    check(requests, TEXTS)
    assert engine.stats().prompt_tokens <= 13 + 10 + 8 * 3 + 6
    assert is_clean(toy)


@kinds
@pytest.mark.parametrize("when", range(3))
def test_the_first_one_fails(kind: type[Toy], when: int) -> None:
    engine, toy = make(kind, max_batched_tokens=6, max_logits=6)
    requests = add(engine, TEXTS)
    for _ in range(when):
        engine.step()
    toy.errors.append(RuntimeError("the device is gone"))
    run(engine)
    failed = [request for request in requests if request.finish_reason == "error"]
    assert requests[0] in failed
    assert len(failed) < 8
    check(requests, TEXTS)
    assert is_clean(toy)


class Refusing:
    """A constraint that fails at its first token."""

    is_finished = False

    def mask(self) -> None:
        return None

    def accept(self, token: int) -> None:
        raise ValueError("no token will do")

    def forced(self) -> list[int]:
        return []

    def rollback(self, count: int) -> None:
        raise NotImplementedError


def test_the_first_one_fails_after_the_prefix() -> None:
    engine, toy = make()
    constraints: list[Callable[[], Refusing] | None] = [Refusing, *[None] * 7]
    groups = [
        engine.generation(text, WARM, max_tokens=3, seed=i, constraint=constraint)
        for i, (text, constraint) in enumerate(zip(TEXTS, constraints, strict=True))
    ]
    engine.add_batch(groups)
    run(engine)
    requests = [group[0] for group in groups]
    assert [request.finish_reason for request in requests] == ["error"] + ["length"] * 7
    check(requests, TEXTS)
    assert engine.stats().prompt_tokens == 10 + 8 * 3
    assert is_clean(toy)


@kinds
def test_a_small_cache(kind: type[Toy]) -> None:
    """Pages of finished requests are not kept for others where somebody needs them."""
    texts = [[*range(20), *text] for text in TEXTS]
    engine, toy = make(kind, pages=7, page_tokens=8, ctx=50, max_batched_tokens=9, max_logits=9)
    requests = add(engine, texts, 12)
    run(engine)
    for i, request in enumerate(requests):
        assert request.output_tokens == alone(texts[i], 12, i, limit=engine.max_length)[0]
    assert is_clean(toy)


def test_a_full_queue_takes_all_or_none() -> None:
    toy = Toy()
    engine = Engine(toy, toy.cache, toy.ctx, max_seqs=2, max_waiting=2)
    with pytest.raises(Exception, match="the queue is full"):
        add(engine, TEXTS[:5])
    assert (engine.stats().waiting, engine.stats().active) == (0, 0)
    requests = add(engine, TEXTS[:4])
    run(engine)
    check(requests, TEXTS[:4])


def test_scores_are_copied_up_to_the_last_token_of_the_prompt() -> None:
    """A request that was preempted has written tokens that another prompt goes on with: its own scores are complete."""
    mine, other = PositionScores(4), PositionScores(8)
    other.receive(np.arange(7, dtype=np.float32))
    mine.copy(other, 2)
    assert (mine.num_scored, mine.values[:2].tolist()) == (2, [0, 1])
    mine.copy(other, 6)
    assert (mine.num_scored, mine.values.tolist()) == (3, [0, 1, 2])
    mine.copy(other, 7)
    assert mine.num_scored == 3

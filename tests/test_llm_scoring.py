"""LLM.score, token_logprobs, classify and prompt_logprobs on a toy executor."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fewbit.errors import DtypeError, QueueFull, RequestError, TooLong
from fewbit.llm import LLM
from fewbit.ops import sampling
from fewbit.text.tokenizer import Tokenizer

from .engine.toy import HybridToy, Toy
from .llm_toy import TOKENS, WARM, Endless, byte_tokenizer, endless_logits_of, make, many, one
from .text.samples import pieces

PREFIX = "The capital of France is"
LABELS = ["Paris", "London", "a small town"]


@pytest.fixture
def llm() -> Iterator[LLM]:
    with make() as llm:
        yield llm


def scores_of(tokens: list[int]) -> Any:
    return sampling.log_probabilities(endless_logits_of(tokens)[:-1], tokens[1:])


def computed(llm: LLM) -> int:
    return llm.engine.stats().prompt_tokens


def test_score_of_texts_and_token_ids_in_lists(llm: LLM) -> None:
    texts = ["It was", "a dark night", "."]
    found = llm.score(texts)
    assert isinstance(found, list)
    for text, scores in zip(texts, found, strict=True):
        assert scores.dtype == np.float32
        np.testing.assert_allclose(scores, scores_of(llm.tokenize(text)), rtol=1e-5)
    for same in (llm.score([llm.tokenize(text) for text in texts]), llm.score([texts[0], llm.tokenize(texts[1]), "."])):
        assert [one.tolist() for one in same] == [one.tolist() for one in found]
    assert llm.score(np.array(llm.tokenize(texts[0]))).tolist() == found[0].tolist()


def test_twins_take_and_give_the_same(llm: LLM) -> None:
    ids = llm.tokenize("a dark night")

    async def gather() -> None:
        for text in ("It was", ids, ["It was", "night"], [ids, ids[:4]]):
            prefix: Any = "so " if isinstance(text, str) or isinstance(text[0], str) else ids
            for before in (None, prefix):
                mine, other = llm.score(text, before), await llm.ascore(text, before)  # type: ignore[call-overload]
                assert type(mine) is type(other)
                assert [np.ravel(one).tolist() for one in mine] == [np.ravel(one).tolist() for one in other]
                listed = llm.token_logprobs(text, 2, before)  # type: ignore[call-overload]
                assert listed == await llm.atoken_logprobs(text, 2, before)  # type: ignore[call-overload]
        assert await llm.aclassify(PREFIX, LABELS) == llm.classify(PREFIX, LABELS)

    asyncio.run(gather())


def test_score_after_a_prefix(llm: LLM) -> None:
    whole = llm.score(PREFIX + " Paris")
    assert llm.score(" Paris", PREFIX).tolist() == whole[-6:].tolist()
    ids, label = llm.tokenize(PREFIX), llm.tokenize(" Paris")
    assert llm.score(label, prefix=ids).tolist() == whole[-6:].tolist()
    assert llm.score(label[:1], prefix=ids).shape == (1,)
    assert llm.score("ab", prefix="").shape == (1,)  # nothing comes before the first token
    with make(add_bos_token=True) as other:
        assert other.score("ab", prefix="").shape == (2,)
        assert other.score(" Paris", PREFIX).shape == (6,)
    with make(add_eos_token=True) as other:
        assert other.score(" Paris", PREFIX).shape == (7,)


def test_a_token_across_the_end_of_the_prefix_is_scored() -> None:
    tokenizer = Tokenizer.from_metadata(pieces("▁ab", "▁a", "▁b", "▁", "a", "b"))
    with LLM.from_parts(Toy(vocab=tokenizer.vocab_size).loaded, tokenizer) as llm:
        whole = llm.score("b ab")
        assert len(whole) == 2  # after BOS
        assert llm.score("b", "b a").tolist() == whole[-1:].tolist()
        assert llm.score(" ab", "b").tolist() == whole[-1:].tolist()


def test_a_prefix_runs_once(llm: LLM) -> None:
    before, count = computed(llm), len(PREFIX)
    texts = [f" {label}" for label in LABELS]
    found = llm.score(texts, PREFIX)
    assert computed(llm) - before == count + sum(len(text) - 1 for text in texts)  # they share a space, too
    for text, scores in zip(texts, found, strict=True):
        np.testing.assert_allclose(scores, scores_of(llm.tokenize(PREFIX + text))[-len(text) :], rtol=1e-5)


def test_token_logprobs(llm: LLM) -> None:
    ids = llm.tokenize("a dark night")
    scores, logits = llm.score(ids), endless_logits_of(ids)
    for top in (0, 3):
        found = llm.token_logprobs(ids, top)
        assert [one.token for one in found] == ids[1:]
        assert [one.logprob for one in found] == scores.tolist()
        for row, one_token in zip(logits, found, strict=False):
            assert [one.token for one in one_token.top] == sampling.top_tokens(row, top)[0].tolist()
    assert "".join(one.text for one in llm.token_logprobs(" Paris", prefix=PREFIX)) == " Paris"
    assert llm.token_logprobs([7]) == []


def test_what_cannot_be_scored(llm: LLM) -> None:
    calls: list[tuple[Any, type[Exception], str]] = [
        (lambda: llm.score(["a", ""]), RequestError, "the text is empty: it has no tokens"),
        (lambda: llm.score("", "a"), RequestError, "the text after the prefix is empty: it has no tokens"),
        (lambda: llm.score([], [1, 2]), RequestError, "it has no tokens"),
        (lambda: llm.score([[]], [1, 2]), RequestError, "the text after the prefix is empty"),
        (lambda: llm.score("a", [1, 2]), DtypeError, "prefix and text must both be text, or both be token ids"),
        (lambda: llm.score([1], "a"), DtypeError, "prefix and text must both be text"),
        (lambda: llm.score([1], 5), DtypeError, "prefix must be text or token ids, not int"),
        (lambda: llm.score([1], b"ab"), DtypeError, "prefix must be text or token ids, not bytes"),
        (lambda: llm.score([1], [2.5]), DtypeError, "tokens must be integers"),
        (lambda: llm.score([1], [999]), RequestError, "tokens must be from 0 to 258, got 999"),
        (lambda: llm.score("a" * 150, "b" * 100), TooLong, "250"),
        (
            lambda: llm.token_logprobs("ab", -1),
            RequestError,
            "top must be from 0 to 259, the size of the vocabulary, got -1",
        ),
        (lambda: llm.classify("a", "bc"), DtypeError, "labels must be a list of str, not str"),
        (lambda: llm.classify("a", []), RequestError, "labels must hold at least one label, got none"),
        (lambda: llm.classify("a", ["b", ""]), DtypeError, "labels must be str and not empty, got ''"),
        (lambda: llm.classify("a", ["b", 5]), DtypeError, "labels must be str and not empty, got 5"),
        (lambda: llm.classify("a", ["b", "b"]), RequestError, "labels must differ from each other"),
        (lambda: llm.classify("a", ["b"], separator=5), DtypeError, "separator must be a str, not int"),
        (lambda: llm.classify("a", ["b"], per_token=2), DtypeError, "per_token must be True or False, not 2"),
        (lambda: llm.classify([], ["b"]), RequestError, "the prompt is empty"),
        (lambda: llm.classify(5, ["b"]), DtypeError, "prompt must be text or token ids, not int"),
        (lambda: llm.classify([{"role": "user"}], ["b"]), RequestError, "message 0 must have a content"),
    ]
    for call, kind, sentence in calls:
        with pytest.raises(kind, match=sentence):
            call()


@pytest.mark.parametrize("per_token", [False, True])
def test_classify(llm: LLM, per_token: bool) -> None:
    before = computed(llm)
    found = llm.classify(PREFIX, LABELS, per_token=per_token)
    assert computed(llm) - before == len(PREFIX) + sum(map(len, LABELS))
    sums = {}
    for label in LABELS:
        scores = scores_of(llm.tokenize(f"{PREFIX} {label}"))[-len(label) - 1 :].astype(np.float64)
        sums[label] = np.exp(scores.mean() if per_token else scores.sum())
    total = sum(sums.values())
    assert found == pytest.approx({label: value / total for label, value in sums.items()}, rel=1e-4)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert sum(found.values()) == pytest.approx(1)


def test_where_labels_follow_the_prompt(llm: LLM) -> None:
    wanted = llm.classify(PREFIX, LABELS)
    assert llm.classify(PREFIX, LABELS, separator=" ") == wanted
    assert llm.classify(f"{PREFIX} ", LABELS) == pytest.approx(wanted, rel=1e-4)
    spaced = llm.classify(PREFIX, [f" {label}" for label in LABELS])
    assert {label.strip(): value for label, value in spaced.items()} == wanted
    assert llm.classify(llm.tokenize(PREFIX), LABELS, separator=" ") == wanted
    joined = llm.classify(PREFIX, LABELS, separator="")
    assert joined != wanted
    assert joined == llm.classify(llm.tokenize(PREFIX), LABELS)
    assert llm.classify(PREFIX, ["one"]) == {"one": 1.0}


def test_messages_are_classified_as_the_answer(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Good or bad?"}]
    assert llm.classify(messages, ["good", "bad"]) == llm.classify(llm.chat_prompt(messages), ["good", "bad"])


def test_labels_that_join_the_prompt_differently_are_given_the_same_tokens() -> None:
    """One label merges with the end of the prompt, the other does not: both are scored from there on."""
    tokenizer = Tokenizer.from_metadata(pieces("▁ab", "▁a", "▁b", "▁", "a", "b"))
    with LLM.from_parts(Toy(vocab=tokenizer.vocab_size).loaded, tokenizer) as llm:
        found = llm.classify("b a", ["b", "xy"], separator="")
        joint = {"b": llm.score("b ab")[1:].sum(), "xy": llm.score("b axy")[1:].sum()}
        weights = {label: np.exp(float(value)) for label, value in joint.items()}
        total = sum(weights.values())
        assert found == pytest.approx({label: value / total for label, value in weights.items()}, rel=1e-5)


def test_labels_that_cannot_be() -> None:
    class Never(Endless):
        def logits(self, sums: Any, batch: Any) -> Any:
            logits = super().logits(sums, batch)
            logits[:, [TOKENS.index("x"), TOKENS.index("y")]] = -np.inf
            return logits

    with LLM.from_parts(Never(200, 64).loaded, byte_tokenizer()) as llm:
        assert llm.classify(PREFIX, ["x", "y", "z"]) == {"z": 1.0, "x": 0.0, "y": 0.0}
        assert llm.classify(PREFIX, ["x", "y"]) == {"x": 0.5, "y": 0.5}


def test_prompt_logprobs(llm: LLM) -> None:
    prompt = llm.tokenize(PREFIX)
    plain = one(llm.generate(PREFIX, max_tokens=4, seed=1, **WARM))
    output = one(llm.generate(PREFIX, max_tokens=4, seed=1, prompt_logprobs=2, **WARM))
    assert (output.tokens, plain.prompt_logprobs) == (plain.tokens, None)
    assert output.prompt_logprobs is not None
    first, *rest = output.prompt_logprobs
    assert first is None
    assert [each and each.token for each in rest] == prompt[1:]
    assert rest == llm.token_logprobs(PREFIX, 2)
    assert json.loads(json.dumps(output.to_dict()))["prompt_logprobs"][:1] == [None]
    assert len(json.loads(json.dumps(output.to_dict()))["prompt_logprobs"]) == len(prompt)
    nothing = one(llm.generate(PREFIX, max_tokens=0, prompt_logprobs=0))
    assert nothing.prompt_logprobs is not None
    assert [each.logprob for each in nothing.prompt_logprobs if each] == llm.score(PREFIX).tolist()
    assert one(llm.generate([7], max_tokens=1, prompt_logprobs=0)).prompt_logprobs == [None]
    with pytest.raises(RequestError, match="prompt_logprobs must be from 0 to 259, the size of the vocabulary, got -1"):
        llm.generate("a", prompt_logprobs=-1)


def test_prompt_logprobs_of_several_outputs_and_streams(llm: LLM) -> None:
    wanted = llm.token_logprobs(PREFIX)
    outputs = many(llm.generate([PREFIX, PREFIX + " x"], n=2, max_tokens=3, prompt_logprobs=0))
    for output in outputs[0].outputs:
        assert output.prompt_logprobs == [None, *wanted]
    for output in outputs[1].outputs:
        assert output.prompt_logprobs is not None
        assert output.prompt_logprobs[: len(wanted) + 1] == [None, *wanted]
    stream = llm.stream(PREFIX, max_tokens=3, prompt_logprobs=0)
    list(stream)
    assert stream.completion.prompt_logprobs == [None, *wanted]

    async def last() -> Any:
        parts = [part async for part in await llm.aparts(PREFIX, max_tokens=3, prompt_logprobs=0, logprobs=0)]
        return parts[-1].completion

    assert asyncio.run(last()).prompt_logprobs == [None, *wanted]


@pytest.mark.parametrize("kind", [Toy, HybridToy])
def test_a_list_of_prompts_computes_what_they_share_once(kind: type[Toy]) -> None:
    toy = kind(vocab=len(TOKENS), ctx=200, pages=64, page_tokens=32, max_batched_tokens=256, max_logits=256)
    with LLM.from_parts(toy.loaded, byte_tokenizer()) as llm:
        prompts = [f"0123456789{i}ab" for i in range(8)]
        outputs = many(llm.generate(prompts, max_tokens=2, temperature=0))
        assert computed(llm) == 10 + 8 * 3
        assert [output.cached_tokens for output in outputs] == [0] + [10] * 7
        for prompt, output in zip(prompts, outputs, strict=True):
            assert one(llm.generate(prompt, max_tokens=2, temperature=0)).tokens == output.tokens


def test_a_list_is_taken_whole_or_not_at_all() -> None:
    llm = make()
    llm.engine.limits.max_open = 3
    with llm, pytest.raises(QueueFull):
        llm.score(["ab"] * 4)
    assert computed(llm) == 0

"""Samplers as options of an LLM."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fewbit.errors import ArgumentError, DataError, DtypeError, RequestError
from fewbit.llm import LLM

from ..llm_toy import BOS, START, WARM, Endless, bytes_of, make, many, one

PROMPT = "abc abc abc"
EVERYTHING: dict[str, Any] = {
    "typical_p": 0.9, "top_n_sigma": 3, "xtc_probability": 0.5, "dry_multiplier": 0.8, "dynatemp_range": 0.5,
    "no_repeat_ngram_size": 3, "bad_words": ["zz"], "banned_token_ids": [65],
}  # fmt: skip


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with make(Endless(400, 400)) as found:
        yield found


@pytest.mark.parametrize(
    "more", [EVERYTHING, {"mirostat": 2}, {"samplers": ["temperature", "xtc"], "xtc_probability": 0.5}]
)
def test_a_seed_gives_the_same_output_alone_and_in_a_batch(llm: LLM, more: dict[str, Any]) -> None:
    options: dict[str, Any] = {**WARM, "max_tokens": 30, **more}
    alone = [one(llm.generate(PROMPT, seed=seed, **options)).tokens for seed in range(4)]
    batch = many(llm.generate([PROMPT] * 4, seed=0, **options))
    assert [output.tokens for output in batch] == alone
    outputs = one(llm.generate(PROMPT, seed=0, n=4, **options)).outputs
    assert [output.tokens for output in outputs] == alone
    assert len({tuple(tokens) for tokens in alone}) == 4


def test_others_in_the_batch_are_sampled_as_before(llm: LLM) -> None:
    options: dict[str, Any] = {**WARM, "max_tokens": 20, "seed": 3}
    before = one(llm.generate(PROMPT, **options)).tokens

    async def both() -> list[Any]:
        return await asyncio.gather(llm.agenerate(PROMPT, **options), llm.agenerate(PROMPT, **options, **EVERYTHING))

    plain, chained = asyncio.run(both())
    assert plain.tokens == before
    assert chained.tokens == one(llm.generate(PROMPT, **options, **EVERYTHING)).tokens


def test_no_ngram_comes_twice(llm: LLM) -> None:
    tokens = llm.tokenize(PROMPT)
    output = one(llm.generate(PROMPT, max_tokens=100, no_repeat_ngram_size=2, **WARM)).tokens
    pairs = Counter(zip([*tokens, *output], [*tokens, *output][1:], strict=False))
    new = {*zip([tokens[-1], *output], output, strict=False)}
    assert all(pairs[pair] == 1 for pair in new)


def test_bad_words_do_not_occur(llm: LLM) -> None:
    options: dict[str, Any] = {**WARM, "max_tokens": 200, "seed": 1, "banned_token_ids": [START, BOS]}
    text = bytes_of(one(llm.generate(PROMPT, **options)).tokens).decode("latin1")
    words = [word for at in range(0, 180, 9) if (word := text[at : at + 2]).isascii() and word.isprintable()]
    assert words
    found = one(llm.generate(PROMPT, **options, bad_words=words)).tokens
    assert not any(word.encode() in bytes_of(found) for word in words)


def test_allowed_and_banned_tokens(llm: LLM) -> None:
    options: dict[str, Any] = {**WARM, "max_tokens": 60}
    allowed = llm.tokenize("xyz")
    assert {*one(llm.generate(PROMPT, allowed_token_ids=allowed, **options)).tokens} == {*allowed}
    left = {*one(llm.generate(PROMPT, allowed_token_ids=allowed, banned_token_ids=allowed[:1], **options)).tokens}
    assert left == {*allowed[1:]}
    words = bytes_of(one(llm.generate(PROMPT, allowed_words=["no"], **options)).tokens)
    assert set(words.decode()) == set(" no")
    both = one(llm.generate(PROMPT, allowed_token_ids=llm.tokenize("0123"), regex="[1-9]{4}", **options))
    assert set(both.text) <= set("123")
    assert len(both.text) == 4


def test_dry_ends_a_loop(llm: LLM) -> None:
    loop = [np.float32(1000)]

    def stick(logits: Any) -> Any:  # "ab" again and again
        logits[97] += loop[0]
        return logits

    options: dict[str, Any] = {**WARM, "temperature": 1, "max_tokens": 12, "dry_multiplier": 50}
    stuck = one(llm.generate("ab", samplers=[stick, "temperature"], **options)).tokens
    assert stuck == [97] * 12
    loop[0] = np.float32(60)
    freed = one(llm.generate("ab", samplers=[stick, "dry", "temperature"], **options)).tokens
    assert freed != [97] * 12


def test_a_function_is_a_sampler_and_its_errors_end_its_request(llm: LLM) -> None:
    calls = []

    def fail(logits: Any) -> Any:
        calls.append(logits.shape)
        raise RuntimeError("mine")

    assert one(llm.generate(PROMPT, samplers=[lambda x: x / 2, "temperature"], temperature=0, max_tokens=3)).tokens
    with pytest.raises(DataError, match="the sampler fail failed: RuntimeError: mine"):
        llm.generate(PROMPT, samplers=[fail], max_tokens=3)
    assert len(calls) == 1
    with pytest.raises(DataError, match="must return"):
        llm.generate(PROMPT, samplers=[lambda x: x[:2]], max_tokens=3)
    assert one(llm.generate(PROMPT, max_tokens=3)).tokens


def test_logprobs_are_the_models_own(llm: LLM) -> None:
    plain = one(llm.generate(PROMPT, temperature=0, max_tokens=5, logprobs=2))
    chained = one(
        llm.generate(PROMPT, temperature=0, max_tokens=5, logprobs=2, typical_p=0.5, samplers=["temperature"])
    )
    assert chained.tokens == plain.tokens
    assert chained.logprobs == plain.logprobs


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"typical_p": 2}, ArgumentError),
        ({"samplers": ["what"]}, ArgumentError),
        ({"bad_words": "text"}, DtypeError),
        ({"bad_words": [""]}, DtypeError),
        ({"bad_words": ["x"] * 1000}, RequestError),
        ({"bad_words": ["x" * 1000]}, RequestError),
        ({"no_repeat_ngram_size": -1}, RequestError),
        ({"no_repeat_ngram_size": 10**6}, RequestError),
        ({"allowed_token_ids": [10**6]}, RequestError),
        ({"allowed_token_ids": []}, RequestError),
        ({"banned_token_ids": [10**6]}, RequestError),
        ({"banned_token_ids": "ab"}, DtypeError),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(
    llm: LLM, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        llm.generate(PROMPT, **options)


def test_options_without_effect_leave_the_usual_path(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a chain was run")

    monkeypatch.setattr("fewbit.ops.cpu.sample_chain", refuse)
    options: dict[str, Any] = {"typical_p": 1.0, "mirostat": 0, "dry_multiplier": 0, "bad_words": ["zz"]}
    assert one(llm.generate(PROMPT, max_tokens=4, **options)).tokens

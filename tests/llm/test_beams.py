"""Beam search beside one over all texts, and beside transformers on a tiny random model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewbit.errors import DtypeError, RequestError
from fewbit.llm import LLM

from ..engine.toy import Toy, logits_of
from ..llm_toy import END, TOKENS, Endless, byte_tokenizer, many, one

ZOO = Path(__file__).parents[1] / "zoo"
PROMPT = "abc"


class Ending(Toy):
    """A toy whose outputs end often."""

    def __init__(self) -> None:
        super().__init__(vocab=len(TOKENS), ctx=400, pages=400)

    def logits(self, sums: Any, batch: Any) -> Any:
        logits = super().logits(sums, batch)
        logits[:, END] += 3
        return logits


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM.from_parts(Ending().loaded, byte_tokenizer()) as found:
        yield found


def log_softmax(logits: Any) -> Any:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def reference(prompt: list[int], beams: int, most: int, penalty: float, early: Any, ends: bool = True) -> list[Any]:
    """What transformers' search does, with lists. (score, tokens) of outputs; END is part of them."""
    running, done = [(0.0, [])], []  # type: ignore[var-annotated]
    for length in range(1, most + 1):
        found = []
        for score, tokens in running:
            logits = logits_of([*prompt, *tokens], len(TOKENS))[-1].copy()
            logits[END] = logits[END] + 3 if ends else -np.inf
            found += [(score + p, [*tokens, t]) for t, p in enumerate(log_softmax(logits).tolist())]
        best = sorted(found, key=lambda pair: -pair[0])[: 2 * beams]
        is_full = len(done) == beams
        for score, tokens in best[:beams]:
            if (tokens[-1] == END or length == most) and not (is_full and early is True):
                done.append((score / length**penalty, tokens))
        done = sorted(done, key=lambda pair: -pair[0])[:beams]
        running = [pair for pair in best if pair[1][-1] != END][:beams]
        longest = most if early == "never" and penalty > 0 else length
        if len(done) == beams and (early is True or running[0][0] / longest**penalty <= done[-1][0]):
            break
    return done


@pytest.mark.parametrize("early", [True, False, "never"])
@pytest.mark.parametrize("penalty", [0.0, 1.0, -1.0, 2.0])
@pytest.mark.parametrize("beams", [1, 2, 5])
def test_beams_are_those_of_the_reference(llm: LLM, beams: int, penalty: float, early: Any) -> None:
    prompt = llm.encode_prompt(PROMPT)
    found = one(
        llm.generate(PROMPT, beams=beams, n=beams, max_tokens=9, length_penalty=penalty, early_stopping=early)
    ).outputs
    expected = reference(prompt, beams, 9, penalty, early)
    assert [[*output.tokens, *([END] if output.stop_token else [])] for output in found] == [t for _, t in expected]
    np.testing.assert_allclose([output.beam_score for output in found], [s for s, _ in expected], rtol=1e-4)
    assert [output.finish_reason for output in found] == ["stop" if t[-1] == END else "length" for _, t in expected]


def test_more_beams_find_likelier_outputs(llm: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 8, "length_penalty": 0.0}
    scores = [one(llm.generate(PROMPT, beams=beams, **options)).beam_score for beams in (1, 4, 16)]
    assert scores == sorted(scores, key=float)  # type: ignore[arg-type]


def test_in_a_batch_with_others_and_with_few_pages() -> None:
    """Beams are preempted, run again, and come out the same; nothing is left in the cache."""
    with LLM.from_parts(Endless(120, 30).loaded, byte_tokenizer()) as llm:
        prompts = ["abc", "a much longer prompt", "x"]
        alone = [one(llm.generate(prompt, beams=4, max_tokens=20)).tokens for prompt in prompts]

        async def together() -> list[Any]:
            greedy = llm.agenerate("abc", temperature=0, max_tokens=30)
            return await asyncio.gather(*(llm.agenerate(p, beams=4, max_tokens=20) for p in prompts), greedy)

        found = asyncio.run(together())
        assert [output.tokens for output in found[:3]] == alone
        assert found[3].tokens == one(llm.generate("abc", temperature=0, max_tokens=30)).tokens
        several = many(llm.generate(prompts, beams=4, n=2, max_tokens=20))
        assert [output.tokens for output in several] == alone
        assert [len(output.outputs) for output in several] == [2, 2, 2]
        stats = llm.engine.cache.stats()
        assert stats.used == 0


def test_cancelled_searches_leave_nothing(llm: LLM) -> None:
    async def give_up() -> None:
        task = asyncio.create_task(llm.agenerate(PROMPT, beams=4, max_tokens=300, min_tokens=300))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    assert one(llm.generate(PROMPT, beams=2, max_tokens=3)).tokens
    assert one(llm.generate(PROMPT, beams=3, max_tokens=300, deadline=0.001)).finish_reason in ("deadline", "stop")
    assert llm.engine.stats().active == 0


def test_least_lengths_and_stops(llm: LLM) -> None:
    assert len(one(llm.generate(PROMPT, beams=3, max_tokens=9, min_tokens=7)).tokens) >= 7
    whole = one(llm.generate(PROMPT, beams=3, max_tokens=9, min_tokens=9))
    assert whole.finish_reason == "length"
    token = whole.tokens[3]
    cut = one(llm.generate(PROMPT, beams=3, max_tokens=9, stop_token_ids=[token]))
    assert token not in cut.tokens


def test_the_outputs_of_transformers() -> None:
    """Made by `generate` of tests/zoo/llama/hf in float32 with num_beams=4, num_return_sequences=4, max_new_tokens=12,
    do_sample=False, and the end tokens that we find."""
    expected = np.load(Path(__file__).parents[1] / "golden/beams.npz")
    with LLM(ZOO / "llama/hf", activations="exact", kv="f32", threads=1) as llm:
        for penalty, early in ((1.0, False), (0.0, "never"), (2.0, True)):
            found = one(
                llm.generate(
                    expected["prompt"].tolist(),
                    beams=4,
                    n=4,
                    max_tokens=12,
                    length_penalty=penalty,
                    early_stopping=early,
                )
            ).outputs
            key = f"{penalty} {early}"
            for output, tokens in zip(found, expected[f"tokens {key}"].tolist(), strict=True):
                assert output.tokens == tokens[: len(output.tokens)]
            scores = [output.beam_score for output in found]
            np.testing.assert_allclose(scores, expected[f"scores {key}"], rtol=1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"beams": 0}, RequestError),
        ({"beams": 1000}, RequestError),
        ({"beams": 2, "n": 3}, RequestError),
        ({"beams": 2, "early_stopping": "soon"}, DtypeError),
        ({"beams": 2, "length_penalty": "x"}, DtypeError),
        ({"beams": 2, "logprobs": 1}, RequestError),
        ({"beams": 2, "bad_words": ["x"]}, RequestError),
        ({"beams": 2, "repetition_penalty": 1.2}, RequestError),
        ({"beams": 2, "regex": "a"}, RequestError),
        ({"beams": "x"}, DtypeError),
    ],
)
def test_what_does_not_go_with_beams(llm: LLM, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        llm.generate(PROMPT, **options)


def test_a_stream_has_the_best_output_at_its_end(llm: LLM) -> None:
    best = one(llm.generate(PROMPT, beams=3, max_tokens=9))
    with llm.stream(PROMPT, beams=3, max_tokens=9) as stream:
        assert "".join(stream) == best.text
    assert stream.completion.tokens == best.tokens
    assert stream.completion.beam_score == best.beam_score
    with llm.stream(PROMPT, beams=3, max_tokens=300, min_tokens=300) as stream:
        pass
    assert one(llm.generate(PROMPT, beams=3, max_tokens=9)).tokens == best.tokens

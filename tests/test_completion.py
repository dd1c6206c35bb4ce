"""Completion: used as its text, with its tokens and log-probabilities."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections import Counter
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from fewbit.devices.batch import Batch
from fewbit.llm import LLM, Completion, TextDelta, TokenLogprob
from fewbit.text.tokenizer import Tokenizer

from .engine.toy import Toy
from .llm_toy import WARM, make
from .text.samples import metadata

WORDS = ["the", "cat", "sat", "Ã", "©", "</s>"]
THE, CAT, SAT, E1, E2, EOS = range(len(WORDS))


class Script(Toy):
    """It writes a fixed sequence of tokens after a prompt of one."""

    def __init__(self, tokens: list[int]) -> None:
        super().__init__(vocab=len(WORDS))
        self._tokens = tokens

    def logits(self, sums: Any, batch: Batch) -> Any:
        logits = np.zeros_like(super().logits(sums, batch))
        for row, length in zip(logits, batch.view.lengths, strict=True):
            row[self._tokens[min(int(length) - 1, len(self._tokens) - 1)]] = 100
        return logits


def says(*tokens: int) -> LLM:
    kinds = [1] * (len(WORDS) - 1) + [3]
    tokenizer = Tokenizer.from_metadata(metadata(WORDS, token_type=kinds, eos_token_id=EOS))
    return LLM.from_parts(Script([*tokens]).loaded, tokenizer)


async def parts_of(llm: LLM, **options: Any) -> list[TextDelta]:
    async with aclosing(await llm.aparts([THE], **options)) as parts:
        return [part async for part in parts]


def every_way(llm: LLM, **options: Any) -> list[Completion]:
    """The same output by generate, agenerate, stream, astream, aparts, and as one of two."""

    async def main() -> list[Completion]:
        whole = await llm.agenerate([THE], **options)
        async with llm.astream([THE], **options) as stream:
            assert "".join([text async for text in stream]) == stream.completion.text
        parts = await parts_of(llm, **options)
        last = parts[-1].completion
        assert last is not None
        assert [token for part in parts for token in part.tokens] == last.tokens
        assert "".join(part.text for part in parts) == last.text
        if "logprobs" in options:
            assert [one.token for part in parts for one in part.logprobs or []] == last.tokens
        return [whole, stream.completion, last]

    stream = llm.stream([THE], **options)
    assert "".join(stream) == stream.completion.text
    return [
        llm.generate([THE], **options),
        stream.completion,
        *llm.generate([THE], n=2, **options).outputs,
        *asyncio.run(main()),
    ]


@pytest.mark.parametrize(
    ("script", "options", "text", "tokens", "generated"),
    [
        ([CAT, SAT, THE], {"stop": "sat"}, "cat", [CAT], 2),
        ([CAT, SAT, THE], {"stop": "ts"}, "ca", [CAT], 2),  # it begins in a token, which stays, and ends in the next
        ([CAT, SAT, THE], {"stop": "catsat"}, "", [], 2),
        ([CAT, SAT, THE], {"stop": "the"}, "catsat", [CAT, SAT], 3),
        ([CAT, E1, E2, THE], {"stop": "é"}, "cat", [CAT], 3),  # its character is in two tokens
        ([CAT, E1, E2, THE], {"stop": "th"}, "caté", [CAT, E1, E2], 4),
        ([CAT, SAT, EOS], {}, "catsat", [CAT, SAT], 2),
        ([CAT, SAT, EOS], {"stop": "satx"}, "catsat", [CAT, SAT], 2),  # a stop string that only begins
        ([CAT, SAT, THE], {"stop_token_ids": [SAT]}, "cat", [CAT], 1),
    ],
)
def test_tokens_are_those_of_the_text(
    script: list[int], options: dict[str, Any], text: str, tokens: list[int], generated: int
) -> None:
    with says(*script) as llm:
        for output in every_way(llm, temperature=0, logprobs=1, **options):
            assert (output.text, output.tokens, output.finish_reason) == (text, tokens, "stop")
            assert (output.generated_tokens, output.cut_tokens) == (generated, generated - len(tokens))
            assert llm.detokenize(output.tokens).startswith(text)
            assert (output.stop_token is None) == (generated > len(tokens))
            if output.logprobs is not None:  # parts have their own
                assert [one.token for one in output.logprobs] == tokens


def test_a_half_character_at_the_end_is_kept() -> None:
    with says(CAT, E1, E2) as llm:
        for output in every_way(llm, temperature=0, max_tokens=2, stop="never"):
            assert (output.text, output.tokens, output.finish_reason) == ("cat\ufffd", [CAT, E1], "length")


def test_a_stream_that_is_closed_has_the_tokens_that_were_read() -> None:
    with says(CAT, E1, E2, SAT) as llm:
        stream = llm.stream([THE], temperature=0, max_tokens=None, stop="sat" * 50)
        assert next(stream) == "cat"
        stream.close()
        assert (stream.completion.text, stream.completion.tokens) == ("cat", [CAT])


def test_an_output_is_used_as_its_text() -> None:
    output = Completion("Paris.\n", [1, 2], "stop")
    assert f"{output}" == str(output) == output.text == "Paris.\n"
    assert f"[{output:>9}]" == "[  Paris.\n]"
    assert "%s" % output == "Paris.\n"  # noqa: UP031
    assert "aris" in output
    assert Completion("Par", [1], "stop") in output
    assert "London" not in output
    assert len(output) == 7
    assert output + "!" == "Paris.\n!"
    assert "The answer: " + output == "The answer: Paris.\n"
    assert output + output == "Paris.\nParis.\n"
    with pytest.raises(TypeError):
        "London" + output + 3  # type: ignore[operator]


def test_outputs_are_equal_if_their_texts_are() -> None:
    first, second, third = (Completion(text, tokens, "stop") for text, tokens in [("a", [1]), ("a", [2]), ("b", [1])])
    assert first == second == "a"
    assert first != third
    assert first != 1
    assert Counter([first, third, second]).most_common(1) == [(first, 2)]
    assert {"a": 1}[first] == 1  # type: ignore[index]


@pytest.mark.parametrize("name", ["strip", "split", "startswith", "encode"])
def test_methods_of_str_are_named(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"a Completion has no attribute '{name}'; use \.text\.{name}"):
        getattr(Completion("a", [1], "stop"), name)
    with pytest.raises(AttributeError, match=r"a Completion has no attribute 'texts'$"):
        getattr(Completion("a", [1], "stop"), "texts")  # noqa: B009


def test_arrays_and_json_of_outputs() -> None:
    """It is no sequence: NumPy keeps it whole, and JSON refuses it instead of writing something else."""
    output = Completion("ab", [1], "stop")
    assert np.array([output], dtype=object).shape == (1,)
    with pytest.raises(TypeError, match="Completion is not JSON serializable"):
        json.dumps(output)
    assert json.loads(json.dumps(output.to_dict()))["text"] == "ab"


def test_outputs_are_pickled_and_copied() -> None:
    other = Completion("b", [2], "length", index=1)
    output = Completion("a", [1], "stop", [TokenLogprob(1, -0.5, "a", b"a")], prompt_tokens=3, others=(other,))
    for again in (pickle.loads(pickle.dumps(output)), copy.copy(output), copy.deepcopy(output)):
        assert again.to_dict() == output.to_dict()
        assert again.outputs == [output, other]


def test_what_a_notebook_shows() -> None:
    output = Completion("a" * 3, [1] * 3, "length", others=(Completion("b", [1], "stop"),))
    assert repr(output) == "Completion('aaa', 3 tokens, length, first of 2)"


def test_the_rate_counts_tokens_that_were_cut() -> None:
    assert Completion("a", [1], "stop", cut_tokens=4, decode_seconds=2.0).decode_tokens_per_second == 2.0


def test_where_an_output_stands() -> None:
    with make() as llm:
        found = llm.chat([[{"role": "user", "content": text}] for text in "ab"], n=2, max_tokens=2, **WARM)
        assert [(one.prompt_index, one.index) for first in found for one in first.outputs] == [
            (0, 0), (0, 1), (1, 0), (1, 1),
        ]  # fmt: skip

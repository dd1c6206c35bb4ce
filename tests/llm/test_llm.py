"""LLM on a toy executor: text in, text out."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from dataclasses import replace
from typing import Any, get_type_hints

import numpy as np
import pytest

from fewbit.devices.batch import Batch
from fewbit.errors import DtypeError, FewbitError, RequestError, TokenizerError
from fewbit.llm import LLM, Completion
from fewbit.llm.extra_options import SamplerOptions
from fewbit.llm.sampling_options import BeamSettings, Options, PromptOptions, model_sampling, read_options
from fewbit.ops import sampling
from fewbit.ops.sampling import SamplingParams
from fewbit.text.tokenizer import Tokenizer

from ..engine.toy import Toy
from ..llm_toy import (
    END,
    TOKENS,
    WARM,
    Endless,
    byte_tokenizer,
    bytes_of,
    endless_logits_of,
    make,
    many,
    one,
)
from ..text.samples import pieces


@pytest.fixture
def llm() -> Any:
    with make() as llm:
        yield llm


def test_generate_gives_the_text_of_the_tokens(llm: LLM) -> None:
    output = one(llm.generate("Once", max_tokens=30, seed=1, **WARM))
    assert output.text == str(output) == llm.detokenize(output.tokens)
    assert (output.finish_reason, len(output.tokens), output.prompt_tokens) == ("length", 30, 4)
    assert output.logprobs is None
    assert output.prefill_tokens_per_second > 0
    assert output.decode_tokens_per_second > 0
    assert one(llm.generate("Once", max_tokens=30, seed=1, **WARM)).tokens == output.tokens


def test_token_ids_and_text_are_the_same_prompt(llm: LLM) -> None:
    text, ids = (one(llm.generate(p, max_tokens=5, seed=1)) for p in ("Once", llm.tokenize("Once")))
    assert text.tokens == ids.tokens == one(llm.generate(np.array(llm.tokenize("Once")), max_tokens=5, seed=1)).tokens


def test_several_prompts_and_several_outputs(llm: LLM) -> None:
    prompts = ["a", llm.tokenize("bb")]
    found = many(llm.generate(prompts, max_tokens=4, n=3, seed=5, **WARM))
    outputs = [output for first in found for output in first.outputs]
    assert [output.prompt_tokens for output in outputs] == [1, 1, 1, 2, 2, 2]
    assert [(output.prompt_index, output.index) for output in outputs] == [(p, i) for p in range(2) for i in range(3)]
    for i, output in enumerate(outputs):
        alone = one(llm.generate(prompts[i // 3], max_tokens=4, seed=5 + i, **WARM))
        assert output.tokens == alone.tokens


@pytest.mark.parametrize("n", [1, 3])
def test_the_shape_follows_the_prompt_alone(llm: LLM, n: int) -> None:
    """Whatever n is, a prompt gives a completion, and a list of prompts a list of the same length."""

    async def ask(prompt: Any) -> Any:
        return await llm.agenerate(prompt, n=n, max_tokens=2, seed=1, **WARM)

    for outputs in (llm.generate(["a", "b"], n=n, max_tokens=2, seed=1, **WARM), asyncio.run(ask(["a", "b"]))):
        assert [len(output.outputs) for output in many(outputs)] == [n, n]
    for output in (llm.generate("a", n=n, max_tokens=2, seed=1, **WARM), asyncio.run(ask("a"))):
        assert one(output).outputs[0] is output
        assert [other.outputs for other in output.others] == [[other] for other in output.outputs[1:]]
        assert len(output.outputs) == n
    assert len(many(llm.generate(["a"], n=n, max_tokens=1))) == 1


def test_a_seed_gives_each_prompt_another_output(llm: LLM) -> None:
    first, again = (many(llm.generate(["Once"] * 3, seed=1, max_tokens=8, **WARM)) for _ in range(2))
    assert len({output.text for output in first}) == 3
    assert [output.tokens for output in first] == [output.tokens for output in again]


@pytest.mark.parametrize("more", [{}, {"stop": "x"}, {"logprobs": 1}, {"min_tokens": 5}, {"n": 2}])
def test_no_tokens_at_all(llm: LLM, more: dict[str, Any]) -> None:
    """The prompt is run, and remembered."""
    prompt = "It was a dark and stormy night."
    for output in one(llm.generate(prompt, max_tokens=0, **more)).outputs:
        assert (output.text, output.tokens, output.finish_reason, output.stop_token) == ("", [], "length", None)
        assert output.prompt_tokens == len(prompt)
        assert output.logprobs == ([] if "logprobs" in more else None)
    assert one(llm.generate(prompt, max_tokens=1)).cached_tokens > 20
    assert list(llm.stream(prompt, max_tokens=0)) == []


def test_no_tokens_where_the_model_would_end_at_once() -> None:
    class Ends(Toy):
        def logits(self, sums: Any, batch: Batch) -> Any:
            logits = super().logits(sums, batch)
            logits[:, END] = 100
            return logits

    with make(Ends(vocab=len(TOKENS))) as llm:
        output = one(llm.generate("Once", max_tokens=0))
        assert (output.finish_reason, output.stop_token) == ("length", None)


def test_a_completion_as_plain_values(llm: LLM) -> None:
    output = one(llm.generate("Once", max_tokens=3, logprobs=2, **WARM))
    found = json.loads(json.dumps(output.to_dict()))
    assert found["text"] == output.text
    assert found["tokens"] == output.tokens
    assert output.logprobs is not None
    assert [of["bytes"] for of in found["logprobs"]] == [list(of.bytes) for of in output.logprobs]
    assert [len(of["top"]) for of in found["logprobs"]] == [2, 2, 2]
    assert found.keys() == Completion.__dataclass_fields__.keys()


def test_how_a_model_is_sampled_if_nobody_says() -> None:
    recommended = {"temperature": 0.2, "top_p": 0.9}
    assert model_sampling({}) == SamplingParams()
    assert model_sampling({}, recommended) == SamplingParams(temperature=0.2, top_p=0.9)
    words = {"temp": np.float32(0.5), "top_k": -1, "top_p": 7.0, "min_p": "much", "penalty_repeat": 1.5}
    found = model_sampling({f"general.sampling.{key}": value for key, value in words.items()}, recommended)
    assert found == SamplingParams(temperature=0.5, top_k=0, top_p=0.9, repetition_penalty=1.5)
    assert model_sampling({"general.sampling.temp": float("nan")}) == SamplingParams()
    assert read_options({"temperature": 1.0}, found).params == replace(found, temperature=1.0)


def test_outputs_are_sampled_as_the_model_says() -> None:
    with LLM.from_parts(Endless(200).loaded, byte_tokenizer(), sampling=SamplingParams(temperature=0)) as llm:
        first, second = (one(llm.generate("Once", max_tokens=8, seed=seed)) for seed in (1, 2))
        assert first.tokens == second.tokens
        assert first.tokens != one(llm.generate("Once", max_tokens=8, seed=2, temperature=1.5)).tokens


@pytest.mark.parametrize("vocab", [len(TOKENS) - 1, len(TOKENS) + 128, 32000])
def test_a_tokenizer_of_another_model(vocab: int) -> None:
    with pytest.raises(TokenizerError, match=f"has 259 tokens and the model {vocab}, so they do not belong together"):
        LLM.from_parts(Toy(vocab=vocab).loaded, byte_tokenizer())


def test_embeddings_that_are_rounded_up() -> None:
    """A row without a token gives no text; nothing fails where one is sampled."""

    class Rounded(Toy):
        def logits(self, sums: Any, batch: Batch) -> Any:
            logits = super().logits(sums, batch)
            logits[:, 300] = 100
            return logits

    with make(Rounded(vocab=384)) as llm:
        output = one(llm.generate("Once", max_tokens=3, temperature=0, logprobs=2))
        assert (output.text, output.tokens) == ("", [300] * 3)
        assert llm.tokenize("[PAD300]") == [TOKENS.index(char) for char in "[PAD300]"]
        assert llm.tokenizer.vocab_size == 384


def test_the_end_of_the_turn() -> None:
    class Ends(Toy):
        def logits(self, sums: Any, batch: Batch) -> Any:
            logits = super().logits(sums, batch)
            if (batch.view.lengths >= 6).any():
                logits[:, END] = 100
            return logits

    with make(Ends(vocab=len(TOKENS))) as llm:
        output = one(llm.generate("Once", temperature=0, logprobs=1))
        assert (len(output.tokens), output.finish_reason) == (2, "stop")
        assert output.logprobs is not None
        assert len(output.logprobs) == 2


def test_special_tokens_in_a_prompt_are_plain_text(llm: LLM) -> None:
    output = one(llm.generate("<|im_start|>", max_tokens=1))
    assert output.prompt_tokens == len("<|im_start|>")


def test_a_prompt_gets_the_tokens_that_the_model_wants_around_it() -> None:
    with make(add_bos_token=True) as llm:
        assert one(llm.generate("ab", max_tokens=1)).prompt_tokens == 3
        assert one(llm.generate("", max_tokens=1)).prompt_tokens == 1
        assert one(llm.generate(llm.tokenize("ab"), max_tokens=1)).prompt_tokens == 2


def test_stop_strings(llm: LLM) -> None:
    """Wherever a stop string is found, the output ends before it, and a stream shows nothing of it."""
    free = one(llm.generate("Once", max_tokens=40, seed=3, **WARM))
    for at in range(0, 12, 3):
        stop = free.text[at : at + 3]
        cut = free.text[: free.text.index(stop)]
        output = one(llm.generate("Once", max_tokens=40, seed=3, stop=["never", stop], **WARM))
        assert (output.text, output.finish_reason) == (cut, "stop")
        stream = llm.stream("Once", max_tokens=40, seed=3, stop=stop, **WARM)
        assert "".join(stream) == stream.completion.text == cut


def test_a_stop_string_that_only_begins_is_shown(llm: LLM) -> None:
    free = one(llm.generate("Once", max_tokens=10, seed=3, **WARM))
    output = one(llm.generate("Once", max_tokens=10, seed=3, stop=free.text[-2:] + "more", **WARM))
    assert (output.text, output.finish_reason) == (free.text, "length")


def test_stop_strings_in_a_batch(llm: LLM) -> None:
    both = many(llm.generate(["a", "b"], max_tokens=30, n=2, seed=3, **WARM))
    stop = [both[0].text[4:6], both[1].text[7:9]]
    cut = many(llm.generate(["a", "b"], max_tokens=30, n=2, seed=3, stop=stop, **WARM))
    outputs, wholes = ([output for first in found for output in first.outputs] for found in (cut, both))
    for output, whole in zip(outputs, wholes, strict=True):
        found = [whole.text.index(one) + len(one) for one in stop if one in whole.text]
        assert output.finish_reason == ("stop" if found else "length")
        assert whole.text.startswith(output.text)


def test_stream_pieces_are_whole_characters(llm: LLM) -> None:
    prompt = "Once"
    whole = one(llm.generate(prompt, max_tokens=100, seed=4, **WARM))
    stream = llm.stream(prompt, max_tokens=100, seed=4, **WARM)
    with stream:
        parts = list(stream)
    assert "".join(parts) == whole.text == stream.completion.text
    assert all(parts)
    assert stream.completion.tokens == whole.tokens
    assert list(stream) == []


def test_a_stream_that_is_not_over_has_no_completion(llm: LLM) -> None:
    stream = llm.stream("Once", max_tokens=None, **WARM)
    next(stream)
    with pytest.raises(FewbitError, match="the output is not complete yet"):
        _ = stream.completion
    stream.close()
    stream.close()
    assert stream.completion.finish_reason == "cancelled"
    assert 1 <= len(stream.completion.tokens) < 196
    assert list(stream) == []


def test_a_stream_that_is_dropped_is_cancelled() -> None:
    with make(Endless()) as llm:
        next(llm.stream("Once", max_tokens=None, **WARM))
        gc.collect()
        one(llm.generate("Twice", max_tokens=1))
        assert llm.engine.stats().active == 0


def test_a_stream_outlives_its_llm() -> None:
    stream = make().stream("Once", max_tokens=5, **WARM)
    gc.collect()
    assert len("".join(stream)) > 0
    assert len(stream.completion.tokens) == 5


def test_logprobs(llm: LLM) -> None:
    output = one(llm.generate("Once", max_tokens=4, seed=1, logprobs=3, **WARM))
    logits = endless_logits_of(llm.tokenize("Once") + output.tokens)[3:-1]
    assert output.logprobs is not None
    assert [of.token for of in output.logprobs] == output.tokens
    assert [of.bytes for of in output.logprobs] == [bytes_of([token]) for token in output.tokens]
    own = sampling.log_probabilities(logits, output.tokens)
    np.testing.assert_allclose([of.logprob for of in output.logprobs], own, rtol=1e-5)
    for row, of in zip(logits, output.logprobs, strict=True):
        tokens, logprobs = sampling.top_tokens(row, 3)
        assert [top.token for top in of.top] == tokens.tolist()
        np.testing.assert_allclose([top.logprob for top in of.top], logprobs, rtol=1e-5)
        assert all(top.text == top.bytes.decode("utf-8", "replace") for top in of.top)


def test_logprobs_end_where_a_stop_string_ends_the_output(llm: LLM) -> None:
    free = one(llm.generate("Once", max_tokens=20, seed=3, **WARM))
    output = one(llm.generate("Once", max_tokens=20, seed=3, stop=free.text[5:7], logprobs=0, **WARM))
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.tokens) < 20


def test_score(llm: LLM) -> None:
    text = llm.tokenize("It was a dark and stormy night." * 4)
    wanted = sampling.log_probabilities(endless_logits_of(text)[:-1], text[1:])
    np.testing.assert_allclose(llm.score(text), wanted, rtol=1e-5)
    assert llm.score(text).dtype == np.float32
    assert llm.score([7]).shape == (0,)
    np.testing.assert_array_equal(llm.score("It was"), llm.score(llm.tokenize("It was")))
    with pytest.raises(RequestError, match="it has no tokens"):
        llm.score([])
    with pytest.raises(DtypeError, match="tokens must be integers"):
        llm.score([["text"]])  # type: ignore[list-item]
    with make(add_bos_token=True) as other:
        np.testing.assert_array_equal(other.score("It"), other.score(other.tokenize("It", add_special=True)))


def test_an_output_continues_its_prompt() -> None:
    """Where the encoder puts a space before a text, an output that begins with a word keeps it."""
    tokenizer = Tokenizer.from_metadata(pieces("▁a", "▁b"))
    a, b = (tokenizer.token_id(text) for text in ("▁a", "▁b"))

    class Says(Toy):
        def logits(self, sums: Any, batch: Batch) -> Any:
            logits = super().logits(sums, batch)
            logits[:, b] = 100
            return logits

    with LLM.from_parts(Says(vocab=tokenizer.vocab_size).loaded, tokenizer) as llm:
        assert one(llm.generate([a], max_tokens=2, temperature=0)).text == " b b"
        assert one(llm.generate([1], max_tokens=2, temperature=0)).text == "b b"  # after BOS a text begins
        assert "".join(llm.stream("a", max_tokens=2, temperature=0)) == " b b"


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"prompt": ""}, RequestError, "it has no tokens"),
        ({"prompt": []}, RequestError, "it has no tokens"),
        ({"prompt": [[]]}, RequestError, "it has no tokens"),
        ({"prompt": None}, DtypeError, "a prompt must be a str or token ids, or a list of such prompts, not NoneType"),
        ({"prompt": b"Once"}, DtypeError, "a prompt must be a str or token ids, or a list of such prompts, not bytes"),
        ({"prompt": {"a": 1}}, DtypeError, "not dict"),
        ({"prompt": [None]}, DtypeError, "a prompt must be a str or token ids, not NoneType"),
        ({"prompt": [259]}, RequestError, "tokens must be from 0 to 258, got 259"),
        ({"prompt": [1, "a"]}, DtypeError, "tokens must be integers"),
        ({"prompt": "x" * 200}, RequestError, "a prompt of 200 tokens leaves no room"),
        ({"prompt": "x" * 10**6}, RequestError, "a text of 1000000 characters is too long: it has at least"),
        ({"max_tokens": -1}, RequestError, "max_tokens must be at least 0, got -1"),
        ({"max_tokens": 1.5}, DtypeError, "max_tokens must be an integer"),
        ({"n": 0}, RequestError, "n must be from 1 to 16, got 0"),
        ({"seed": -3}, RequestError, "seed must be at least 0, got -3"),
        ({"stop": 7}, DtypeError, "stop must be a str or a list of str, not int"),
        ({"stop": ["a", 7]}, DtypeError, "a stop string must be a str that is not empty, got 7"),
        ({"stop": ""}, DtypeError, "a stop string must be a str that is not empty, got ''"),
        ({"temperature": -1}, FewbitError, "temperature"),
        ({"temprature": 1}, DtypeError, "unknown option temprature; known options are max_tokens, min_tokens, stop"),
    ],
)
def test_what_is_refused(llm: LLM, options: dict[str, Any], kind: type[Exception], match: str) -> None:
    options = {"prompt": "Once", **options}
    with pytest.raises(kind, match=match):
        llm.generate(**options)
    with pytest.raises(kind, match=match):
        asyncio.run(llm.agenerate(**options))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"prompt": ["a", "b"]}, "a stream takes one prompt, got a list of them"),
        ({"prompt": "a", "n": 2}, "a stream gives one output: n must be 1, got 2"),
    ],
)
def test_a_stream_gives_one_output(llm: LLM, options: dict[str, Any], match: str) -> None:
    with pytest.raises(RequestError, match=match):
        llm.stream(**options)
    with pytest.raises(RequestError, match=match):
        llm.astream(**options)


OWN = (
    "max_tokens", "min_tokens", "stop", "stop_token_ids", "seed", "logit_bias", "schema", "regex", "choice", "grammar",
    "json", "constraint", "visible_tokens", "namespace", "adapter", "priority", "client", "deadline", "logprobs",
    "prompt_logprobs",
)  # fmt: skip


def test_options_are_those_of_sampling_and_of_a_request() -> None:
    params = list(SamplingParams.__dataclass_fields__)
    others = [*get_type_hints(BeamSettings), "n", "progress"]
    assert list(get_type_hints(Options)) == [*OWN, *params, *get_type_hints(SamplerOptions), *others]
    assert read_options({}).params == SamplingParams()


@pytest.mark.parametrize("options", [Options, PromptOptions])
def test_each_option_is_documented(options: Any) -> None:
    names = re.findall(r"^ {8}(\w+(?:, \w+)*):", options.__doc__, re.MULTILINE)
    assert sorted(name for line in names for name in line.split(", ")) == sorted(get_type_hints(options))

"""LLM with a real executor, on small models with random weights."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import fewbit as fb
from fewbit.devices.batch import Row
from fewbit.errors import FewbitError, PathError, TokenizerError
from fewbit.files.hub import builtin
from fewbit.llm import LLM
from fewbit.ops import sampling

from .llm_toy import END, TOKENS
from .models.random_llama import llama
from .text.samples import metadata

VOCAB = len(TOKENS) + 1
TEXT = "It was a dark and stormy night; the rain fell in torrents."


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a token for each byte, and one for "st", in a file."""
    known, tensors = llama(vocab=VOCAB)
    kinds = np.array([1] * 256 + [3] * (len(TOKENS) - 256) + [1], np.int32)
    words = metadata([*TOKENS, "st"], token_type=kinds, eos_token_id=np.uint32(END), merges=["s t"])
    file = tmp_path_factory.mktemp("llm") / "tiny.gguf"
    fb.write_gguf(file, {**known, **words}, tensors)
    return file


def test_a_model_from_a_file(path: Path) -> None:
    with LLM(path, exact=True) as llm:
        assert (llm.model_name, llm.path, llm.ctx, llm.loaded.executor.vocab) == ("tiny", path, 512, VOCAB)
        output = llm.generate(TEXT, max_tokens=8, temperature=0, logprobs=1)
        assert output.logprobs
        for one in output.logprobs:
            assert one.logprob == one.top[0].logprob  # the likeliest
        scores = llm.score(llm.tokenize(TEXT) + output.tokens)[-len(output.tokens) :]
        np.testing.assert_allclose(scores, [one.logprob for one in output.logprobs], rtol=0, atol=1e-3)


def test_scores_are_those_of_the_executor(path: Path) -> None:
    with LLM(path, exact=True) as llm:
        text = llm.tokenize(TEXT * 5)  # longer than what is scored in one step
        scores = llm.score(text)
        loaded = llm.loaded
        sequence = loaded.cache.new()
        logits = np.concatenate(
            [loaded.forward([Row(sequence, part, len(part))]).copy() for part in (text[:200], text[200:-1])]
        )
        np.testing.assert_allclose(scores, sampling.log_probabilities(logits, text[1:]), rtol=0, atol=1e-3)


@pytest.mark.parametrize("kv", ["q8_0", "f8_e4m3", ("q8_0", "q4_0")])
def test_formats_of_the_cache(path: Path, kv: str | tuple[str, str]) -> None:
    with LLM(path, kv=kv, ctx=128, threads=1) as llm:
        assert llm.ctx == 128
        first, again = (llm.generate(TEXT, max_tokens=4) for _ in range(2))
        assert (first.cached_tokens, again.cached_tokens) == (0, 32)


def test_chats_from_several_threads(path: Path) -> None:
    with LLM(path) as llm:
        texts: list[str] = []

        def talk(i: int) -> None:
            with llm.chat([{"role": "user", "content": f"{TEXT} {i}"}], stream=True, max_tokens=20) as stream:
                texts.append("".join(stream) + stream.completion.finish_reason)

        threads = [threading.Thread(target=talk, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(texts) == 8
        assert llm.loaded.cache.stats().used == 0


def test_a_file_says_how_it_is_sampled(path: Path) -> None:
    with fb.read_gguf(path) as file:
        own = {"general.sampling.temp": np.float32(0.25), "general.sampling.top_k": np.int32(7)}
        other = path.with_name("sampled.gguf")
        fb.write_gguf(other, {**file.metadata, **own}, dict(file.tensors))
    with LLM(path) as llm:
        assert llm.sampling == sampling.SamplingParams()
    with LLM(other) as llm:
        assert llm.sampling == sampling.SamplingParams(temperature=0.25, top_k=7)


def test_a_built_in_model_is_sampled_as_its_makers_recommend(path: Path) -> None:
    model = builtin()["smollm2"]
    assert model.sampling == {"temperature": 0.2, "top_p": 0.9}
    with fb.read_gguf(path) as file:
        copy = path.with_name("copy.gguf")
        fb.write_gguf(copy, {**file.metadata, "general.name": model.title}, dict(file.tensors))
    with LLM(copy) as llm:
        assert (llm.sampling.temperature, llm.sampling.top_p) == (0.2, 0.9)


def test_a_tokenizer_that_does_not_fit(path: Path) -> None:
    known, tensors = llama(vocab=VOCAB + 1000)
    with fb.read_gguf(path) as file:
        other = path.with_name("misfit.gguf")
        fb.write_gguf(other, {**file.metadata, **known}, tensors)
    with pytest.raises(TokenizerError, match=f"the tokenizer has {VOCAB} tokens and the model {VOCAB + 1000}"):
        LLM(other)


def test_what_is_no_model(path: Path) -> None:
    with pytest.raises(PathError):
        LLM(path.with_name("other.gguf"))
    with pytest.raises(FewbitError, match="there is no device 'tpu'"):
        LLM(path, device="tpu")
    with pytest.raises(FewbitError, match="ctx"):
        LLM(path, ctx=0)

"""LLM.embed: texts and token ids, one and many, pooling, encoders and decoders, and what is refused."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewbit.errors import DtypeError, FewbitError, RequestError, TooLong
from fewbit.llm import LLM
from fewbit.llm.pooling import file_pooling, normalized, quantize_embeddings

from ..engine.toy import fingerprint
from ..llm_toy import BOS, make

ZOO = Path(__file__).parents[1] / "zoo"
TEXTS = ["the cat", "it is in the", "you", "that was for the one who is on it"]


@pytest.fixture(scope="module")
def bert() -> Iterator[LLM]:
    with LLM(ZOO / "bert" / "model.gguf", exact=True, kv="f32") as llm:
        yield llm


@pytest.fixture(scope="module")
def llama() -> Iterator[LLM]:
    with LLM(ZOO / "llama" / "model.gguf", exact=True, kv="f32") as llm:
        yield llm


@pytest.mark.parametrize("kind", ["model.gguf", "hf"])
@pytest.mark.parametrize("name", ["bert", "nomic-bert", "modern-bert", "gemma-embedding"])
def test_embeddings_are_those_of_transformers(name: str, kind: str) -> None:
    data = np.load(ZOO / name / "golden.npz")
    with LLM(ZOO / name / kind, exact=True, kv="f32") as llm:
        assert llm.pooling == ("cls" if name == "modern-bert" else "mean")
        np.testing.assert_allclose(llm.embed(data["tokens"].tolist()), data["embedding"], atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "nomic-bert"])
def test_folders_give_texts_the_same_tokens_as_files(name: str) -> None:
    with LLM(ZOO / name / "model.gguf") as file, LLM(ZOO / name / "hf") as folder:
        for text in TEXTS:
            assert file.tokenize(text, add_special=True) == folder.tokenize(text, add_special=True)


def test_one_text_gives_a_vector_and_many_give_rows(bert: LLM) -> None:
    rows = bert.embed(TEXTS)
    assert rows.shape == (4, 32)
    assert rows.dtype == np.float32
    for text, row in zip(TEXTS, rows, strict=True):
        np.testing.assert_allclose(bert.embed(text), row, atol=1e-6)
    np.testing.assert_array_equal(bert.embed([TEXTS[0]]), bert.embed(TEXTS[0])[None])


def test_text_gets_the_tokens_around_it(bert: LLM) -> None:
    ids = bert.tokenize(TEXTS[0], add_special=True)
    assert (ids[0], ids[-1]) == (bert.tokenizer.token_id("[CLS]"), bert.tokenizer.token_id("[SEP]"))
    np.testing.assert_array_equal(bert.embed(ids), bert.embed(TEXTS[0]))


def test_poolings(bert: LLM) -> None:
    states = bert.embed(TEXTS[0], "none", normalize=False)
    assert isinstance(states, np.ndarray)
    assert states.shape == (len(bert.tokenize(TEXTS[0], add_special=True)), 32)
    np.testing.assert_allclose(bert.embed(TEXTS[0], "mean", False), states.mean(axis=0), atol=1e-6)
    np.testing.assert_array_equal(bert.embed(TEXTS[0], "cls", False), states[0])
    np.testing.assert_array_equal(bert.embed(TEXTS[0], "last", False), states[-1])
    several = bert.embed(TEXTS, "none")
    assert [len(rows) for rows in several] == [len(bert.tokenize(text, add_special=True)) for text in TEXTS]


def test_vectors_have_length_one_unless_told_otherwise(bert: LLM) -> None:
    plain = bert.embed(TEXTS, normalize=False)
    np.testing.assert_allclose(np.linalg.norm(bert.embed(TEXTS), axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(plain / np.linalg.norm(plain, axis=1, keepdims=True), bert.embed(TEXTS), atol=1e-6)


def test_more_texts_than_a_step_holds(bert: LLM) -> None:
    texts = [TEXTS[0] + " of it" * (number % 13) for number in range(150)]
    steps = bert.engine.stats().steps
    rows = bert.embed(texts)
    assert 3 <= bert.engine.stats().steps - steps < 30
    for number in (0, 7, 77, 149):
        np.testing.assert_allclose(rows[number], bert.embed(texts[number]), atol=1e-6)


def test_an_encoder_keeps_nothing(bert: LLM) -> None:
    bert.embed(TEXTS[3] * 3)
    stats = bert.engine.cache.stats()
    assert (stats.used, stats.cached) == (0, 0)


def test_async(bert: LLM) -> None:
    async def both() -> Any:
        return await asyncio.gather(bert.aembed(TEXTS), bert.aembed(TEXTS[0]))

    rows, one = asyncio.run(both())
    np.testing.assert_allclose(rows, bert.embed(TEXTS), atol=1e-6)
    np.testing.assert_allclose(one, rows[0], atol=1e-6)


def test_decoders_take_the_last_token(llama: LLM) -> None:
    assert llama.pooling == "last"
    text = "the thing of the other " * 8
    rows = llama.embed(text, "none")
    np.testing.assert_allclose(llama.embed(text), rows[-1], atol=1e-6)
    np.testing.assert_allclose(llama.embed(text), rows[-1], atol=1e-6)  # its beginning is cached now
    assert llama.embed([text, "a"], "mean").shape == (2, 32)
    assert llama.generate(text, max_tokens=2, temperature=0).tokens


def test_hidden_rows_of_the_last_token_only() -> None:
    with make() as llm:
        text = list(range(40))
        expected = fingerprint(text)[-1].astype(np.float32)
        np.testing.assert_array_equal(llm.embed(text, normalize=False), expected)
        np.testing.assert_array_equal(llm.embed(text, normalize=False), expected)


@pytest.mark.parametrize(
    "ask",
    [
        lambda llm: llm.generate("hi"),
        lambda llm: llm.stream("hi"),
        lambda llm: llm.chat([{"role": "user", "content": "hi"}]),
        lambda llm: llm.score("the cat"),
    ],
    ids=["generate", "stream", "chat", "score"],
)
def test_an_encoder_writes_nothing(bert: LLM, ask: Callable[[LLM], object]) -> None:
    assert not bert.can_chat
    with pytest.raises(RequestError, match="is an encoder: it makes embeddings and writes no text; try embed"):
        ask(bert)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (([],), RequestError, "texts must not be empty"),
        (("the cat", "max"), RequestError, "there is no pooling 'max'"),
        (("the cat", 3), DtypeError, "pooling must be a str"),
        (([5, 9999],), RequestError, "tokens must be from 0 to .*, got 9999"),
        ((7,), DtypeError, "not int"),
        (("the " * 70,), RequestError, "the text has 72 tokens, and 64 fit; truncate=True cuts it"),
    ],
)
def test_refused(bert: LLM, arguments: tuple[Any, ...], kind: type[FewbitError], words: str) -> None:
    with pytest.raises(kind, match=words):
        bert.embed(*arguments)


def test_an_empty_text_keeps_its_place(bert: LLM) -> None:
    rows = bert.embed(["the cat", "", " \n", "you"])
    assert rows.shape == (4, 32)
    around = bert.tokenize("", add_special=True)
    assert len(around) == 2
    np.testing.assert_allclose(rows[1:3], [bert.embed(around)] * 2, atol=1e-6)
    np.testing.assert_allclose(rows[[0, 3]], bert.embed(["the cat", "you"]), atol=1e-6)
    with make(add_bos_token=True) as llm:
        np.testing.assert_array_equal(llm.embed(["a", ""])[1], llm.embed([BOS]))


def test_an_empty_text_without_special_tokens_is_named() -> None:
    with make() as llm:
        with pytest.raises(RequestError, match="text 2 is empty: it has no tokens, and the model adds none"):
            llm.embed(["a", "b", ""])
        with pytest.raises(RequestError, match="the text is empty: it has no tokens, and the model adds none"):
            llm.embed("")
        with pytest.raises(RequestError, match="text 1 is empty"):
            asyncio.run(llm.aembed([[1, 2], []]))


def test_long_texts_are_cut(bert: LLM, llama: LLM) -> None:
    """The special tokens around a text stay, those of token ids too."""
    long, first = "the cat is in it " * 40, bert.tokenize("the cat is in it " * 40, add_special=True)
    assert len(first) > 64
    cut = [*first[:63], first[-1]]
    with pytest.raises(TooLong, match=f"text 1 has {len(first)} tokens, and 64 fit; truncate=True cuts it"):
        bert.embed(["you", long])
    with pytest.raises(TooLong, match=r"text 1 does not fit: a text of 1000000 characters .*, or truncate=True"):
        llama.embed(["you", "x" * 10**6])
    rows = bert.embed(["you", long, "the"], truncate=True)
    np.testing.assert_allclose(rows[1], bert.embed(cut), atol=1e-6)
    np.testing.assert_allclose(rows[[0, 2]], bert.embed(["you", "the"]), atol=1e-6)
    np.testing.assert_allclose(bert.embed(first, truncate=True), rows[1], atol=1e-6)
    np.testing.assert_allclose(asyncio.run(bert.aembed(long, truncate=True)), rows[1], atol=1e-6)
    with pytest.raises(DtypeError, match="truncate must be True or False"):
        bert.embed("you", truncate="yes")  # type: ignore[call-overload]


def test_a_reranker_is_refused(bert: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bert, "pooling", file_pooling({"pooling_type": 4}, True))
    with pytest.raises(RequestError, match="is a reranker"):
        bert.embed("the cat")
    assert bert.embed("the cat", "mean").shape == (32,)


def test_softcaps_after_the_head_are_left_out() -> None:
    with LLM(ZOO / "gemma2" / "model.gguf", exact=True) as llm:
        assert llm.embed("the cat").shape == (32,)


def test_shorter_vectors_and_prompts(tmp_path: Path) -> None:
    folder = shutil.copytree(ZOO / "bert/hf", tmp_path / "bert")
    prompts = {"prompts": {"query": "find: ", "document": ""}, "default_prompt_name": "document"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    with LLM(folder, batch_invariant=True) as llm:
        whole = llm.embed("a cat")
        np.testing.assert_allclose(llm.embed("a cat", dimensions=8), normalized(whole[:8]), atol=1e-6)
        plain = llm.embed("a cat", normalize=False)
        np.testing.assert_array_equal(llm.embed("a cat", dimensions=8, normalize=False), plain[:8])
        query = llm.embed("find: a cat")
        assert not np.allclose(query, whole)
        for given in ({"prompt_name": "query"}, {"prompt": "find: "}):
            np.testing.assert_allclose(llm.embed("a cat", **given), query, atol=1e-6)  # type: ignore[call-overload]
        np.testing.assert_array_equal(llm.embed("a cat", prompt_name="document"), whole)
        for given, what in (
            ({"prompt_name": "answer"}, "no prompt 'answer'; there are: query, document"),
            ({"prompt": "a", "prompt_name": "query"}, "cannot be used together"),
            ({"dimensions": 64}, "dimensions must be at most 32"),
            ({"dimensions": 0}, "dimensions must be at least 1"),
        ):
            with pytest.raises(RequestError, match=what):
                llm.embed("a cat", **given)  # type: ignore[call-overload]
        with pytest.raises(DtypeError, match="before text, not before token ids"):
            llm.embed([5, 6], prompt="x")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "binary", "ubinary"])
def test_vectors_in_few_bits_keep_what_is_near(dtype: str) -> None:
    draw = np.random.default_rng(0)
    rows = normalized(draw.standard_normal((50, 256)).astype(np.float32))
    query = normalized(rows[7] + 0.3 / 16 * draw.standard_normal(256).astype(np.float32))
    codes, code = quantize_embeddings(rows, dtype), quantize_embeddings(query, dtype)
    if dtype.endswith("int8"):
        zero = 128 if dtype == "uint8" else 0
        back = normalized(codes.astype(np.float32) - zero)
        np.testing.assert_allclose(back @ back.T, rows @ rows.T, atol=0.03)
        assert codes.dtype == np.dtype(dtype)
        return
    assert codes.shape == (50, 32)
    bits = np.unpackbits((codes.astype(np.int16) + (128 if dtype == "binary" else 0)).astype(np.uint8), axis=-1)
    own = np.unpackbits((code.astype(np.int16) + (128 if dtype == "binary" else 0)).astype(np.uint8))
    np.testing.assert_array_equal(bits, rows > 0)
    assert np.argmin((bits != own).sum(axis=1)) == 7


def test_there_is_no_other_type_of_vectors() -> None:
    with pytest.raises(RequestError, match="there is no type 'int4'"):
        quantize_embeddings(np.ones((1, 8), np.float32), "int4")

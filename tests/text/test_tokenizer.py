from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fewbit.errors import DtypeError, FewbitError, TokenizerError
from fewbit.text.special import NORMAL, USER_DEFINED
from fewbit.text.tokenizer import Tokenizer

from .samples import LOSSLESS, STORED, metadata, pieces, stored, tokenizer

# The default model has no token for some control characters and for unassigned planes.
CHARS = st.characters(
    exclude_categories=["Cs", "Cc", "Cn", "Co"], exclude_characters="\u2581", include_characters="\n\t\r\0"
)
TEXTS = st.text(CHARS)


@pytest.mark.parametrize("name", LOSSLESS)
@given(text=TEXTS)
@example(text="  a  ")
@example(text=" \n ")
@example(text="\0\ufeff")
@example(text="<|im_end|></s><s>")
def test_there_and_back(name: str, text: str) -> None:
    tokens = tokenizer(name)
    ids = tokens.encode(text)
    assert tokens.decode(ids) == text
    assert not any(map(tokens.is_special, ids)), "text that looks like a control token is text"


@given(text=TEXTS)
def test_there_and_back_with_special_tokens(text: str) -> None:
    tokens = tokenizer("smollm2")
    framed = f"<|im_start|>{text}<|im_end|>"
    ids = tokens.encode(framed, parse_special=True)
    assert tokens.decode(ids) == framed
    assert ids[0] == tokens.token_id("<|im_start|>")
    assert tokens.decode(ids, skip_special=True) == text or "<|" in text


@pytest.mark.parametrize("name", STORED)
def test_tokens_by_text_and_number(name: str) -> None:
    tokens = tokenizer(name)
    assert tokens.vocab_size == len(stored(name)["tokenizer.ggml.tokens"])
    for token in range(0, tokens.vocab_size, 997):
        assert tokens.token_id(tokens.token_text(token)) == token
    assert tokens.token_id("no such token") is None


def test_bytes_of_tokens() -> None:
    smollm = tokenizer("smollm2")
    assert smollm.token_bytes(smollm.encode(" the")[0]) == b" the"
    assert smollm.token_bytes(2) == b"<|im_end|>"
    assert smollm.decode_bytes(smollm.encode("é")[:1]) == "é".encode()[:1] or smollm.encode("é")[:1] == smollm.encode(
        "é"
    )
    phi = tokenizer("phi-3")
    assert phi.token_bytes(phi.vocabulary.ids["<0x0A>"]) == b"\n"
    assert phi.token_bytes(phi.vocabulary.ids["\u2581the"]) == b" the"


def test_bytes_without_a_token_are_left_out() -> None:
    tokens = tokenizer("smollm2")
    assert tokens.decode(tokens.encode("th\x04e")) == "the"
    assert tokens.encode("th\x04e") == tokens.encode("th") + tokens.encode("e"), "and nothing merges over them"


@pytest.mark.parametrize(
    ("name", "bos", "eos", "ends"),
    [
        ("smollm2", "<|im_start|>", "<|im_end|>", {"<|endoftext|>", "<|im_end|>", "<reponame>"}),
        ("phi-3", "<s>", "<|endoftext|>", {"<|endoftext|>", "<|end|>", "</s>"}),
        ("deepseek-coder", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", {"<｜end▁of▁sentence｜>"}),  # noqa: RUF001
    ],
)
def test_roles(name: str, bos: str, eos: str, ends: set[str]) -> None:
    tokens = tokenizer(name)
    assert (tokens.bos_token, tokens.eos_token) == (bos, eos)
    assert {tokens.token_text(token) for token in tokens.end_of_generation} == ends


def test_no_roles() -> None:
    tokens = Tokenizer.from_metadata(metadata(["a", "b"], bos_token_id=2**32 - 1))
    assert (tokens.bos_id, tokens.eos_id, tokens.bos_token, tokens.end_of_generation) == (None, None, "", frozenset())
    assert tokens.encode("ab", add_special=True) == [0, 1]


def test_message_ends_are_not_turn_ends() -> None:
    words = ["<|start|>", "<|end|>", "<|return|>", "<|call|>"]
    tokens = Tokenizer.from_metadata(metadata(words, token_type=[3] * 4))
    assert tokens.end_of_generation == {2, 3}


def test_closing_tag_is_text_where_the_file_says_so() -> None:
    assert Tokenizer.from_metadata(metadata(["</s>"], token_type=[1])).end_of_generation == frozenset()
    assert Tokenizer.from_metadata(metadata(["</s>"], token_type=[3])).end_of_generation == {0}


@pytest.mark.parametrize(
    ("pre", "flags", "ids"),
    [
        ("gpt-2", {}, [0]),
        ("gpt-2", {"add_bos_token": True}, [1, 0]),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, [1, 0, 2]),
        ("llama-bpe", {}, [1, 0]),
        ("llama-bpe", {"add_bos_token": False}, [0]),
        ("tekken", {"add_eos_token": np.bool_(True)}, [1, 0, 2]),
    ],
)
def test_begin_and_end(pre: str, flags: dict[str, Any], ids: list[int]) -> None:
    words = metadata(["a", "B", "E"], pre=pre, bos_token_id=np.uint32(1), eos_token_id=2, **flags)
    assert Tokenizer.from_metadata(words).encode("a", add_special=True) == ids
    assert Tokenizer.from_metadata(words).encode("a") == [0]


def test_user_defined_tokens_are_always_found() -> None:
    words = metadata(["a", "b", "ab", "<x>", "<x>y"], token_type=[1, 1, 4, 3, 4])
    tokens = Tokenizer.from_metadata(words)
    assert tokens.encode("aab") == [0, 2]
    assert tokens.encode("a<x>b") == [0, 1], "control tokens are not, and here they have no letters"
    assert tokens.encode("a<x>b<x>y", parse_special=True) == [0, 3, 1, 4]


def test_pieces_are_merged_by_score() -> None:
    tokens = Tokenizer.from_metadata(pieces("bc", "ab", "\u2581", "a", "b", "c"))
    assert [tokens.token_text(i) for i in tokens.encode("abc")] == ["\u2581", "a", "bc"]
    tokens = Tokenizer.from_metadata(pieces("ab", "bc", "\u2581", "a", "b", "c"))
    assert [tokens.token_text(i) for i in tokens.encode("abc")] == ["\u2581", "ab", "c"]


def test_pieces_fall_back_to_bytes() -> None:
    tokens = Tokenizer.from_metadata(pieces("\u2581", "a"))
    assert [tokens.token_text(i) for i in tokens.encode("aé")] == ["\u2581", "a", "<0xC3>", "<0xA9>"]
    assert tokens.decode(tokens.encode("aé")) == "aé"


def test_space_before_a_text() -> None:
    words = ("\u2581", "a")
    assert Tokenizer.from_metadata(pieces(*words)).encode("a") == [259, 260]
    bare = Tokenizer.from_metadata(pieces(*words, add_space_prefix=False))
    assert bare.encode("a") == [260]
    assert bare.decode(bare.encode(" a")) == " a"


def test_a_text_that_continues_keeps_its_space() -> None:
    tokens = tokenizer("phi-3")
    ids = tokens.encode("there was")
    assert tokens.decode(ids) == "there was"
    assert tokens.decode(ids, continues=True) == " there was"


def test_words_of_any_length() -> None:
    tokens = tokenizer("bert-bge")
    assert len(tokens.encode("a" * 10_000)) > 1000
    assert tokens.decode(tokens.encode("Hello WORLD")) == "hello world"
    assert tokens.encode("\u0378") == [tokens.vocabulary.unknown]


def test_unigram() -> None:
    words = ["<pad>", "</s>", "<unk>", "\u2581", "a", "b", "ab", "\u2581a", "b\u2581"]
    scores = [0.0, 0.0, 0.0, -2.0, -3.0, -3.0, -1.0, -4.0, -9.0]
    more = {"scores": scores, "token_type": [3, 3, 2, 1, 1, 1, 1, 1, 1], "add_space_prefix": True}
    tokens = Tokenizer.from_metadata(metadata(words, "t5", **more))
    assert tokens.encode("ab") == [3, 6]
    assert tokens.encode("abx", add_special=True) == [3, 6, 2, 1]
    assert tokens.encode("</s>") == [3, 2], "the end is not text"
    assert tokens.decode(tokens.encode("ab ab")) == "ab ab"
    merged = Tokenizer.from_metadata(metadata(words, "t5", **more, remove_extra_whitespaces=True))
    assert merged.encode("  ab   ab ") == merged.encode("ab ab")


def test_gemma_words_are_plain_text() -> None:
    words = ["<0x0A>", "\u2581", "a", "b", "a\u2581b", "a\u2581", "<0xC3>", "<0xA9>", "<bos>"]
    types = [6, 1, 1, 1, 1, 1, 6, 6, 3]
    more = {"merges": ["a \u2581", "a\u2581 b"], "token_type": types, "bos_token_id": 8}
    tokens = Tokenizer.from_metadata(metadata(words, "gemma4", **more))
    assert tokens.encode("a b") == [4]
    assert tokens.encode("a\n\u00e9", add_special=True) == [8, 2, 0, 6, 7]
    assert tokens.decode([4, 0, 6, 7]) == "a b\n\u00e9"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "no tokenizer.ggml.model"),
        ({"model": "rwkv"}, "unknown tokenizer.ggml.model 'rwkv'; known are gpt2, gemma4, llama, bert, t5"),
        ({"model": 3}, "tokenizer.ggml.model is a string, not 3"),
        ({"tokens": None}, "no tokenizer.ggml.tokens"),
        ({"tokens": []}, "tokens is empty"),
        ({"tokens": "abc"}, "list of strings, not str"),
        ({"tokens": ["a", 7]}, "list of strings: sequence item 1"),
        ({"tokens": ["a", "\ud800"]}, "list of strings: .*surrogates not allowed"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
        ({"merges": ["a z"]}, "the merges do not fit the tokens.*`z`"),
        ({"merges": ["b a"]}, "the merges do not fit the tokens.*`ba`"),
        ({"merges": ["ab"]}, "two tokens with a space between them, not 'ab'"),
        ({"merges": ["a "]}, "the merges do not fit the tokens"),
        ({"merges": ["a b c"]}, "the merges do not fit the tokens"),
        ({"pre": "no-such"}, "unknown pre-tokenizer 'no-such' .* known are .*qwen2"),
        ({"token_type": [1]}, "token_type has 1 entries for 3 tokens"),
        ({"token_type": ["x"] * 3}, "token_type is a list of numbers"),
        ({"eos_token_id": 3}, "eos_token_id is 3, but the vocabulary has the tokens 0 to 2"),
        ({"bos_token_id": -7}, "bos_token_id is -7"),
        ({"bos_token_id": "a"}, "bos_token_id is 'a'"),
        ({"add_bos_token": "yes"}, "add_bos_token is true or false, not 'yes'"),
        ({"model": "llama", "merges": None}, "no tokenizer.ggml.scores"),
        ({"model": "llama", "scores": [0.0] * 2}, "scores has 2 entries for 3 tokens"),
        ({"model": "llama", "scores": [float("nan")] * 3}, "scores holds NaN"),
        ({"model": "t5", "scores": [0.0] * 3, "unknown_token_id": -1}, "needs tokenizer.ggml.unknown_token_id"),
        ({"model": "t5", "scores": [0.0] * 3, "precompiled_charsmap": [1, 2]}, "precompiled_charsmap cannot be read"),
        ({"model": "t5", "scores": [0.0] * 3, "precompiled_charsmap": "x"}, "precompiled_charsmap cannot be read"),
    ],
)
def test_bad_metadata(change: dict[str, Any], message: str) -> None:
    keys: dict[str, Any] = {"tokens": ["a", "b", "ab"], "merges": ["a b"], **change}
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_metadata(metadata(**keys))


WORDS = ["", "a", "b", "ab", "\u2581", "\u2581a", "<s>", "</s>", "\0", "\u0120", "<0x41>", "a b", "\n", *"<>0x|"]


@given(data=st.data())
def test_any_metadata(data: st.DataObject) -> None:
    """A vocabulary that makes no sense is refused, or works as well as it can."""
    tokens = data.draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=20))
    number = st.sampled_from([0.0, -1.0, 2.5, float("inf"), -float("inf"), 1e30])
    keys = {
        "model": st.sampled_from(["gpt2", "llama", "bert", "t5", "gemma4"]),
        "scores": st.lists(number, min_size=len(tokens), max_size=len(tokens)),
        "token_type": st.lists(st.integers(0, 7), min_size=len(tokens), max_size=len(tokens)),
        "merges": st.sampled_from([[], ["a b"], ["b a"], ["a b", "ab a"], [" "], [""]]),
        "unknown_token_id": st.integers(-1, len(tokens)),
        "bos_token_id": st.none() | st.integers(0, len(tokens) - 1),
        "add_space_prefix": st.none() | st.booleans(),
    }
    given = {key: data.draw(values) for key, values in keys.items()}
    try:
        words = Tokenizer.from_metadata(metadata(tokens, **given))
    except TokenizerError:
        return
    ids = words.encode("".join(data.draw(st.lists(st.sampled_from(WORDS)))), parse_special=data.draw(st.booleans()))
    assert all(0 <= token < words.vocab_size for token in ids)
    words.decode(range(words.vocab_size))


def test_bad_calls() -> None:
    tokens = tokenizer("smollm2")
    for token in (-1, tokens.vocab_size):
        with pytest.raises(TokenizerError, match="there is no token"):
            tokens.decode([token])
        with pytest.raises(FewbitError):
            tokens.token_text(token)
    with pytest.raises(TokenizerError, match="half a character"):
        tokens.encode("a\ud800b")


def test_long_texts() -> None:
    """Nothing here may be quadratic: each of these is one text of many thousand letters, most of them one word."""
    for name in STORED:
        tokens = tokenizer(name)
        for unit in ("word ", "a", " ", "<", "7"):
            text = unit * (50_000 // len(unit))
            ids = tokens.encode(text, parse_special=True)
            assert name == "bert-bge" or tokens.decode(ids) == text


@pytest.mark.parametrize("name", STORED)
def test_a_number_of_tokens_that_a_text_has_at_least(name: str) -> None:
    tokens = tokenizer(name)
    for text in ("", "a", "The rain fell in torrents. " * 50, " " * 999, "\n\t" * 99, "é漢🎉" * 50, "1234567890" * 50):
        assert tokens.min_tokens(text) <= len(tokens.encode(text))
    for token in tokens.vocabulary.of_kind(NORMAL, USER_DEFINED)[::97]:
        text = tokens.token_bytes(token).decode("utf-8", "replace") * 40
        assert tokens.min_tokens(text) <= len(tokens.encode(text))
    assert tokens.min_tokens("characters " * 10**5) >= (0 if name == "bert-bge" else 10**4)
    assert (tokens.min_tokens("word") == 0) == (name == "bert-bge")


@pytest.mark.parametrize("name", ["smollm2", "phi-3"])
def test_other_threads_run_while_a_long_text_is_tokenized(name: str) -> None:
    """The library holds Python's lock for one text, and not for a batch."""
    tokens, text, ticks = tokenizer(name), "The rain fell in torrents. " * 10_000, 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    ids = tokens.encode(text)
    done.set()
    thread.join()
    assert ticks > 10
    assert tokens.decode(ids) == text


def test_rows_past_the_last_token_are_tokens_that_are_not_in_use() -> None:
    tokens = Tokenizer.from_metadata(metadata(["a", "b"]))
    fitted = tokens.fitted(100)
    assert (fitted.vocab_size, tokens.vocab_size) == (100, 2)
    assert (fitted.decode([0, 99]), fitted.decode([0, 99], skip_special=True)) == ("a[PAD99]", "a")
    assert fitted.encode("ab[PAD99]") == tokens.encode("ab[PAD99]") == [0, 1]
    assert tokens.fitted(2) is tokens
    assert fitted.fitted(2) is fitted
    for rows in (1, 130):
        with pytest.raises(TokenizerError, match=f"has 2 tokens and the model {rows}, so they do not belong together"):
            tokens.fitted(rows)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda tokens: tokens.encode(None), "a text must be a str, not NoneType"),
        (lambda tokens: tokens.encode(b"a"), "a text must be a str, not bytes"),
        (lambda tokens: tokens.decode(None), "token ids must be a list of integers, not NoneType"),
        (lambda tokens: tokens.decode("a"), "token ids must be a list of integers, not str"),
        (lambda tokens: tokens.decode(["a"]), "a token id must be an integer, not str"),
        (lambda tokens: tokens.token_text(1.5), "a token id must be an integer, not float"),
    ],
)
def test_arguments_of_the_wrong_type(call: Any, message: str) -> None:
    with pytest.raises(DtypeError, match=message):
        call(tokenizer("smollm2"))

"""tokenizer.json beside the library that wrote it: the same tokens for byte-level BPE, BPE with bytes, Unigram."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from fewbit.errors import TokenizerError
from fewbit.files.tokenizer_json import read_tokenizer
from fewbit.text.splits import pre_tokenizer_of
from fewbit.text.tokenizer import Tokenizer

TEXT = "low lower 123456 it's  \n newest\u00e9 \u6f22"
SPACE = "\u2581"


def read(folder: Path, library: Library, **settings: Any) -> Tokenizer:
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return Tokenizer.from_metadata(read_tokenizer(folder, {}))


def byte_level(splits: list[Any], **options: Any) -> Library:
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "lo", "low", "er", "123", "lower"]
    merges = [("l", "o"), ("lo", "w"), ("e", "r")]
    library = Library(models.BPE({token: i for i, token in enumerate(tokens)}, merges, **options))
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return library


@pytest.mark.parametrize(
    "splits",
    [
        [],
        [pre_tokenizers.Digits(individual_digits=True)],
        [pre_tokenizers.Digits(individual_digits=False)],
        [pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), pre_tokenizers.Split(Regex(r"\s+|\w+"), "isolated")],
        [pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}|\s+|[^\s\p{L}\p{N}]+"), "removed", invert=True)],
        [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    ],
    ids=["none", "digits", "numbers", "two", "inverted", "gpt2"],
)
def test_byte_level(tmp_path: Path, splits: list[Any]) -> None:
    if splits and isinstance(splits[0], pre_tokenizers.ByteLevel):
        library = byte_level([])
        library.pre_tokenizer = splits[0]
    else:
        library = byte_level(splits)
    assert read(tmp_path, library).encode(TEXT) == library.encode(TEXT).ids


def test_words_that_are_tokens(tmp_path: Path) -> None:
    library = byte_level([pre_tokenizers.Split(Regex(r" ?\w+"), "isolated")], ignore_merges=True)
    assert read(tmp_path, library).encode("lower") == library.encode("lower").ids == [260]


def test_bpe_with_bytes(tmp_path: Path) -> None:
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, *"lowern", "lo", "low", f"{SPACE}low", "er"]
    merges = [("l", "o"), ("lo", "w"), (SPACE, "low"), ("e", "r")]
    ids = {token: i for i, token in enumerate(tokens)}
    library = Library(models.BPE(ids, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    library.add_special_tokens(["<s>"])
    tokenizer = read(tmp_path, library, bos_token="<s>", add_bos_token=True)
    assert tokenizer.encode(TEXT) == library.encode(TEXT).ids
    assert tokenizer.encode("low", add_special=True) == [len(tokens), ids[f"{SPACE}low"]]
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_unigram(tmp_path: Path) -> None:
    vocab = [("<unk>", 0.0), (SPACE, -2.0), (f"{SPACE}low", -1.5), ("er", -2.5), *((c, -4.0) for c in "lowern123456")]
    library = Library(models.Unigram(vocab, 0, False))
    library.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always", split=False)
    library.decoder = decoders.Metaspace()
    assert read(tmp_path, library).encode("low lower 123") == library.encode("low lower 123").ids


def test_space_around_special_tokens(tmp_path: Path) -> None:
    from tokenizers import AddedToken

    library = byte_level([])
    library.add_special_tokens([AddedToken("<|x|>", lstrip=True, rstrip=True, special=True)])
    tokenizer = read(tmp_path, library)
    assert tokenizer.encode("a <|x|> b", parse_special=True) == library.encode("a <|x|> b").ids


@pytest.mark.parametrize(
    "split",
    ["(a+)+", "(a|a)*", "(?:a*)*", "(a?){2,}", r"(a)\1", r"\k<x>", "a" * 2001, "[a", "a{1000}", "(?<n>a)", "(((a)+))+",
     "a**", "(a){1,99}"],
)  # fmt: skip
def test_expressions_that_could_take_forever(split: str) -> None:
    with pytest.raises(TokenizerError, match="the pre-tokenizer's expression"):
        pre_tokenizer_of([split], False)


def test_expressions_that_cannot_be_read(tmp_path: Path) -> None:
    library = byte_level([pre_tokenizers.Split(Regex("a"), "isolated")])
    library.save(str(tmp_path / "tokenizer.json"))
    text = (tmp_path / "tokenizer.json").read_text().replace('"Regex": "a"', '"Regex": "a)"')
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(TokenizerError, match="cannot be read"):
        Tokenizer.from_metadata(read_tokenizer(tmp_path, {}))
    with pytest.raises(TokenizerError, match="at most 16 expressions, not 17"):
        pre_tokenizer_of(["a"] * 17, False)


def test_kinds_that_are_not_read(tmp_path: Path) -> None:
    library = byte_level([])
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    with pytest.raises(TokenizerError, match="puts a space before each text is not supported"):
        read(tmp_path, library)
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(TokenizerError, match="neither byte-level nor falls back to bytes"):
        read(tmp_path, library)


@pytest.mark.parametrize("number", [-1, 1 << 21, 1 << 40])
def test_numbers_far_from_the_others_are_refused(tmp_path: Path, number: int) -> None:
    """A few bytes of a file must not make lists of millions."""
    byte_level([]).save(str(tmp_path / "tokenizer.json"))
    given = json.loads((tmp_path / "tokenizer.json").read_text())
    given["model"]["vocab"]["lower"] = number
    (tmp_path / "tokenizer.json").write_text(json.dumps(given))
    with pytest.raises(TokenizerError, match=r"ids of 261 tokens must be from 0 to"):
        read_tokenizer(tmp_path, {})
    given["model"]["vocab"]["lower"] = 5
    given["added_tokens"] = [{"id": number, "content": "<x>", "special": True}]
    (tmp_path / "tokenizer.json").write_text(json.dumps(given))
    with pytest.raises(TokenizerError, match="an added token needs an id"):
        read_tokenizer(tmp_path, {})

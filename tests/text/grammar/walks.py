"""Vocabularies, and random texts that a constraint allows."""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np

from fewbit.text.grammar import GrammarCompiler
from fewbit.text.grammar.constraint import StepwiseConstraint
from fewbit.text.tokenizer import Tokenizer

from ..samples import metadata, pieces, tokenizer

BYTE_CHARS = [chr(c) for c in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100), *range(0x100, 0x144))]
MERGED = ["ab", '"a', '":', "Ġb", "ĠĠ", 'Ġ"', '","', "}}", "12", "tr", "ue", "true", "Ã©", "<|im_end|>"]
NAMES = ["bytes", "sentencepiece", "wordpiece", "smollm2"]


@cache
def make_tokenizer(name: str) -> Tokenizer:
    """A small vocabulary, or a stored one of a model."""
    if name == "bytes":
        merges = ["a b", '" a', '" :', "Ġ b", "Ġ Ġ", 'Ġ "', "1 2", "t r", "u e", "tr ue", "Ã ©"]
        return Tokenizer.from_metadata(metadata([*BYTE_CHARS, *MERGED], merges=merges))
    if name == "sentencepiece":
        return Tokenizer.from_metadata(pieces("▁", "ab", '"a', "▁b", '▁"', "true", "12", "é", "▁▁", eos_token_id=2))
    if name == "wordpiece":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        words = [*special, "▁{", "▁}", '▁"', '"', ":", ",", "a", "b", "ab", "1", "12", "▁[", "]", "true", "▁a", "{"]
        ids = {"eos_token_id": 3, "seperator_token_id": 3, "unknown_token_id": 1}
        return Tokenizer.from_metadata(metadata(words, "bert", token_type=[3, 2, 3, 3] + [1] * (len(words) - 4), **ids))
    return tokenizer(name)


@cache
def compiler(name: str) -> GrammarCompiler:
    return GrammarCompiler(make_tokenizer(name), eos_ids=make_tokenizer(name).end_of_generation or {3})


def allowed(constraint: StepwiseConstraint) -> set[int]:
    mask = constraint.mask()
    assert mask is not None
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def text_of(name: str, tokens: list[int]) -> str:
    return b"".join(make_tokenizer(name).token_bytes(token) for token in tokens).decode()


def walk(name: str, constraint: StepwiseConstraint, seed: int, length: int = 200) -> list[int] | None:
    """Random tokens that a constraint allows, up to the end of the output. None: it did not end."""
    compiled, random = compiler(name), Random(seed)
    tokens: list[int] = []
    while len(tokens) < length:
        if constraint.is_finished:
            return tokens
        options = sorted(allowed(constraint))
        ends = [token for token in options if token in compiled.vocabulary.eos_ids]
        if ends and random.random() < 0.5:
            return tokens
        closing = [token for token in options if set(compiled.vocabulary.bytes[token]) & set(b'"}]')]
        token = random.choice(closing if closing and random.random() < 0.6 else options)
        if token in ends:
            return tokens
        constraint.accept(token)
        tokens.append(token)
    return None

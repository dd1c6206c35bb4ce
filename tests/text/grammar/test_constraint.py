"""Masks, forced tokens and rollback of constraints over real and small vocabularies."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import jsonschema
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import RequestError
from fewbit.text.grammar import Grammar, GrammarCompiler
from fewbit.text.grammar.compiler import ConstraintFactory

from .walks import NAMES, allowed, compiler, make_tokenizer, text_of, walk

PERSON = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "ab": {"type": "string", "maxLength": 4},
        "b": {"enum": [True, None, "a"]},
    },
    "required": ["a"],
    "additionalProperties": False,
}
TREE = {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}}, "$ref": "#/$defs/t"}
SCHEMAS: list[Any] = [PERSON, TREE, {"type": "number", "minimum": 1, "maximum": 3}, {"const": {"a": [1, "b"]}}, True]
BYTE_NAMES = [name for name in NAMES if name != "wordpiece"]  # the others cannot write every text


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("name", BYTE_NAMES)
def test_walks_by_schema_validate(name: str, schema: Any) -> None:
    grammar = Grammar.schema(schema)
    make = compiler(name).compile(grammar)
    ended = [tokens for seed in range(8) if (tokens := walk(name, make(), seed)) is not None]
    assert ended
    for tokens in ended:
        text = text_of(name, tokens)
        jsonschema.validate(json.loads(text), schema)
        assert grammar.check(text) is None


@pytest.mark.parametrize("pattern", [r"a{2,4}b?", r"(ab|12)+", r"[^\x00-\x7f]{1,3}", r"(true|a)( b)*", r"\d+\.\d{2}"])
@pytest.mark.parametrize("name", BYTE_NAMES)
def test_walks_by_regex_match(name: str, pattern: str) -> None:
    make = compiler(name).compile(Grammar.regex(pattern))
    for seed in range(8):
        tokens = walk(name, make(), seed)
        assert tokens is None or re.fullmatch(pattern, text_of(name, tokens))


@pytest.mark.parametrize("name", NAMES)
def test_a_choice_is_one_of_the_options(name: str) -> None:
    options = ["ab", "a", "true", "ab12"]
    make = compiler(name).compile(Grammar.choice(options))
    found = {text_of(name, tokens) for seed in range(30) if (tokens := walk(name, make(), seed)) is not None}
    assert found == set(options)


WORDS = Grammar.regex(r"(ab|a|12)+( \{| true)*")


@pytest.mark.parametrize("grammar", [Grammar.schema(PERSON), Grammar.schema(TREE), Grammar.json(), WORDS])
@pytest.mark.parametrize("name", ["bytes", "sentencepiece", "wordpiece"])
def test_the_mask_is_what_can_be_accepted(name: str, grammar: Grammar) -> None:
    if name == "wordpiece" and grammar != WORDS:
        pytest.skip("this vocabulary cannot write all of JSON")
    make = compiler(name).compile(grammar)
    path = next((found for seed in range(9) if (found := walk(name, make(), seed, length=30))), [])
    for length in range(len(path) + 1):
        check_mask(name, make, path[:length])


def check_mask(name: str, make: ConstraintFactory, path: list[int]) -> None:
    """The mask after some tokens beside what each token of the vocabulary does."""
    constraint = replayed(make, path)
    if constraint.is_finished:
        return
    forced, mask = list(constraint.forced()), allowed(constraint)
    accepted = {token for token in range(make_tokenizer(name).vocab_size) if is_accepted(make, path, token)}
    assert mask == ({forced[0]} if forced else accepted)
    assert mask <= accepted


def replayed(make: ConstraintFactory, path: list[int]) -> Any:
    constraint = make()
    for token in path:
        constraint.accept(token)
    return constraint


def is_accepted(make: ConstraintFactory, path: list[int], token: int) -> bool:
    try:
        replayed(make, path).accept(token)
    except RequestError:
        return False
    return True


@given(st.sampled_from([r"(ab|a12)+b", r"a[ab]{0,3}1", r"1?2*(ab)?", r'"(a|b| )*"', r"a|ab|abb12"]), st.integers(0, 99))
def test_the_mask_agrees_with_partial_matches_of_another_engine(pattern: str, seed: int) -> None:
    make = compiler("bytes").compile(Grammar.regex(pattern))
    path = walk("bytes", make(), seed, length=seed % 7) or []
    constraint = replayed(make, path)
    if constraint.is_finished:
        assert not regex.fullmatch(pattern, text_of("bytes", path) + "a")
        return
    tokens, text = make_tokenizer("bytes"), text_of("bytes", path)
    forced = constraint.forced()
    for token in range(tokens.vocab_size):
        data = tokens.token_bytes(token)
        if token in tokens.end_of_generation:
            possible = regex.fullmatch(pattern, text) is not None
        else:
            possible = data.isascii() and bool(regex.fullmatch(pattern, text + data.decode(), partial=True))
        assert (token in allowed(constraint)) == (token == forced[0] if forced else possible)


@pytest.mark.parametrize("name", BYTE_NAMES)
def test_forced_tokens_are_what_the_mask_alone_would_give(name: str) -> None:
    make = compiler(name).compile(Grammar.schema(PERSON))
    constraint, slow, num_forced = make(), make(), 0
    for token in constraint.forced():
        assert allowed(slow) == {token}
        constraint.accept(token)
        slow.accept(token)
        num_forced += 1
    assert num_forced
    assert not constraint.forced()


def test_forced_tokens_are_those_that_the_tokenizer_makes() -> None:
    text = "The quick brown fox jumps over the lazy dog."
    forced = compiler("smollm2").compile(Grammar.choice([text]))().forced()
    assert list(forced) == make_tokenizer("smollm2").encode(text)


@pytest.mark.parametrize("name", NAMES)
def test_text_is_encoded_without_loss(name: str) -> None:
    vocabulary = compiler(name).vocabulary
    for text in ("ab", " ab", '"a":true', "true12"):
        tokens = vocabulary.encode(text)
        assert text.encode().startswith(b"".join(vocabulary.bytes[token] for token in tokens))
        if name != "wordpiece":
            assert text_of(name, tokens) == text


@pytest.mark.parametrize("name", BYTE_NAMES)
def test_rollback_gives_the_same_masks_again(name: str) -> None:
    make = compiler(name).compile(Grammar.schema(PERSON))
    path = walk(name, make(), 5, length=30) or walk(name, make(), 6, length=30)
    assert path
    constraint, masks = make(), []
    for token in path:
        masks.append(allowed(constraint))
        constraint.accept(token)
    for count in range(1, len(path) + 1):
        constraint.rollback(count)
        assert allowed(constraint) == masks[len(path) - count]
        for token in path[len(path) - count :]:
            constraint.accept(token)
    with pytest.raises(RequestError, match="cannot take back"):
        constraint.rollback(len(path) + 1)


def test_rollback_over_the_end() -> None:
    constraint = compiler("bytes").compile(Grammar.choice(["ab"]))()
    [token] = constraint.forced()
    eos = compiler("bytes").vocabulary.eos_ids[0]
    constraint.accept(token)
    assert constraint.is_finished
    constraint.accept(eos)
    constraint.rollback(1)
    assert constraint.is_finished
    constraint.rollback(1)
    assert not constraint.is_finished
    assert allowed(constraint) == {token}


@pytest.mark.parametrize("name", NAMES)
def test_the_output_may_end_only_where_the_grammar_does(name: str) -> None:
    make, eos = compiler(name).compile(Grammar.regex("a(ba)*1?")), set(compiler(name).vocabulary.eos_ids)
    constraint = make()
    assert not allowed(constraint) & eos
    text = ""
    while not constraint.is_finished and len(text) < 12:
        token = min(allowed(constraint) - eos)
        constraint.accept(token)
        text += text_of(name, [token])
        if not constraint.is_finished:
            assert bool(allowed(constraint) & eos) == bool(re.fullmatch("a(ba)*1?", text))
    assert text


def test_characters_may_be_cut_into_tokens() -> None:
    constraint = compiler("bytes").compile(Grammar.regex("[é€]€"))()
    for byte in "€".encode():
        assert constraint.mask() is not None
        [token] = [i for i in allowed(constraint) if compiler("bytes").vocabulary.bytes[i] == bytes([byte])]
        constraint.accept(token)
    assert not allowed(constraint) & set(compiler("bytes").vocabulary.eos_ids)


def test_control_tokens_are_not_text_but_can_be_named() -> None:
    eos = compiler("smollm2").vocabulary.eos_ids
    vocabulary = compiler("smollm2").vocabulary
    assert not allowed(compiler("smollm2").compile(Grammar.regex("[<|a-z_|>]+"))()) & set(vocabulary.special)
    named = compiler("smollm2").compile(Grammar.lark("start: <|im_start|> /a+/"))()
    start = make_tokenizer("smollm2").token_id("<|im_start|>")
    assert start not in eos
    assert allowed(named) == {start}


@pytest.mark.parametrize("extra", [-40, -1, 0, 1, 31, 100])
def test_a_model_with_more_or_fewer_logits_than_tokens(extra: int) -> None:
    tokenizer = make_tokenizer("sentencepiece")
    size = tokenizer.vocab_size + extra
    own = GrammarCompiler(tokenizer, vocab=size)
    mask = own.compile(Grammar.json())().mask()
    assert mask is not None
    assert mask.size == -(-size // 32)
    assert max(allowed(own.compile(Grammar.regex("."))())) < min(size, tokenizer.vocab_size)


def test_a_vocabulary_that_cannot_write_the_text() -> None:
    constraint = compiler("wordpiece").compile(Grammar.regex("xyz"))()
    with pytest.raises(RequestError, match="the grammar cannot go on: no token of the vocabulary fits"):
        constraint.mask()


def test_an_error_names_the_token() -> None:
    constraint = compiler("bytes").compile(Grammar.regex("a+"))()
    with pytest.raises(RequestError, match=r"the grammar does not allow token 0 here: .*"):
        constraint.accept(0)


def test_compiled_grammars_are_kept() -> None:
    own = GrammarCompiler(make_tokenizer("bytes"))
    first = own.compile(Grammar.regex("a+"))
    assert own.compile(Grammar.regex("a+")) == first
    assert own.compile(Grammar.regex("b+")) != first


def test_constraints_of_one_grammar_in_many_threads() -> None:
    make = compiler("smollm2").compile(Grammar.json())
    expected = [walk("smollm2", make(), seed, 60) for seed in range(6)]
    found: dict[int, Any] = {}

    def run(seed: int) -> None:
        found[seed] = walk("smollm2", make(), seed, 60)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[seed] for seed in range(6)] == expected

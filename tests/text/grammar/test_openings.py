"""Outputs whose beginning decides what holds the rest."""

from __future__ import annotations

import pytest

from fewbit.errors import RequestError
from fewbit.text.grammar import Grammar, GrammarCompiler
from fewbit.text.grammar.openings import OpeningConstraint
from fewbit.text.tokenizer import Tokenizer

from ..samples import metadata
from .walks import BYTE_CHARS

TOKENIZER = Tokenizer.from_metadata(
    metadata([*BYTE_CHARS, "ab", "xy", "<|im_end|>"], merges=[], token_type=[1] * 258 + [3])
)
COMPILER = GrammarCompiler(TOKENIZER)


def allowed(constraint: OpeningConstraint) -> set[str] | None:
    mask = constraint.mask()
    if mask is None:
        return None
    tokens = range(TOKENIZER.vocab_size)
    return {TOKENIZER.token_text(one) for one in tokens if int(mask[one // 32]) >> (one % 32) & 1}


def opening(otherwise: str | None) -> OpeningConstraint:
    """An output that begins with "xy" and goes on with digits, or is as `otherwise` says."""
    rest = None if otherwise is None else COMPILER.compile(Grammar.regex(otherwise))
    found = COMPILER.opening([("xy", COMPILER.compile(Grammar.regex("[0-9]{2}")))], rest)()
    assert isinstance(found, OpeningConstraint)
    return found


def accept(constraint: OpeningConstraint, text: str) -> int:
    tokens = COMPILER.vocabulary.marker(text)
    for token in tokens:
        constraint.accept(token)
    return len(tokens)


def test_the_beginning_decides() -> None:
    constraint = opening("ab")
    assert {"a", "x"} <= (allowed(constraint) or set()) <= {"a", "ab", "x", "xy"}
    accept(constraint, "xy")
    found = allowed(constraint) or set()
    assert {"0", "9"} <= found
    assert not {"a", "x"} & found
    accept(constraint, "42")
    assert constraint.is_finished
    constraint = opening("ab")
    accept(constraint, "ab")
    assert constraint.is_finished


def test_both_may_go_on_for_a_while() -> None:
    constraint = opening("xz")
    constraint.accept(TOKENIZER.encode("x")[0])
    assert {"y", "z"} <= (allowed(constraint) or set())
    constraint.accept(TOKENIZER.encode("z")[0])
    assert constraint.is_finished


def test_free_otherwise() -> None:
    constraint = opening(None)
    assert constraint.mask() is None
    accept(constraint, "q")
    assert constraint.mask() is None
    assert not constraint.is_finished
    constraint = opening(None)
    accept(constraint, "xy")
    assert "q" not in (allowed(constraint) or set())


def test_what_fits_nothing_is_refused() -> None:
    with pytest.raises(RequestError):
        accept(opening("ab"), "q")


def test_tokens_can_be_taken_back() -> None:
    constraint = opening("ab")
    before = allowed(constraint)
    constraint.rollback(accept(constraint, "xy4"))
    assert allowed(constraint) == before
    constraint.rollback(accept(constraint, "ab"))
    assert allowed(constraint) == before


def test_bytes_go_to_what_holds_the_answer() -> None:
    constraint = opening("ab")
    assert not constraint.accept_bytes(b"q")
    assert constraint.accept_bytes(b"a")
    assert (allowed(constraint) or set()) == {"b"}
    assert opening(None).accept_bytes(b"q")

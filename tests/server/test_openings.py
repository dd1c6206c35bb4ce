"""Outputs whose beginning decides what holds the rest."""

from __future__ import annotations

import pytest

from fewbit.errors import RequestError
from fewbit.llm import LLM
from fewbit.server.openings import OpeningConstraint, OpeningMark
from fewbit.text.grammar import Grammar


def allowed(llm: LLM, constraint: OpeningConstraint) -> set[str] | None:
    mask = constraint.mask()
    if mask is None:
        return None
    tokens = range(llm.tokenizer.vocab_size)
    return {llm.tokenizer.token_text(one) for one in tokens if int(mask[one // 32]) >> (one % 32) & 1}


def opening(llm: LLM, otherwise: str | None) -> OpeningConstraint:
    """An output that begins with "xy" and goes on with digits, or is as `otherwise` says."""
    compiler = llm.grammars
    mark = OpeningMark(tuple(compiler.vocabulary.marker("xy")), compiler.compile(Grammar.regex("[0-9]{2}")))
    rest = None if otherwise is None else compiler.compile(Grammar.regex(otherwise))
    return OpeningConstraint([mark], rest, compiler.vocabulary)


def accept(llm: LLM, constraint: OpeningConstraint, text: str) -> int:
    tokens = llm.grammars.vocabulary.marker(text)
    for token in tokens:
        constraint.accept(token)
    return len(tokens)


def test_the_beginning_decides(llm: LLM) -> None:
    constraint = opening(llm, "ab")
    assert {"a", "x"} <= (allowed(llm, constraint) or set()) <= {"a", "ab", "x", "xy"}
    accept(llm, constraint, "xy")
    found = allowed(llm, constraint) or set()
    assert {"0", "9"} <= found
    assert not {"a", "x"} & found
    accept(llm, constraint, "42")
    assert constraint.is_finished
    constraint = opening(llm, "ab")
    accept(llm, constraint, "ab")
    assert constraint.is_finished


def test_both_may_go_on_for_a_while(llm: LLM) -> None:
    constraint = opening(llm, "xz")
    constraint.accept(llm.tokenize("x")[0])
    assert {"y", "z"} <= (allowed(llm, constraint) or set())
    constraint.accept(llm.tokenize("z")[0])
    assert constraint.is_finished


def test_free_otherwise(llm: LLM) -> None:
    constraint = opening(llm, None)
    assert constraint.mask() is None
    accept(llm, constraint, "q")
    assert constraint.mask() is None
    assert not constraint.is_finished
    constraint = opening(llm, None)
    accept(llm, constraint, "xy")
    assert "q" not in (allowed(llm, constraint) or set())


def test_what_fits_nothing_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError):
        accept(llm, opening(llm, "ab"), "q")


def test_tokens_can_be_taken_back(llm: LLM) -> None:
    constraint = opening(llm, "ab")
    before = allowed(llm, constraint)
    constraint.rollback(accept(llm, constraint, "xy4"))
    assert allowed(llm, constraint) == before
    constraint.rollback(accept(llm, constraint, "ab"))
    assert allowed(llm, constraint) == before


def test_bytes_go_to_what_holds_the_answer(llm: LLM) -> None:
    constraint = opening(llm, "ab")
    assert not constraint.accept_bytes(b"q")
    assert constraint.accept_bytes(b"a")
    assert (allowed(llm, constraint) or set()) == {"b"}
    assert opening(llm, None).accept_bytes(b"q")

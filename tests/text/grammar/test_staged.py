"""Constraints that begin at a trigger, or after a thought, however triggers are cut into tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import RequestError
from fewbit.text.grammar import Grammar, GrammarCompiler, Trigger
from fewbit.text.tokenizer import Tokenizer

from ..samples import metadata
from .walks import BYTE_CHARS, allowed

MERGED = [
    "<c",
    "<ca",
    "all>",
    "ll>",
    ">1",
    ">x",
    "> 1",
    "<call>",
    "<call>1",
    "<call>x",
    "ab",
    "12",
    "</t>",
    "</t>ĊĊ",
    "ĊĊ",
]
CONTROL = ["<|im_end|>", "<|go|>"]
TOKENS = [*BYTE_CHARS, *MERGED, *CONTROL]
KINDS = [1] * (len(TOKENS) - 2) + [3, 3]
TOKENIZER = Tokenizer.from_metadata(metadata(TOKENS, merges=[], token_type=KINDS))
COMPILER = GrammarCompiler(TOKENIZER)
IDS = {TOKENIZER.token_bytes(i).decode("latin-1"): i for i in range(TOKENIZER.vocab_size)}
EOS = IDS["<|im_end|>"]
NUMBER = Grammar.regex("1[12]*;")
DIGITS = {IDS["1"], IDS["12"]}


ALL = set(range(TOKENIZER.vocab_size))


def feed(constraint: Any, *texts: str) -> Any:
    for text in texts:
        mask = constraint.mask()
        assert mask is None or IDS[text] in allowed(constraint), text
        constraint.accept(IDS[text])
    return constraint


def lazily(**options: Any) -> Any:
    return COMPILER.lazily([Trigger("<call>", NUMBER), Trigger("<|go|>", Grammar.choice(["ab"]))], **options)()


@pytest.mark.parametrize("cut", [["<call>"], ["<c", "all>"], ["<", "c", "a", "ll>"], ["a", "<ca", "l", "l", ">"]])
def test_a_trigger_is_found_however_it_is_cut(cut: list[str]) -> None:
    constraint = feed(lazily(), "x", *cut)
    assert allowed(constraint) == {IDS["1"]} | {IDS["12"]}


def test_text_is_free_before_a_trigger_and_after_its_grammar() -> None:
    constraint = lazily()
    for text in ("a", "<", "c", "b", "<|im_end|>"):
        assert allowed(constraint) == ALL - {IDS["<call>x"]}
        constraint.accept(IDS[text])
    feed(constraint, "<call>", "12")
    assert allowed(constraint) == {IDS["1"], IDS["2"], IDS["12"], IDS[";"]}
    feed(constraint, ";")
    assert not constraint.is_finished
    assert allowed(constraint) == ALL - {IDS["<call>x"]}
    feed(constraint, "y", "<call>")
    assert allowed(constraint) == DIGITS


def test_there_is_no_mask_where_no_token_goes_on_after_a_trigger() -> None:
    constraint = feed(COMPILER.lazily([Trigger("<|go|>", NUMBER)])(), "a", "<call>x")
    assert constraint.mask() is None


def test_a_control_token_is_a_trigger() -> None:
    constraint = feed(lazily(), "a", "<|go|>")
    assert b"".join(map(TOKENIZER.token_bytes, constraint.forced())) == b"ab"


def test_the_output_ends_after_one_call() -> None:
    constraint = feed(lazily(repeats=False), "<call>", "1")
    assert not constraint.is_finished
    assert feed(constraint, ";").is_finished


def test_a_token_that_goes_on_after_the_trigger() -> None:
    assert allowed(feed(lazily(), "<call>1")) == {IDS["1"], IDS["2"], IDS["12"], IDS[";"]}
    constraint = feed(lazily(), "<c", "a", "l", "l")
    assert not allowed(constraint) & {IDS[">x"], IDS["> 1"], IDS["<call>x"]}
    assert {IDS[">1"], IDS[">"], IDS["a"], EOS} <= allowed(constraint)
    constraint.accept(IDS[">1"])
    assert IDS[";"] in allowed(constraint)
    with pytest.raises(RequestError, match="begins a grammar that does not allow"):
        lazily().accept(IDS["<call>x"])


def reference(texts: list[str]) -> str:
    """The state after some tokens: free text, or the grammar and what it has."""
    text, inside = "".join(texts), None
    at = 0
    while at < len(text):
        if inside is None:
            found = text.find("<call>", at)
            if found < 0:
                return "free"
            at, inside = found + 6, ""
        else:
            inside += text[at]
            at += 1
            if inside.endswith(";"):
                inside = None
    return "free" if inside is None else inside


@given(
    st.lists(
        st.sampled_from(["<", "c", "a", "l", "<c", "<ca", "all>", "ll>", ">", ">1", "<call>", "1", "12", ";", "x"])
    )
)
def test_states_agree_with_a_search_in_the_whole_text(texts: list[str]) -> None:
    constraint, taken, masks = COMPILER.lazily([Trigger("<call>", NUMBER)])(), [], []
    for text in texts:
        mask = constraint.mask()
        if mask is not None and IDS[text] not in allowed(constraint):
            continue
        masks.append(None if mask is None else allowed(constraint))
        constraint.accept(IDS[text])
        taken.append(text)
    state = reference(taken)
    if state != "free":
        inside = COMPILER.compile(NUMBER)()
        assert inside.accept_bytes(state.encode())
        assert allowed(constraint) == allowed(inside)
    for count in range(len(taken)):
        constraint.rollback(1)
        before = masks[len(taken) - 1 - count]
        assert constraint.mask() is None if before is None else allowed(constraint) == before


def test_a_constraint_after_a_thought() -> None:
    constraint = COMPILER.after("</t>", COMPILER.compile(NUMBER))()
    assert allowed(constraint) == ALL - {EOS}
    feed(constraint, "a", "<", "</t>")
    assert allowed(constraint) > DIGITS
    assert IDS["\n\n"] in allowed(constraint)
    feed(constraint, "\n\n", "1", ";")
    assert constraint.is_finished


def test_whitespace_after_a_thought_is_bounded() -> None:
    constraint = feed(COMPILER.after("</t>", COMPILER.compile(NUMBER))(), "</t>\n\n", "\n\n", "\n\n", "\n\n")
    assert allowed(constraint) == DIGITS


def test_whitespace_that_the_grammar_wants_goes_to_the_grammar() -> None:
    constraint = feed(COMPILER.after("</t>", COMPILER.compile(Grammar.regex("\n\n1;")))(), "</t>\n\n", "1", ";")
    assert constraint.is_finished


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_thought_has_a_budget(limit: int) -> None:
    constraint = feed(COMPILER.after("</t>", COMPILER.compile(NUMBER), limit)(), *["a"] * limit)
    assert list(constraint.forced()) == TOKENIZER.encode("</t>")
    for token in constraint.forced():
        assert allowed(constraint) == {token}
        constraint.accept(token)
    assert allowed(constraint) > DIGITS


def test_a_budget_does_not_repeat_a_begun_end_or_cut_a_character() -> None:
    begun = feed(COMPILER.after("</t>", None, 2)(), "a", "<")
    assert b"".join(map(TOKENIZER.token_bytes, begun.forced())) == b"/t>"
    cut = feed(COMPILER.after("</t>", None, 1)(), "\xc3")
    assert not cut.forced()
    assert feed(cut, "\xa9").forced()


def test_a_budget_alone_leaves_the_answer_free() -> None:
    constraint = feed(COMPILER.after("</t>", None, 5)(), "a", "</t>", "b", "<|im_end|>", "</t>")
    assert constraint.mask() is None
    assert not constraint.forced()
    assert not constraint.is_finished


def test_calls_after_a_thought() -> None:
    constraint = COMPILER.after("</t>", COMPILER.lazily([Trigger("<call>", NUMBER)]))()
    feed(constraint, "<call>", "x", "</t>", "a")
    assert allowed(constraint) == ALL - {IDS["<call>x"]}
    feed(constraint, "<c", "all>")
    assert allowed(constraint) == DIGITS
    constraint.rollback(5)
    assert EOS not in allowed(constraint)


def test_rollback_over_a_budget() -> None:
    constraint = feed(COMPILER.after("</t>", COMPILER.compile(NUMBER), 2)(), "a", "b")
    for token in list(constraint.forced()):
        constraint.accept(token)
    feed(constraint, "1", ";")
    constraint.rollback(3)
    assert constraint.forced()
    constraint.rollback(2)
    with pytest.raises(RequestError, match="cannot take back 9 tokens"):
        constraint.rollback(9)


def test_bad_arguments() -> None:
    with pytest.raises(RequestError, match="at least one trigger"):
        COMPILER.lazily([])
    with pytest.raises(RequestError, match="must not be empty"):
        COMPILER.after("")

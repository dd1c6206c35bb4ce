from __future__ import annotations

import pytest

from fewbit.errors import RequestError
from fewbit.text.reply import HERMES, call_grammar

from .transcripts import ADD, FAMILIES, NESTED, PING, SPELLED, TOOLS, ZURICH, Call

llguidance = pytest.importorskip("llguidance")
TOKENIZER = llguidance.LLTokenizer("byte")


def accepts(source: str, text: str) -> bool:
    matcher = llguidance.LLMatcher(TOKENIZER, llguidance.LLMatcher.grammar_from_lark(source))
    assert not matcher.is_error(), matcher.get_error()
    tokens = TOKENIZER.tokenize_bytes(text.encode())
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("calls", [[ZURICH], [ADD], [NESTED], [SPELLED], [PING]], ids=["1", "2", "3", "4", "5"])
def test_the_grammar_takes_calls_as_the_family_writes_them(name: str, calls: list[Call]) -> None:
    family = FAMILIES[name]
    text = family.write(*calls).removesuffix("<|call|>")  # the token that ends the output
    assert accepts(call_grammar(family.format, TOOLS).whole, text)


@pytest.mark.parametrize("name", FAMILIES)
def test_triggers_begin_what_the_grammar_goes_on_with(name: str) -> None:
    family = FAMILIES[name]
    text = family.write(ADD).removesuffix("<|call|>")
    for trigger, source in call_grammar(family.format, TOOLS).triggers:
        assert text.startswith(trigger)
        assert accepts(source, text.removeprefix(trigger))


@pytest.mark.parametrize("name", FAMILIES)
def test_other_tools_and_arguments_are_refused(name: str) -> None:
    family = FAMILIES[name]
    source = call_grammar(family.format, TOOLS, name="add", is_parallel=False).whole
    for calls in ([PING], [("add", {"x": 1})], [("add", {"x": 1, "y": 2, "z": 3})], [ADD, ADD]):
        assert not accepts(source, family.write(*calls).removesuffix("<|call|>"))  # type: ignore[arg-type]
    assert accepts(source, family.write(ADD).removesuffix("<|call|>"))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_thought_may_come_first(name: str) -> None:
    family = FAMILIES[name]
    source = call_grammar(family.format, TOOLS, has_thought=True).whole
    call = family.write(ADD).removesuffix("<|call|>")
    assert accepts(source, family.think("Hm {").rstrip() + call)
    assert accepts(source, call)
    if family.format.thought is not None:
        inside = call_grammar(family.format, TOOLS, opens_thought=True).whole
        assert accepts(inside, f"Hm {{{family.format.thought.end}\n\n{call}")
        assert not accepts(inside, call)


@pytest.mark.parametrize("name", FAMILIES)
def test_control_tokens_are_meant_and_not_their_spelling(name: str) -> None:
    family = FAMILIES[name]
    texts = [text for text in family.format.calls.literals if text[0] in "<["]
    source = call_grammar(family.format, TOOLS, control=dict.fromkeys(texts, 5)).whole
    matcher = llguidance.LLMatcher(TOKENIZER, llguidance.LLMatcher.grammar_from_lark(source))
    assert not matcher.is_error(), matcher.get_error()
    if family.format.calls.openings[:1] and family.format.calls.openings[0] in texts:
        assert "<[5]>" in source


def test_choices_that_cannot_be_made() -> None:
    with pytest.raises(RequestError, match="tool_choice names 'dance', and the tools are weather, add, ping, note"):
        call_grammar(HERMES, TOOLS, name="dance")
    with pytest.raises(RequestError, match="no tools were given"):
        call_grammar(HERMES, [])

from __future__ import annotations

import pytest

from fewbit.text.reply import call_grammar

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

"""Grammars in GBNF hold what llama.cpp's parser says that they hold."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import RequestError
from fewbit.text.grammar import Grammar

from .walks import allowed, compiler, text_of, walk

ARITHMETIC = """
# sums and products
root ::= (line "\\n")+
line ::= sum "=" space
sum  ::= product ([-+] product)*
product ::= atom ([*/] atom)*
atom ::= number | name | "(" space sum ")" space
number ::= [0-9]+ space
name ::= [a-z] [a-z0-9_]* space
space ::= [ \\t]*
"""
CODE = """root ::= function*
function ::= type name "(" argument? ")" "{" statement* "}"
type ::= ("int" | "float") blank
name ::= [a-zA-Z_] [a-zA-Z_0-9]*
argument ::= type name
statement ::=
    ( type name blank "=" blank value ";" ) |
    ( "if" "(" value relation value ")" "{" statement* "}" ("else" "{" statement* "}")? ) |
    ( "/*" ( [^*] | ("*" [^/]) )* "*/" )
relation ::= ("<=" | "<" | "==")
value ::= name | [0-9]+ | "-" value
blank ::= ([ \\t\\n]+)
"""
GAME = """root ::= "1. " move " " move "\\n" ([1-9] [0-9]? ". " move " " move "\\n")*
move ::= (pawn | piece | castle) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""
WRITTEN = """root ::= letter+ ([ \\n] letter+)*
letter ::= latin | kana | mark
latin ::= [a-zA-Z]
kana ::= [\u3041-\u309f]
mark ::= [!"#$%&'()*+,-./:;<=>?@[\\\\\\]^_`{|}~]
"""
JSON = r"""
root ::= value
value ::= map | list | text | number | ("true" | "false" | "null") gap
map ::= "{" gap ( text ":" gap value ("," gap text ":" gap value)* )? "}" gap
list ::= "[" gap ( value ("," gap value)* )? "]" gap
text ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" gap   # escapes
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? gap
gap ::= | " " | "\n" [ \t]{0,20}
"""
LIST = 'root ::= item+\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"'
LONG_GAP = "[\n" + " " * 21 + "1]"
NAMES = 'root ::= start T-1 t_1 9 "a"\nstart ::= "s"\nT-1 ::= "t"\nt_1 ::= "u" t_1?\n9 ::= "9"'
CASES: list[tuple[str, list[str], list[str]]] = [
    (ARITHMETIC, ["1+2*x1 =\n", "(a -(b))= \n3=\n"], ["", "1+=\n", "(1=\n", "1=1\n"]),
    (CODE, ["", "int f(){}", "int f(float x){if(-1<=x){}else{/* * */}int y = 3;}"], ["int(){}", "int f(){int y = ;}"]),
    (GAME, ["1. e4 e5\n", "1. e4 e5\n2. Nf3 O-O-O+\n"], ["1. e4\n", "1. e9 e5\n"]),
    (WRITTEN, ["abc d", "ひらがな !?]\\"], ["", "a  b", "é"]),
    (JSON, ["{}", '{"a": [1, -2.5e+10, "\\u00e9\\n"]}', "[\n    true]", "null "], ['{"a"}', "[1,]", '"\\x"', LONG_GAP]),
    (LIST, ["- a\n", "- a b\n- é\n"], ["", "-a\n", "- \n", "- a\u2028\n"]),
    ('root ::= ("a" | "b"){2,3} "c"{2} "d"?', ["abcc", "bbbccd"], ["acc", "abcccc"]),
    ('root ::= name "x" root | "."\nname ::= [a-z]+', ["axx.", "xx.", "."], ["a.", "x."]),
    ('root ::= . "\\U0001F600" [^a-c\\]] "/"', ["x\U0001f600d/", "\n\U0001f600//"], ["x\U0001f600a/", "x\U0001f600]/"]),
    ('root ::= "(" root ")" | ""', ["", "(())"], ["(", "())"]),
    ("root::=A|aB\nA::=\"1\"\naB::=\"2\"\n", ["1", "2"], ["3"]),
    (NAMES, ["stu9a", "stuu9a"], ["st9a"]),
    ('root ::= <[97]> "b"', [], ["ab"]),
]  # fmt: skip


def matches(grammar: Grammar, text: str) -> bool:
    constraint = compiler("bytes").compile(grammar)()
    if not constraint.accept_bytes(text.encode()):
        return False
    return constraint.is_finished or bool(allowed(constraint) & set(compiler("bytes").vocabulary.eos_ids))


@pytest.mark.parametrize(("text", "good", "bad"), CASES)
def test_what_a_grammar_holds(text: str, good: list[str], bad: list[str]) -> None:
    grammar = Grammar.parse(text)
    assert [example for example in good if not matches(grammar, example)] == []
    assert [example for example in bad if matches(grammar, example)] == []


def test_walks_through_json() -> None:
    import json

    make = compiler("smollm2").compile(Grammar.gbnf(JSON))
    found = [text_of("smollm2", tokens) for seed in range(12) if (tokens := walk("smollm2", make(), seed))]
    assert found
    assert all(json.loads(text) is not Ellipsis for text in found)


def test_a_token_by_its_id() -> None:
    constraint = compiler("smollm2").compile(Grammar.gbnf('root ::= <|im_start|> "a" | <[17]>'))()
    assert {17} < allowed(constraint)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('item ::= "a"', "the grammar has no rule `root`, where GBNF begins"),
        ("root ::= item", "rule 'root' of the grammar uses 'item', which is not defined"),
        ('root ::= "a', "line 1 of the grammar, at '': a text or a character class is not closed"),
        ('root ::= "a"\nroot ::= "b"', "rule 'root' is defined twice"),
        ('root ::= ("a"', "expected ')'"),
        ('root ::= "a")', "expected the end of the rule"),
        ('root ::= "a"{x}', "expected a count such as {2}, {2,} or {2,3}"),
        ("root ::= [b-a]", "the range 'b' to 'a' is empty"),
        ("root ::= []", "a character class is empty"),
        ('root ::= "\\q"', "unknown escape '\\\\q'"),
        ('root ::= "\\uD800"', "\\uD800 is not a character"),
        ("root ::= !<[3]>", "a negated token is not supported"),
        ("root ::= " + "(" * 500 + '"a"' + ")" * 500, "more than 100 parentheses are open"),
        ("root ::= \nitem = 3", "line 2 of the grammar"),
    ],
)
def test_errors_say_what_and_where(text: str, problem: str) -> None:
    with pytest.raises(RequestError, match=re.escape(problem)):
        Grammar.gbnf(text)


def test_rules_in_a_long_chain() -> None:
    rules = [f'r{i} ::= "a" r{i + 1}' for i in range(3000)]
    assert "R2999" in Grammar.gbnf("\n".join(["root ::= r0", *rules, 'r3000 ::= "b"'])).text


@given(st.text(st.sampled_from('ab":=|()[]{}*+?.\\n \n<>019,^-#'), max_size=30))
def test_any_text_is_a_grammar_or_refused(body: str) -> None:
    try:
        make: Any = compiler("bytes").compile(Grammar.gbnf(f"root ::= {body}"))
    except RequestError:
        return
    assert make().mask() is not None or make().is_finished


def test_lark_or_gbnf_by_looks() -> None:
    assert Grammar.parse("start: /[a-z]+ ::= x/").text == "start: /[a-z]+ ::= x/"
    assert Grammar.parse(' root ::= "a"').text.startswith("start: ROOT")

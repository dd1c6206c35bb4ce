from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from fewbit.errors import TemplateError
from fewbit.text.template import ChatTemplate
from fewbit.text.tokenizer import Tokenizer

from .samples import metadata, tokenizer

HI = [{"role": "user", "content": "hi"}]


def render(source: str, **more: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(HI, **more)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}", "<s>hi</s>"),
        ("{% for i in [1, 2, 3] %}\n  {% if i == 2 %}{% continue %}{% endif %}\n{{ i }}\n{% endfor %}\n", "1\n3\n"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "ahib"),
        ("{{ {'a': '<é>&', 'b': [1, none, true]} | tojson }}", '{"a": "<é>&", "b": [1, null, true]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("[{{ nothing }}]{% if nothing is defined %}x{% endif %}{{ tools is none }}", "[]True"),
        ("{{ 1 ~ 'a' ~ none ~ (2 ~ [3]) }}", "1aNone2[3]"),
        ("{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{% endfor %}", "1/1True"),
        ("{% for a in [[1, [2]], [3]] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}", "123"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{% macro m(x, y=2) %}{{ x }}{{ y }}{{ caller() }}{% endmacro %}{% call m(1) %}c{% endcall %}", "12c"),
        (
            "{{ 'a-b'.split('-') | join('+') }}{{ 'x' * 3 }}{{ 2 ** 3 }}{{ '%s!' % 'y' }}{{ '{}'.format(1) }}",
            "a+bxxx8y!1",
        ),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}", "['hi']"),
        ("{{ 'a\nb' | indent(2) }}{{ ' x ' | trim }}{{ 'aba'.replace('a', 'c', 1) }}", "a\n  bxcba"),
    ],
)
def test_what_templates_use(source: str, text: str) -> None:
    assert render(source) == text


def test_names_from_outside() -> None:
    assert render("{{ enable_thinking }}{{ add_generation_prompt }}", enable_thinking=False) == "FalseTrue"
    assert render("{{ tools[0].name }}", tools=[{"name": "f"}], add_generation_prompt=False) == "f"


def test_the_clock() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", clock=lambda: datetime(2026, 11, 15))
    assert template.render(HI) == "15 Nov 2026"
    assert str(datetime.now().year)[:2] in render("{{ strftime_now('%Y') }}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
        ("a\n{% if %}", "cannot be read: Expected an expression.* in line 2"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{% for t in tools %}{% endfor %}", "TypeError: 'NoneType' object is not iterable"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ x | nothing }}", "cannot be read: No filter named 'nothing'"),
        ("{% include 'a' %}", "no loader"),
    ],
)
def test_errors(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        render(source)


def test_the_template_of_a_file() -> None:
    template = ChatTemplate.for_tokenizer(tokenizer("smollm2"))
    assert template.render(HI).endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert "You are a helpful AI assistant" in template.render(HI)


def test_templates_by_name() -> None:
    words = {"tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b", "tokenizer.chat_templates": ["x"]}
    tokens = Tokenizer.from_metadata({**metadata(["a"]), **words})
    assert tokens.chat_templates == {"default": "a", "tool_use": "b"}
    assert ChatTemplate.for_tokenizer(tokens, "tool_use").render(HI) == "b"
    with pytest.raises(TemplateError, match=r"no chat template 'rag' .*tool_use"):
        ChatTemplate.for_tokenizer(tokens, "rag")


def test_without_a_template() -> None:
    chatml = Tokenizer.from_metadata(metadata(["<|im_start|>", "<|im_end|>"]))
    assert ChatTemplate.for_tokenizer(chatml).render(HI) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(TemplateError, match=r"no chat template 'default' .*it has none"):
        ChatTemplate.for_tokenizer(Tokenizer.from_metadata(metadata(["a"])))

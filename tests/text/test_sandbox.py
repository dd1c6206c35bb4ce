"""Templates that mean harm: they end in an error, soon, and before they fill the memory."""

from __future__ import annotations

import pytest

from fewbit.errors import TemplateError
from fewbit.text.template import ChatTemplate

TOO_LONG, TOO_LARGE = "takes too long", "more than 16777216 characters"
GROW = "{%% set ns = namespace(x=%s) %%}{%% for i in range(60) %%}{%% set ns.x = %s %%}{%% endfor %%}{{ ns.x%s }}"

HOSTILE = {
    "loops": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", TOO_LONG),
    "one long loop": ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
    "calls": ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}", TOO_LONG),
    "depth": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "loops in loops": ("{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}", f"RecursionError|{TOO_LONG}"),
    "output": (
        "{% for i in range(9999) %}{% for j in range(9999) %}" + "x" * 9999 + "{% endfor %}{% endfor %}",
        TOO_LARGE,
    ),
    "times": ("{{ 'a' * 10 ** 10 }}", TOO_LARGE),
    "times, turned": ("{{ 10 ** 10 * 'a' }}", TOO_LARGE),
    "a list times": ("{{ [0] * 10 ** 10 }}", TOO_LARGE),
    "power": ("{{ 9 ** (9 ** 9) }}", "more than 65536 bits"),
    "squares": (GROW % ("3", "ns.x * ns.x", ""), "more than 65536 bits"),
    "doubled": (GROW % ("'a'", "ns.x ~ ns.x", ""), TOO_LARGE),
    "doubled by plus": (GROW % ("'a'", "ns.x + ns.x", ""), TOO_LARGE),
    "nested lists": (GROW % ("[]", "[ns.x, ns.x]", ""), TOO_LARGE),
    "nested lists as JSON": (GROW % ("[]", "[ns.x, ns.x]", " | tojson"), TOO_LARGE),
    "a block": (
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
        "{% set ns.x = y %}{% endfor %}",
        TOO_LARGE,
    ),
    "ljust": ("{{ 'a'.ljust(10 ** 10) }}", TOO_LARGE),
    "center": ("{{ 'a' | center(width=10 ** 10) }}", TOO_LARGE),
    "percent": ("{{ '%9999999999d' % 1 }}", "width"),
    "format": ("{{ '{:9999999999}'.format(1) }}", "width"),
    "star": ("{{ '%*d' | format(10 ** 9, 1) }}", "width"),
    "indent": ("{{ ('a\n' * 1000) | indent(10 ** 8) }}", TOO_LARGE),
    "indented JSON": ("{{ [1] | tojson(indent=10 ** 9) }}", TOO_LARGE),
    "replace": ("{{ ('a' * 10 ** 5).replace('a', 'b' * 10 ** 5) }}", TOO_LARGE),
    "replace as a filter": ("{{ ('a' * 10 ** 5) | replace('a', 'b' * 10 ** 5) }}", TOO_LARGE),
    "join": ("{{ ('a' * 10 ** 5).join('b' * 10 ** 5) }}", TOO_LARGE),
    "join as a filter": ("{{ ('a' * 10 ** 5) | join('b' * 10 ** 5) }}", TOO_LARGE),
    "batch": ("{{ [1] | batch(10 ** 10, 'x') | list }}", TOO_LARGE),
    "sum": ("{{ ([[1]] * 10 ** 5) | sum(start=[]) }}", TOO_LARGE),
    "lorem ipsum": ("{{ lipsum(10 ** 6) }}", "'lipsum' is undefined"),
    "classes": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "classes by filter": ("{{ ('' | attr('__class__')).mro() }}", "unsafe"),
    "change": ("{{ messages.append(1) }}", "unsafe"),
    "globals": ("{{ raise_exception.__globals__.x }}", "unsafe|undefined"),
    "files": ("{% include '/etc/passwd' %}", "no loader"),
    "deep source": ("{% for i in [1] %}" * 60 + "{% endfor %}" * 60, "cannot be read"),
    "deep expression": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "cannot be read: RecursionError"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates(name: str) -> None:
    source, message = HOSTILE[name]
    with pytest.raises(TemplateError, match=message):
        ChatTemplate(source).render(
            [{"role": "user", "content": "hi"}], max_seconds=1.0 if message == TOO_LARGE else 0.05
        )


def test_no_way_out_of_a_format_string() -> None:
    assert ChatTemplate("{{ '{0.__class__}'.format(messages) }}").render([]) == ""

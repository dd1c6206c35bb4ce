"""Grammars in llama.cpp's GBNF, as Lark for llguidance.

llguidance splits text into lexemes before it parses, each as long as it can be; GBNF knows no lexemes. So whatever is
regular becomes a terminal, as large as possible: rules that lead to no cycle, and in the other rules each run of
neighbours that are regular.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from ...errors import RequestError
from .gbnf_parser import (
    Alternatives,
    CharClass,
    Expression,
    Literal,
    Reference,
    Repeat,
    Sequence,
    TokenName,
    parse_gbnf,
)


def lark_of_gbnf(text: str) -> str:
    r"""The Lark grammar for a grammar in GBNF.

    >>> print(lark_of_gbnf('root ::= "(" root ")" | name\nname ::= [a-c]+'))
    start: root
    root: T_1 root T_2 | NAME
    NAME: /[\x{61}-\x{63}]/+
    T_1: "("
    T_2: ")"
    """
    rules = parse_gbnf(text)
    if "root" not in rules:
        raise RequestError("the grammar has no rule `root`, where GBNF begins")
    for name, body in rules.items():
        for reference in references(body):
            if reference not in rules:
                raise RequestError(f"rule {name!r} of the grammar uses {reference!r}, which is not defined")
    return _Writer(rules).write()


def references(node: Expression) -> Iterator[str]:
    """The rules that an expression names."""
    if isinstance(node, Reference):
        yield node.name
    for child in _children(node):
        yield from references(child)


def regular_rules(rules: dict[str, Expression]) -> set[str]:
    """The rules that lead to no cycle and to no token.

    >>> sorted(regular_rules(parse_gbnf('root ::= "(" root ")" | a\\na ::= b\\nb ::= "b"')))
    ['a', 'b']
    """
    needed_by, missing = defaultdict(list), Counter[str]()
    for name, body in rules.items():
        for reference in set(references(body)):
            needed_by[reference].append(name)
            missing[name] += 1
        missing[name] += _has_token(body)
    regular: set[str] = set()
    ready = [name for name in rules if not missing[name]]
    while ready:
        name = ready.pop()
        regular.add(name)
        for other in needed_by[name]:
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    return regular


class _Writer:
    """Writes rules as Lark."""

    def __init__(self, rules: dict[str, Expression]) -> None:
        self._rules = rules
        self._regular = regular_rules(rules)
        self._names = _lark_names(rules, self._regular)
        self._terminals: dict[str, str] = {}  # names of terminals that are no rules, by what they are

    def write(self) -> str:
        lines = [f"start: {self._names['root']}"]
        lines += [f"{self._names[name]}: {self._body(name)}" for name in self._reached()]
        lines += [f"{name}: {body}" for body, name in self._terminals.items()]
        return "\n".join(lines)

    def _reached(self) -> list[str]:
        """The rules that `root` needs."""
        reached, stack = {"root": None}, ["root"]
        while stack:
            for name in references(self._rules[stack.pop()]):
                if name not in reached:
                    reached[name] = None
                    stack.append(name)
        return list(reached)

    def _body(self, name: str) -> str:
        body = self._rules[name]
        return self._terminal(body) if name in self._regular else self._rule(body)

    def _is_regular(self, node: Expression) -> bool:
        return not _has_token(node) and self._regular.issuperset(references(node))

    def _terminal(self, node: Expression) -> str:
        """A regular expression in the syntax of terminals."""
        match node:
            case Alternatives():
                return " | ".join(map(self._terminal, node.options))
            case Sequence():
                return " ".join(_group(item, self._terminal(item)) for item in node.items) or '""'
            case Repeat():
                return _group(node.item, self._terminal(node.item), repeated=True) + node.suffix
        return self._leaf(node)

    def _rule(self, node: Expression) -> str:
        """An expression in the syntax of rules, with its regular parts as terminals."""
        if self._is_regular(node):
            return self._hoisted(node)
        match node:
            case Alternatives():
                return " | ".join(map(self._rule, self._merged(node)))
            case Sequence():
                return " ".join(_group(item, self._rule(item)) for item in self._runs(node))
            case Repeat():
                return f"({self._rule(node.item)}){node.suffix}"
        return self._leaf(node)

    def _merged(self, node: Alternatives) -> Iterator[Expression]:
        """The options, those that are regular as one."""
        regular = tuple(option for option in node.options if self._is_regular(option))
        yield from (option for option in node.options if not self._is_regular(option))
        if regular:
            yield regular[0] if len(regular) == 1 else Alternatives(regular)

    def _runs(self, node: Sequence) -> Iterator[Expression]:
        """The items, neighbours that are regular as one."""
        run: list[Expression] = []
        for item in node.items:
            if self._is_regular(item):
                run.append(item)
                continue
            if run:
                yield _joined(run)
            run = []
            yield item
        if run:
            yield _joined(run)

    def _hoisted(self, node: Expression) -> str:
        if isinstance(node, Reference):
            return self._names[node.name]
        body = self._terminal(node)
        return body if body == '""' else self._terminals.setdefault(body, f"T_{len(self._terminals) + 1}")

    def _leaf(self, node: Expression) -> str:
        match node:
            case Reference(name):
                return self._names[name]
            case Literal(text):
                return json.dumps(text, ensure_ascii=False)
            case CharClass(pattern):
                return f"/{pattern}/"
            case TokenName(text):
                return text
        raise TypeError(node)


def _children(node: Expression) -> tuple[Expression, ...]:
    match node:
        case Sequence(items) | Alternatives(items):
            return items
        case Repeat(item):
            return (item,)
    return ()


def _has_token(node: Expression) -> bool:
    return isinstance(node, TokenName) or any(map(_has_token, _children(node)))


def _joined(run: list[Expression]) -> Expression:
    return run[0] if len(run) == 1 else Sequence(tuple(run))


def _group(node: Expression, text: str, repeated: bool = False) -> str:
    """The text of an expression inside a larger one."""
    is_compound = isinstance(node, Alternatives) or (repeated and isinstance(node, Sequence | Repeat))
    return f"({text})" if is_compound else text


def _lark_names(rules: dict[str, Expression], regular: set[str]) -> dict[str, str]:
    """A name for each rule: terminals in capitals, rules in small letters, no two alike."""
    names, taken = {}, {"start"}
    for rule in rules:
        plain = re.sub(r"\W", "_", rule)
        name = plain.upper() if rule in regular else plain.lower()
        if not name[0].isalpha() or name.startswith("T_"):
            name = f"{'R' if rule in regular else 'r'}_{name}"
        while name in taken:
            name += "_"
        taken.add(name)
        names[rule] = name
    return names

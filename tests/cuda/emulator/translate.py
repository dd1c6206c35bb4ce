"""CUDA headers as plain C++: inline assembly becomes calls of the functions in ptx.h."""

from __future__ import annotations

import re

_ASM = re.compile(r"\basm\s*(volatile|__volatile__)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SHARED = re.compile(r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+|alignas\(\d+\)\s+)?([\w ]+?)\s+(\w+)\[\];")


def translated(text: str) -> str:
    """
    >>> translated('asm volatile("add.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));')
    'ptx::add_f16x2(r, a, b);'
    """
    text = _SHARED.sub(r"\1* \2 = reinterpret_cast<\1*>(emu::shared);", text)
    out, at = [], 0
    while found := _ASM.search(text, at):
        end = _closing(text, found.end() - 1)
        out += [text[at : found.start()], _call(text[found.end() : end])]
        at = end + 1
    return "".join(out) + text[at:]


def _closing(text: str, opening: int) -> int:
    """Where the parenthesis that opens there closes."""
    depth, at = 0, opening
    while True:
        if text[at] == '"':
            string = _STRING.match(text, at)
            assert string
            at = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return at
        at += 1


def _call(inside: str) -> str:
    template, *lists = _split(inside, ":")
    code = "".join(_STRING.findall(template)).replace("\\n", " ").replace("\\t", " ")
    names = [part.split()[0] for part in re.split(r"[;{}]", code) if part.split() and not part.strip().startswith("%")]
    names = [name for name in names if name[0].isalpha()]
    operands = [
        item[item.index("(") + 1 : item.rindex(")")] for part in lists[:2] for item in _split(part, ",") if "(" in item
    ]
    return f"ptx::{'__and__'.join(re.sub(r'[^A-Za-z0-9]', '_', name) for name in names)}({', '.join(operands)})"


def _split(text: str, by: str) -> list[str]:
    """Parts between separators that are in no parentheses and no strings."""
    parts, depth, at, start = [], 0, 0, 0
    while at < len(text):
        if text[at] == '"' and (string := _STRING.match(text, at)):
            at = string.end()
            continue
        depth += {"(": 1, ")": -1, "[": 1, "]": -1}.get(text[at], 0)
        if text[at] == by and depth == 0:
            parts.append(text[start:at])
            start = at + 1
        at += 1
    return [*parts, text[start:]]

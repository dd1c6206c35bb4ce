"""Regular expressions of a tokenizer.json that split text into words, accepted if they cannot run forever.

An expression may hold what those of known models hold. What can make matching exponential is refused: a group that is
repeated without a limit, and references back.
"""

from __future__ import annotations

import re

from ..errors import TokenizerError
from .pretokenizers import PRE_TOKENIZERS, PreTokenizer

MAX_SPLITS, MAX_CHARS, MAX_REPEAT, MAX_DEPTH = 16, 2000, 512, 16

_KNOWN = {split for entry in PRE_TOKENIZERS.values() for split in entry.splits}
_REPEAT = re.compile(r"(?P<sign>[*+?])|\{(?P<least>\d*)(?P<comma>,?)(?P<most>\d*)\}")
_GROUP = re.compile(r"\((?:\?(?::|=|!|>|<=|<!|[imx-]+:|[imx-]+\)))?")
_ESCAPE = re.compile(r"\\(?:[pP]\{\^?\w+\}|[^0-9kgRKX])", re.DOTALL)


def pre_tokenizer_of(splits: list[str], whole_words: bool) -> PreTokenizer:
    """The pre-tokenizer that cuts text by these expressions.

    >>> pre_tokenizer_of([r" ?\\p{L}+|\\s+"], False).splits
    (' ?\\\\p{L}+|\\\\s+',)
    >>> pre_tokenizer_of(["(a+)+"], False)
    Traceback (most recent call last):
        ...
    fewbit.errors.TokenizerError: the pre-tokenizer's expression '(a+)+' repeats a group without a limit, which could \
take forever; use a GGUF file of the model
    """
    if len(splits) > MAX_SPLITS:
        raise TokenizerError(f"a pre-tokenizer has at most {MAX_SPLITS} expressions, not {len(splits)}")
    for split in splits:
        if split not in _KNOWN and (why := _unsafe(split)):
            shown = split if len(split) < 60 else split[:57] + "..."
            raise TokenizerError(
                f"the pre-tokenizer's expression {shown!r} {why}, which could take forever; "
                "use a GGUF file of the model"
            )
    return PreTokenizer(tuple(splits), whole_words)


def _unsafe(pattern: str) -> str:
    """What is wrong with an expression; empty if nothing is."""
    if len(pattern) > MAX_CHARS:
        return f"has {len(pattern)} characters"
    at, depth, after_group = 0, 0, False
    while at < len(pattern):
        char = pattern[at]
        repeat = _REPEAT.match(pattern, at)
        if repeat:
            if after_group and _is_endless(repeat):
                return "repeats a group without a limit"
            if max(int(repeat["least"] or 0), int(repeat["most"] or 0)) > MAX_REPEAT:
                return f"repeats something more than {MAX_REPEAT} times"
            at = repeat.end()  # what is repeated may be repeated again: (a?)+ as a?+
            if pattern[at : at + 1] in ("*", "+") and (after_group or pattern[at] == "*"):
                return "repeats a repetition"
            continue
        after_group = char == ")"
        if char == "\\":
            escape = _ESCAPE.match(pattern, at)
            if not escape:
                return "refers back, or holds an escape that is not known"
            at = escape.end()
        elif char == "[":
            at = _class_end(pattern, at)
            if at < 0:
                return "holds a set that does not end"
        elif char == "(":
            group = _GROUP.match(pattern, at)
            at, depth = group.end() if group else at + 1, depth + 1
            if depth > MAX_DEPTH or pattern[at : at + 1] == "?":
                return "holds groups that are not known"
        else:
            depth -= char == ")"
            at += 1
    return ""


def _is_endless(repeat: re.Match[str]) -> bool:
    if repeat["sign"]:
        return repeat["sign"] in "*+"
    return bool(repeat["comma"]) and (not repeat["most"] or int(repeat["most"]) > 16)


def _class_end(pattern: str, at: int) -> int:
    """Where a set of characters ends; sets may hold sets."""
    depth = 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == "[":
            depth += 1
            if depth > MAX_DEPTH:
                return -1
        elif pattern[at] == "]":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return -1

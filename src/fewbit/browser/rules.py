"""How text becomes tokens, for the JavaScript runtime: what `text/` knows beside the vocabulary itself.

A model's vocabulary and merges are in its file, where the runtime reads them. The expressions that cut text, which are
in Oniguruma's syntax, and the texts of tokens that end a turn come from here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import TokenizerError
from ..text.pretokenizers import find_pre_tokenizer
from ..text.special import known_texts
from ..text.template import CHATML
from ..text.vocabulary import read_text

# White_Space of Unicode. `\s` of JavaScript has U+FEFF, too, and lacks U+0085.
SPACES = r"\t-\r\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_IGNORING_CASE = re.compile(r"\(\?i:([^()]*)\)")
_SIGNS = re.compile(r"\\.|\[|\]|\$|\(\?[>i]|&&", re.DOTALL)
_FOLDED = {"s": "[sS\u017f]", "k": "[kK\u212a]"}  # letters that a third one equals, cases aside


def tokenizer_rules(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a runtime needs beside the vocabulary of a GGUF file.

    Args:
        metadata: The keys `tokenizer.*` and `general.*`, without lists of tokens.

    >>> rules = tokenizer_rules({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"})
    >>> rules["kind"], rules["splits"][0]
    ('byte_pairs', '\\\\p{N}')
    """
    model = read_text(metadata, "tokenizer.ggml.model")
    _check_stripping(metadata)
    ends, control = known_texts()
    common = {"end_texts": ends, "control_texts": control, "chatml": CHATML}
    if model == "llama":
        return {"kind": "sentencepiece", "add_bos": True, **common}
    if model != "gpt2":
        raise TokenizerError(f"the browser has no tokenizer of the kind {model[:40]!r}; it has gpt2 and llama")
    name = read_text(metadata, "tokenizer.ggml.pre", "default")
    pre = find_pre_tokenizer(name)
    if not pre.byte_level:
        raise TokenizerError(f"the browser has no pre-tokenizer {name!r}: its words are not made of bytes")
    return {
        "kind": "byte_pairs", "splits": [to_javascript(split) for split in pre.splits],
        "whole_words": pre.whole_words, "add_bos": pre.add_bos, **common,
    }  # fmt: skip


def _check_stripping(metadata: Mapping[str, Any]) -> None:
    name = str(metadata.get("general.name", "")).lower()
    if "phi-3" in name or "phi3" in name:
        raise TokenizerError("the browser does not have Phi-3's tokenizer, whose special tokens swallow spaces")


def to_javascript(split: str) -> str:
    """An expression of Oniguruma as one of JavaScript with the flag `u`.

    >>> to_javascript("(?i:'ll)")
    "(?:'[lL][lL])"
    """
    found = _IGNORING_CASE.sub(lambda group: f"(?:{_both_cases(group[1])})", split)
    found = found.replace(r"\p{Han}", r"\p{Script=Han}")
    out, at, depth = [], 0, 0
    for sign in _SIGNS.finditer(found):
        out.append(found[at : sign.start()])
        at, text = sign.end(), sign[0]
        out.append(_escaped(text, depth, split))
        depth += {"[": 1, "]": -1}.get(text, 0)
    return "".join([*out, found[at:]])


def _both_cases(text: str) -> str:
    return re.sub(r"[a-z]", lambda letter: _FOLDED.get(letter[0], f"[{letter[0]}{letter[0].upper()}]"), text)


def _escaped(text: str, depth: int, split: str) -> str:
    """An escape or another sign, inside so many sets."""
    if depth > 1 or (depth and text in ("[", r"\S", "&&")) or text in ("(?>", "(?i") or (text == "$" and not depth):
        _refuse(split)
    if text == r"\s":
        return SPACES if depth else f"[{SPACES}]"
    if text == r"\S":
        return f"[^{SPACES}]"
    kept = r"pPdDwWnrtsSux()[]{}/\^$.*+?|-"
    return text[1:] if text[0] == "\\" and text[1] not in kept else text


def _refuse(split: str) -> None:
    shown = f'"{split}"' if "'" in split else repr(split)
    raise TokenizerError(f"the browser cannot cut text by the expression {shown[:120]}")

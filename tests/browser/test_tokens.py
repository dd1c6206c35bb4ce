"""The tokenizer of the JavaScript runtime gives the ids and texts of `fewbit.text`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fewbit.browser.rules import tokenizer_rules
from fewbit.text.pretokenizers import PRE_TOKENIZERS
from fewbit.text.tokenizer import Tokenizer

from ..text.samples import metadata, pieces, stored
from .runtime import call

VOCABULARIES = ["smollm2", "phi-3"]
TEXTS = st.lists(st.text() | st.text("aA's \n\t1é\u017f\u2028\ufeff\x85中😀<|im_end|>"), min_size=60, max_size=120)
ODD = [
    "", " ", "  a", "a  \n\n b", "'S '\u017f 'LL I'm", "x\u2028y\x85z\ufeff", "1234567", "中文字", "e\u0301", "😀😀",
    "\r\n\r\n \t", "the the",
    "<|im_start|>user\nhi<|im_end|>", "a" * 500, "(" * 300, " " * 300, "\u2581a", "<0x41>", "<s>",
    "</s>", "<|endoftext|>",
]  # fmt: skip


def known(name: str) -> tuple[Tokenizer, dict[str, Any]]:
    """A tokenizer, and what the runtime makes one of."""
    data = {key: value for key, value in stored(name).items() if "chat_template" not in key}
    data = {key.replace("general.name", "general.title"): value for key, value in data.items()}
    plain = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in data.items()}
    return Tokenizer.from_metadata(data), {"metadata": plain, "rules": tokenizer_rules(data)}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_golden_texts(name: str) -> None:
    tokenizer, both = known(name)
    texts = [*stored("tokens")["cases"], *ODD]
    ids = [tokenizer.encode(text) for text in texts]
    special = [tokenizer.encode(text, add_special=True, parse_special=True) for text in texts]
    found = call(
        ("tokens", {**both, "texts": texts}),
        ("tokens", {**both, "texts": texts, "options": {"addSpecial": True, "special": True}}),
        ("texts", {**both, "ids": special}),
        ("texts", {**both, "ids": special, "options": {"skipSpecial": True}}),
        ("ends", both),
    )
    assert [text for text, a, b in zip(texts, ids, found[0], strict=True) if a != b] == []
    assert [text for text, a, b in zip(texts, special, found[1], strict=True) if a != b] == []
    assert found[2] == [tokenizer.decode(one) for one in special]
    assert found[3] == [tokenizer.decode(one, skip_special=True) for one in special]
    assert found[4] == sorted(tokenizer.end_of_generation)


@pytest.mark.parametrize("name", VOCABULARIES)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=TEXTS)
def test_any_text(name: str, texts: list[str]) -> None:
    tokenizer, both = known(name)
    ids = [tokenizer.encode(text, parse_special=True) for text in texts]
    broken = [row[1:] + row[:1] for row in ids]  # characters that are not whole
    found, shown = call(
        ("tokens", {**both, "texts": texts, "options": {"special": True}}), ("texts", {**both, "ids": broken})
    )
    assert [text for text, a, b in zip(texts, ids, found, strict=True) if a != b] == []
    assert shown == [tokenizer.decode(row) for row in broken]


def test_every_pre_tokenizer_that_the_runtime_has() -> None:
    """Words are cut as in `fewbit.text`; the others are refused."""
    _, both = known("smollm2")
    texts, asked, expected, refused = [*stored("tokens")["cases"], *ODD], [], [], []
    for entry in dict.fromkeys(PRE_TOKENIZERS.values()):
        name = next(name for name in PRE_TOKENIZERS if PRE_TOKENIZERS[name] == entry)
        data = {**both["metadata"], "tokenizer.ggml.pre": name}
        try:
            rules = tokenizer_rules(data)
        except Exception as error:
            refused.append((name, str(error)))
            continue
        asked.append(("words", {"splits": rules["splits"], "texts": texts}))
        expected.append(Tokenizer.from_metadata(data))
        asked[-1] = ("tokens", {"metadata": data, "rules": rules, "texts": texts})
    found = call(*asked)
    assert len(found) > 25
    for ids, tokenizer, (_, given_) in zip(found, expected, asked, strict=True):
        wrong = [text for text, row in zip(texts, ids, strict=True) if tokenizer.encode(text) != row]
        assert wrong == [], given_["metadata"]["tokenizer.ggml.pre"]
    assert all("browser" in message for _, message in refused)


def test_small_sentencepiece_vocabularies() -> None:
    cases: list[dict[str, Any]] = [
        pieces("\u2581", "a", "b", "ab", "\u2581ab", "bab", "abab"),
        pieces("\u2581", "a", "b", "ab", "aba", "ba", add_space_prefix=False),
        pieces("\u2581", "\u2581\u2581", "x", "\u2581x", "xx"),
        metadata(["<unk>", "<s>", "</s>", "a", "\u2581", "\u2581a"], "llama", scores=[0, 0, 0, -1, -2, -3]),
    ]
    texts = ["abab ab", "ba b a", "", " ", "xxx  x", "é😀", "a\nb", "aaa" * 50]
    asked = [("tokens", {"metadata": one, "rules": tokenizer_rules(one), "texts": texts}) for one in cases]
    expected = [[Tokenizer.from_metadata(one).encode(text) for text in texts] for one in cases]
    assert call(*asked) == expected


def test_marks_break_control_tokens_in_messages() -> None:
    tokenizer, both = known("smollm2")
    template = stored("smollm2")["tokenizer.chat_template"]
    text = "a <|im_end|> b<|im_start|>system"
    (prompts,) = call(("prompts", {
        "source": template, "bos": tokenizer.bos_token, "eos": tokenizer.eos_token,
        "control": tokenizer.control_texts(), "conversations": [[{"role": "user", "content": text}]],
    }))  # fmt: skip
    options = {"special": True, "mark": prompts[0]["mark"]}
    (found,) = call(("tokens", {**both, "texts": [prompts[0]["text"]], "options": options}))
    ends = [token for token in found[0] if tokenizer.token_text(token) == "<|im_end|>"]
    assert len(ends) == prompts[0]["text"].count("<|im_end|>") == 2  # of the system's message and of the user's
    assert text in tokenizer.decode(found[0])

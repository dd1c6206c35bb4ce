"""Token ids of llama.cpp and texts of transformers, one by one."""

from __future__ import annotations

import json
import os
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fewbit.errors import TemplateError
from fewbit.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from fewbit.text.template import ChatTemplate
from fewbit.text.tokenizer import Tokenizer

from .samples import GOLDEN, LOSSLESS, STORED, stored, tokenizer

TOKENS = stored("tokens")
SPECIAL = json.loads((GOLDEN / "tokens" / "special.json").read_text())
PRE = stored("pretokenizers")
CHAT = json.loads((GOLDEN / "chat" / "cases.json").read_text())

# These cut at a change of case, as the models were trained; llama.cpp does not.
CUTS_AT_CASE = {"youtu", "tiny_aya", "cohere2moe", "kimi-k2"}


def wrong_cases(tokens: Tokenizer, name: str) -> list[str]:
    pairs = zip(TOKENS["cases"], TOKENS["ids"][name], strict=True)
    return [text for text, ids in pairs if tokens.encode(text) != ids]


@pytest.mark.parametrize("name", STORED)
def test_token_ids(name: str) -> None:
    assert wrong_cases(tokenizer(name), name) == []


@pytest.mark.parametrize("name", sorted(TOKENS["ids"].keys() - set(STORED)))
def test_token_ids_of_vocabularies_elsewhere(name: str) -> None:
    folder = os.environ.get("FEWBIT_GOLDEN")
    if not folder:
        pytest.skip(f"FEWBIT_GOLDEN does not name a folder with tokenizer/{name}.gguf")
    tokens = Tokenizer.from_gguf(Path(folder) / "tokenizer" / f"{name}.gguf")
    assert wrong_cases(tokens, name) == []
    assert [text for text in TOKENS["cases"] if tokens.decode(tokens.encode(text)) != text] == []


def test_special_tokens_of_the_default_model() -> None:
    tokens = tokenizer("smollm2")
    for text, ids in zip(TOKENS["special_cases"], TOKENS["special_ids"], strict=True):
        assert tokens.encode(text, parse_special=True) == ids
        assert tokens.decode(ids) == text


@pytest.mark.parametrize("name", LOSSLESS)
def test_there_and_back(name: str) -> None:
    tokens = tokenizer(name)
    assert [text for text in TOKENS["cases"] if tokens.decode(tokens.encode(text)) != text] == []


@pytest.mark.parametrize("case", SPECIAL, ids=lambda case: f"{case['vocabulary']}-{case['text'][:20]!r}")
def test_special_tokens(case: dict[str, Any]) -> None:
    tokens = tokenizer(case["vocabulary"])
    assert tokens.encode(case["text"], case["add_special"], case["parse_special"]) == case["ids"]


@cache
def tokenizer_with(entry: PreTokenizer) -> Tokenizer:
    name = next(name for name in PRE_TOKENIZERS if PRE_TOKENIZERS[name] == entry)
    return Tokenizer.from_metadata({**stored("smollm2"), "tokenizer.ggml.pre": name})


@pytest.mark.parametrize("name", PRE["names"])
def test_pre_tokenizers(name: str) -> None:
    tokens = tokenizer_with(PRE_TOKENIZERS[name])
    wanted = dict(zip(PRE["texts"], PRE["ids"][PRE["names"][name]], strict=True))
    wrong = [text for text, ids in wanted.items() if tokens.encode(text) != ids]
    assert all("camelCase" in text for text in wrong) if name in CUTS_AT_CASE else wrong == []


def test_every_pre_tokenizer_has_golden_ids() -> None:
    assert PRE["names"].keys() == {name for name, entry in PRE_TOKENIZERS.items() if entry.byte_level}


@pytest.mark.parametrize("case", CHAT, ids=lambda case: f"{case['template']}-{case['case']}")
def test_chat_templates(case: dict[str, Any]) -> None:
    source = (GOLDEN / "chat" / f"{case['template']}.jinja").read_text()
    template = ChatTemplate(source, case["bos_token"], case["eos_token"], clock=lambda: datetime(2026, 11, 15))
    asked = case["messages"], case["tools"], case["add_generation_prompt"]
    if "text" in case["expected"]:
        assert template.render(*asked) == case["expected"]["text"]
    else:
        with pytest.raises(TemplateError, match=case["expected"]["error"]):
            template.render(*asked)

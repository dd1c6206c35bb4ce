"""Answers that are begun: the prompt ends where the last message's text does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fewbit.text.chat import ChatTemplates
from fewbit.text.template import ChatTemplate

from ..llm_toy import byte_tokenizer
from .samples import GOLDEN

CASES = json.loads((GOLDEN / "chat" / "cases.json").read_text())
TEMPLATES = sorted({case["template"] for case in CASES})
TOOLS = next(case["tools"] for case in CASES if case["tools"])
QUESTION = "Why is the sky blue?"


def chat(name: str) -> ChatTemplates:
    tokenizer = byte_tokenizer()
    tokenizer.chat_templates["default"] = (GOLDEN / "chat" / f"{name}.jinja").read_text()
    return ChatTemplates(tokenizer)


def messages(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": text}]


def begun(name: str, text: str, **names: Any) -> str:
    """The prompt from the question on."""
    tools = TOOLS if "tool_use" in name else None
    prompt = chat(name).prompt(messages(text), tools=tools, names=names, continue_final_message=True).unmarked
    return prompt[prompt.index(QUESTION) :]


def whole(name: str, text: str) -> str:
    """The whole conversation from the question on, as the template writes it."""
    template: ChatTemplate = chat(name).template()
    found = template.render(messages(text), TOOLS if "tool_use" in name else None, add_generation_prompt=False)
    return found[found.index(QUESTION) :]


def generation_prompt(name: str, **names: Any) -> str:
    tools = TOOLS if "tool_use" in name else None
    prompt = chat(name).prompt(messages("")[:1], tools=tools, names=names).unmarked
    return prompt[prompt.index(QUESTION) :]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("text", ["Because of", "It is blue: \n\n1.", "Weil <|im_end|> [/INST] steht", "blue blue"])
def test_the_prompt_is_the_conversation_up_to_the_end_of_the_text(name: str, text: str) -> None:
    prompt, rendered = begun(name, text), whole(name, text)
    assert prompt.endswith(text)
    assert rendered.startswith(prompt)
    assert text not in rendered[len(prompt) :]


@pytest.mark.parametrize("name", TEMPLATES)
def test_spaces_at_the_end_stay(name: str) -> None:
    assert begun(name, "It is: \n ").endswith("It is: \n ")


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize(
    "text", ["<think>\nHm, let me", "<think>\nHm.\n</think>\n\nBecause of", "Hm.</think>\nBecause"]
)
@pytest.mark.parametrize("names", [{}, {"enable_thinking": False}])
def test_thoughts_stay_as_the_model_wrote_them(name: str, text: str, names: dict[str, Any]) -> None:
    """They follow the generation prompt, and are opened once."""
    prompt, start = begun(name, text, **names), generation_prompt(name, **names)
    assert prompt.endswith(text)
    assert start.startswith(prompt.removesuffix(text))
    assert prompt.count("<think>") <= 1


def test_a_generation_prompt_that_opens_the_thoughts() -> None:
    tokenizer = byte_tokenizer()
    source = "{% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}\n{% endfor %}"
    source += "{% if add_generation_prompt %}assistant: <think>\n{% endif %}"
    tokenizer.chat_templates["default"] = source
    for text, expected in [("<think>\nHm", "<think>\nHm"), ("Hm</think>So", "<think>\nHm</think>So"), ("So", "So")]:
        prompt = ChatTemplates(tokenizer).prompt(messages(text), continue_final_message=True).unmarked
        assert prompt == f"user: {QUESTION}\nassistant: {expected}"

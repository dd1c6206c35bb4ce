from __future__ import annotations

import pytest

from fewbit.text.reply import HERMES, find_format
from fewbit.text.reply.formats import GEMMA4, HARMONY, LFM2, QWEN_XML, UNKNOWN

from .transcripts import BAR, deepseek

TEMPLATES = {  # the telling parts of each family's templates
    "Hermes": r"{{ '<tool_call>\n{\"name\": ' }}",
    "Llama 3": '{{ \'<|start_header_id|>\' }} Respond as {"name": f, "parameters": {}}',
    "Granite 3": "respond with <|tool_call|> and a JSON list",
    "Phi-4-mini": "<|tool|>{{ tools }}<|/tool|>",
    "Nemotron": "<TOOLCALL>[{{ call }}]</TOOLCALL>",
    "Mistral": "[TOOL_CALLS][{{ call }}]",
    "Mistral with names": "[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}",
    "DeepSeek V3": deepseek("tool calls begin") + r"{{ '\n```json\n' }}",
    "DeepSeek V3.1": deepseek("tool calls begin"),
    "Kimi K2": "<|tool_calls_section_begin|>",
    "GLM 4.5": "<tool_call>{name}\n<arg_key>{key}</arg_key>\n<arg_value>",
    "GLM 4.7": "<tool_call>{name}<arg_key>{key}</arg_key><arg_value>",
    "Qwen3-Coder": r"{{ '<tool_call>\n<function=' + name }}<parameter=",
    "Seed-OSS": "{% set begin = '<seed:tool_call>' %}<function=a><parameter=b>",
    "MiniMax M2": "<minimax:tool_call><invoke",
    "DeepSeek V3.2": f"{{% set token = '{BAR}DSML{BAR}' %}}<' + token + 'function_calls>",
    "DeepSeek V4": f"{{% set token = '{BAR}DSML{BAR}' %}}<' + token + 'tool_calls>",
    "Llama 4": "<|header_start|> Use [func_name1(a=b), func_name2()]",
    "LFM2": "List of tools: <|tool_list_start|>[",
    "OLMo 3": "<function_calls>{{ call }}</function_calls>",
    "Gemma 4": "<|channel>thought <|tool_call>call:{{ name }}",
    "Harmony": "<|channel|>final<|message|>",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_template_tells_the_form(name: str) -> None:
    found = find_format(TEMPLATES[name])
    assert (found.name, found.is_known) == (name, True)


@pytest.mark.parametrize("template", ["", "{{ messages }}", None])
def test_templates_that_tell_nothing_get_the_hermes_form(template: str | None) -> None:
    assert find_format(template) == UNKNOWN
    assert UNKNOWN.calls == HERMES.calls


def test_tokens_tell_where_the_template_does_not() -> None:
    assert find_format("{{ messages }}", {"<|tool_call_start|>"}.__contains__) == LFM2


@pytest.mark.parametrize(
    ("template", "begin"),
    [
        ("<think>", "<think>"),
        ("[TOOL_CALLS][ARGS][THINK]", "[THINK]"),
        ("<|START_THINKING|>", "<|START_THINKING|>"),
        ("<seed:tool_call><seed:think>", "<seed:think>"),
    ],
)
def test_thoughts_are_told_by_the_template(template: str, begin: str) -> None:
    found = find_format(template)
    assert found.thought is not None
    assert (found.thought.begin, found.thinks) == (begin, True)


@pytest.mark.parametrize(
    ("prompt", "answer", "opens", "ends"),
    [
        ("<|im_start|>assistant\n<think>\n", None, True, False),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", None, False, True),
        ("What is <think>?\nassistant\n", None, False, False),
        ("assistant\n<think>\nI won", "<think>\nI won", True, False),
        ("assistant\n<think>\nI</think>Yes", "<think>\nI</think>Yes", False, False),
    ],
)
def test_prompts_that_open_a_thought(prompt: str, answer: str | None, opens: bool, ends: bool) -> None:
    assert (HERMES.opens_thought(prompt, answer), HERMES.ends_thought(prompt)) == (opens, ends)
    assert not HARMONY.opens_thought(prompt, answer)


def test_control_tokens_of_the_form_stay_visible() -> None:
    control = ["<|im_end|>", "<|channel|>", "<|call|>", "<|message|>", "<|tool_call>", '<|"|>', ""]
    assert HARMONY.visible_tokens(control) == {"<|channel|>", "<|call|>", "<|message|>"}
    assert GEMMA4.visible_tokens(control) == {"<|tool_call>", '<|"|>'}
    assert QWEN_XML.visible_tokens(control) == frozenset()

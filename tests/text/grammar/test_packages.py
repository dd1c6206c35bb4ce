"""Without the extra there is one clear error, and nothing of it is imported before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys
sys.modules[{package!r}] = None
from fewbit.errors import ExtraError
from fewbit.text.grammar import Grammar, GrammarCompiler, OutputType
from fewbit.text.tokenizer import Tokenizer
keys = {{"model": "gpt2", "tokens": ["a", "</s>"], "merges": [], "eos_token_id": 1}}
tokenizer = Tokenizer.from_metadata({{f"tokenizer.ggml.{{key}}": value for key, value in keys.items()}})
try:
    {call}
except ExtraError as error:
    print(error)
"""
CALLS = {
    "llguidance": "GrammarCompiler(tokenizer).compile(Grammar.regex('a'))",
    "jsonschema": "Grammar.json().check('{}')",
    "msgspec": "OutputType(int)",
    "regex": "Grammar.schema({'pattern': '(?=a)'}).check('1')",
}


@pytest.mark.parametrize("package", CALLS)
def test_a_missing_package_is_named(package: str) -> None:
    code = WITHOUT.format(package=package, call=CALLS[package])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"grammars and schemas need the package {package}: pip install 'fewbit[grammar]'\n"


def test_nothing_is_imported_before_it_is_needed() -> None:
    packages = "{'llguidance', 'msgspec', 'jsonschema', 'regex', 'pydantic'}"
    code = f"import sys, fewbit.text.grammar; print(*{packages} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

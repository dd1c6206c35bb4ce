"""The names of `fewbit`, and what cannot be pickled."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import fewbit as fb
from fewbit import errors

from .llm_toy import make

PROGRAM = """
import sys, fewbit
names = dir(fewbit)
assert set(fewbit.__all__) <= set(names), set(fewbit.__all__) - set(names)
assert "fewbit.llm" not in sys.modules
print(*names)
"""


def test_dir_shows_the_public_names_and_loads_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    names = {name for name in done.stdout.split() if not name.startswith("__")}
    assert names == set(fb.__all__)


@pytest.mark.parametrize("name", fb.__all__)
def test_each_name_is_there_and_documented(name: str) -> None:
    value = getattr(fb, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__doc__


def test_all_errors_are_exported() -> None:
    kinds = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert kinds <= set(fb.__all__)
    assert {"Completion", "Stream", "AsyncStream", "SamplingParams", "TokenLogprob"} <= set(fb.__all__)


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'fewbit' has no attribute 'LM'"):
        _ = fb.LM  # type: ignore[attr-defined]


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_belongs_to_a_process_is_not_pickled(copied: Callable[[Any], Any]) -> None:
    cache = fb.KVCache(layers=1, kv_heads=1, dim=32, tokens=64)
    with pytest.raises(fb.DtypeError, match=r"a KVCache cannot be pickled, .*: save its sequences to files"):
        copied(cache)
    with make() as llm:
        with pytest.raises(fb.DtypeError, match=r"an LLM cannot be pickled, .*; load the model in each process"):
            copied(llm)
        with (
            llm.stream("a", max_tokens=2) as stream,
            pytest.raises(fb.DtypeError, match=r"a Stream cannot be pickled, .*: read it to its end, and use its comp"),
        ):
            copied(stream)
        with pytest.raises(fb.DtypeError, match="an AsyncStream cannot be pickled"):
            copied(llm.astream("a"))


@pytest.mark.parametrize(
    "value",
    [
        fb.LLM,
        fb.LLM.generate,
        fb.LLM.stream,
        fb.LLM.chat,
        fb.LLM.embed,
        fb.LLM.aparts,
        fb.LLM.chat_prompt,
        fb.LLM.count_tokens,
        fb.LLM.encode_text,
        fb.Completion,
        fb.TokenLogprob,
        fb.SamplingParams,
    ],
    ids=lambda value: value.__qualname__,
)
def test_each_parameter_is_documented(value: Any) -> None:
    args = re.search(r"^ *Args:\n(.*?)(?:\n\n|\Z)", inspect.cleandoc(value.__doc__), re.MULTILINE | re.DOTALL)
    assert args
    names = re.findall(r"^    (\w+):", args[1], re.MULTILINE)
    assert names == [name for name in inspect.signature(value).parameters if name != "self"]

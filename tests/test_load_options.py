"""One record of options: what `LLM`, its help and the commands show is what `LoadOptions` says."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import fewbit as fb
from fewbit.cli.embed import embed
from fewbit.cli.run import chat, run
from fewbit.cli.serve import serve
from fewbit.load_options import LoadOptions, load_options

SOURCES = Path(fb.__file__).parent


def test_llm_takes_the_fields_of_the_options() -> None:
    own = inspect.signature(LoadOptions).parameters
    taken = inspect.signature(fb.LLM).parameters
    assert [(one.name, one.kind, one.default) for one in taken.values()] == [
        (one.name, one.kind, one.default) for one in own.values()
    ]
    positional = [name for name, one in taken.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert positional == ["model", "device", "kv", "ctx", "exact", "threads"]
    assert str(taken["ctx"]) == "ctx: int | None = None"


@pytest.mark.parametrize("option", load_options(), ids=lambda option: option.name)
def test_each_option_is_documented(option: Any) -> None:
    assert option.doc.endswith(".")
    assert f"{option.name}: {option.doc[:40]}" in str(fb.LLM.__doc__)


@pytest.mark.parametrize("command", [run, chat, embed, serve], ids=lambda command: command.name)
def test_commands_have_an_option_for_each_field(command: Any) -> None:
    scopes = ("commands", "serve") if command is serve else ("commands",)
    wanted = {option.name for option in load_options() if option.choice.scope in scopes}
    shown = {one.name: one for one in command.params}
    assert wanted <= shown.keys()
    assert all(shown[name].help for name in wanted)
    hidden = {option.name for option in load_options()} - wanted - {"model", "adapters"}  # --lora gives adapters
    assert hidden.isdisjoint(shown)


def test_exact_is_short_for_activations() -> None:
    assert LoadOptions(exact=True).activations == "exact"
    with pytest.raises(fb.ArgumentError, match="activations='int8' is given too"):
        LoadOptions(exact=True, activations="int8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ctx": 0}, "ctx must be at least 1, got 0"),
        ({"ctx": True}, "ctx must be a number, got True"),
        ({"max_seqs": 1.5}, "max_seqs must be an integer, not float"),
        ({"keep": None}, "keep must be True or False, not None"),
        ({"repack": "yes"}, "repack must be True or False, not 'yes'"),
        ({"kv": 8}, 'kv must be a format such as "q8_0", or two such as "q8_0/q4_0", got 8'),
        ({"kv": "q8_0/q8_0/q8_0"}, "kv must be a format such as"),
        ({"max_waiting": -1}, "max_waiting must be at least 0, got -1"),
    ],
    ids=str,
)
def test_wrong_values_are_refused_before_a_model_is_sought(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fb.FewbitError) as caught:
        fb.LLM("no-such-model.gguf", **options)
    assert message in str(caught.value)


def test_an_option_is_written_in_one_place_and_used_in_another() -> None:
    """Its name stands where it is declared, and where it has an effect; nobody passes it on by name."""
    homes = {"load_options.py", "loading.py", "llm.py"}
    for name in ("max_waiting", "cache_dir_bytes", "gpu_layers", "keep"):
        assert name in {one.name for one in fields(LoadOptions)}
        found = {
            path.relative_to(SOURCES).as_posix()
            for path in [
                *SOURCES.glob("*.py"),
                *SOURCES.glob("cli/*.py"),
                *SOURCES.glob("llm/*.py"),
                SOURCES / "server/settings.py",
            ]
            for node in ast.walk(ast.parse(path.read_text()))
            if (isinstance(node, ast.Attribute) and node.attr == name)
            or (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name)
        }
        assert len(found) == 2, (name, found)
        assert found <= homes | {"llm/llm.py", "llm/reader.py"}, (name, found)

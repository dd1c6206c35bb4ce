"""The table of short names: every line is well formed, and every name means one model."""

from __future__ import annotations

import re

import pytest

from fewbit.errors import MissingError
from fewbit.files.hub import Builtin, Named, all_names, builtin, find, known, named
from fewbit.files.hub.names import part_names, quantization, select

NAME = re.compile(r"[a-z0-9][a-z0-9.-]*:[a-z0-9][a-z0-9.-]*")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
FILE = re.compile(r"[A-Za-z0-9][\w.-]*\.gguf", re.ASCII)
OLD = {
    "qwen3-0.6b": "Qwen/Qwen3-0.6B-GGUF",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B-GGUF",
    "qwen3-4b": "Qwen/Qwen3-4B-GGUF",
    "qwen3-8b": "Qwen/Qwen3-8B-GGUF",
    "smollm2-360m": "bartowski/SmolLM2-360M-Instruct-GGUF",
    "smollm2-1.7b": "bartowski/SmolLM2-1.7B-Instruct-GGUF",
    "smollm3-3b": "ggml-org/SmolLM3-3B-GGUF",
    "granite-2b": "ibm-granite/granite-3.3-2b-instruct-GGUF",
    "olmo2-1b": "allenai/OLMo-2-0425-1B-Instruct-GGUF",
    "gpt-oss-20b": "ggml-org/gpt-oss-20b-GGUF",
    "nomic-embed": "nomic-ai/nomic-embed-text-v1.5-GGUF",
}


@pytest.mark.parametrize("model", named().values(), ids=named())
def test_a_line_of_the_table(model: Named) -> None:
    assert NAME.fullmatch(model.name)
    assert REPOSITORY.fullmatch(model.repo)
    assert ".." not in model.repo
    assert "--" not in model.repo  # the hub allows neither
    assert FILE.fullmatch(model.file)
    assert model.use in ("chat", "embed")
    assert model.license
    assert 10**7 < model.bytes < 10**11
    kind = quantization(model.file)
    assert kind
    assert model.about.startswith(model.file.split("-")[0])
    others = [f"other-{other}.gguf" for other in ("Q2_K", "Q4_K_S", "Q6_K", "F16", "IQ4_XS") if other != kind]
    parts = part_names(model.file)
    chosen = select([*parts, *others, "mmproj-model-f16.gguf"], model.place.rpartition(":")[2], model.place)
    assert chosen.files == parts


def test_models_of_the_table_differ() -> None:
    assert len({model.place for model in named().values()}) == len(named())


@pytest.mark.parametrize("name", all_names())
def test_every_name_means_a_model_with_and_without_latest(name: str) -> None:
    model = known(name)
    assert model
    assert known(model.name) == model
    if ":" not in name:
        assert known(f"{name}:latest") == model


def test_a_family_is_its_first_model_and_a_built_in_one_goes_first() -> None:
    assert [str(getattr(known(name), "name", None)) for name in ("llama3.2", "gemma3", "gpt-oss", "deepseek-r1")] == [
        "llama3.2:3b", "gemma3:4b", "gpt-oss:20b", "deepseek-r1:8b",
    ]  # fmt: skip
    assert known("smollm2") == known("smollm2:135m") == builtin()["smollm2"]
    assert isinstance(known("smollm2:360m"), Named)


@pytest.mark.parametrize("name", ["", ":", "latest", ":latest", "qwen3:", "qwen3:5b", "qwen3:4b:latest", "QWEN3"])
def test_what_is_no_name(name: str) -> None:
    assert known(name) is None


@pytest.mark.parametrize(("name", "repo"), OLD.items())
def test_older_names_still_work(name: str, repo: str) -> None:
    model = known(name)
    assert isinstance(model, Named)
    assert model.repo == repo


@pytest.mark.parametrize(
    ("name", "near"), [("qwen3-4", "qwen3-4b"), ("lama3.2", "llama3.2"), ("gemma3:4", "gemma3:4b"), ("phi-4", "phi4")]
)
def test_a_wrong_name_gets_suggestions(name: str, near: str) -> None:
    with pytest.raises(MissingError, match="is neither a file nor a known name; did you mean") as error:
        find(name)
    assert repr(near) in str(error.value)


def test_built_in_models_are_not_in_repositories() -> None:
    assert all(isinstance(known(name), Builtin) for name in builtin())

"""Models by name: a known name is a model, fetched or not; what `fewbit list` shows can be run as it stands there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fewbit.cli import main
from fewbit.cli.model import is_model, model_and_prompt, similar_models
from fewbit.files.hub import all_names

from .tiny import write_tiny


def run(cache: Path, *args: str, stdin: str = "") -> Result:
    return CliRunner().invoke(main, args, input=stdin, env={"FEWBIT_CACHE": str(cache), "FEWBIT_OFFLINE": "1"})


@pytest.mark.parametrize("name", all_names())
@pytest.mark.parametrize("stdin", ["", "from a pipe"])
@pytest.mark.parametrize("prompt", [(), ("hello there",)])
def test_a_known_name_is_a_model_whether_fetched_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, stdin: str, prompt: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert is_model(name)
    assert model_and_prompt(name, prompt) == (name, prompt[0] if prompt else None)
    result = run(tmp_path, "run", name, *prompt, stdin=stdin)
    if prompt or stdin:  # it is looked for, and nothing else is wrong
        assert result.exit_code == 1
        assert "not in the cache, and fewbit is offline" in result.stderr
    else:
        assert result.exit_code == 2
        assert "there is no prompt" in result.stderr


@pytest.mark.parametrize(
    ("word", "near"),
    [("llama3", "llama3.2"), ("qwen3-5b", "qwen3-4b"), ("gemma", "gemma3"), ("gptoss:20b", "gpt-oss:20b"),
     ("nomic-embed-txt:v1.5", "nomic-embed-text:v1.5")],
)  # fmt: skip
def test_a_word_like_a_model_gets_suggestions(tmp_path: Path, word: str, near: str) -> None:
    assert near in similar_models(word)
    result = run(tmp_path, "run", word)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"fewbit: no model is called {word!r}; did you mean ")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Two models from URLs whose files are called the same, one that was quantized, two from repositories."""
    cache, hub = tmp_path / "cache", tmp_path / "hub"
    small = hub / "models--Qwen--Qwen3-0.6B-GGUF" / "snapshots" / "abc" / "Qwen3-0.6B-Q8_0.gguf"
    other = hub / "models--org--repo" / "snapshots" / "abc" / "m-Q4_0.gguf"
    for folder in ("url/key1", "url/key2", "quantized/key3", "hf"):
        (cache / folder).mkdir(parents=True)
    for path in (small, other):
        path.parent.mkdir(parents=True)
        note = {"files": [[str(write_tiny(path)), path.stat().st_size]]}
        (cache / "hf" / f"{path.stem}.json").write_text(json.dumps(note))
    for path in (cache / "url/key1/m.gguf", cache / "url/key2/m.gguf", cache / "quantized/key3/q-q8_0.gguf"):
        write_tiny(path)
    return cache


def test_what_list_shows_can_be_run_inspected_shown_and_removed(cache: Path) -> None:
    rows = [row for row in json.loads(run(cache, "list", "--json").stdout) if row["path"]]
    names = [row["name"] for row in rows]
    assert names == ["qwen3:0.6b", "hf:org/repo:m-Q4_0.gguf", "key1/m.gguf", "key2/m.gguf", "q-q8_0.gguf"]
    for name in names:
        result = run(cache, "run", name, "hi", "--max-tokens", "2", "--json")
        assert result.exit_code == 0, result.output
        assert run(cache, "inspect", name).exit_code == 0
        assert run(cache, "pull", name).stdout.strip() == next(row["path"] for row in rows if row["name"] == name)
    assert run(cache, "rm", *names).exit_code == 0
    assert not [row for row in json.loads(run(cache, "list", "--json").stdout) if row["path"]]


@pytest.mark.parametrize("name", ["qwen3:0.6b", "qwen3-0.6b", "hf:Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf"])
def test_a_model_with_a_short_name_answers_to_all_its_names(cache: Path, name: str) -> None:
    assert run(cache, "pull", name).exit_code == 0
    assert run(cache, "rm", name).stdout.startswith("removed qwen3:0.6b, ")


def test_a_file_goes_before_a_fetched_model_of_the_same_name(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "q-q8_0.gguf")
    assert run(cache, "pull", "q-q8_0.gguf").stdout.strip() == "q-q8_0.gguf"

"""`fewbit list`, `rm` and `inspect`: models by name and by path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fewbit.cli import main
from fewbit.files.hub import builtin

from .tiny import write_tiny


class Home:
    """A cache folder with models from a repository and from two URLs, whose files are called the same."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.snapshot = folder / "huggingface" / "models--org--repo" / "snapshots" / "abc"
        self.blob = folder / "huggingface" / "models--org--repo" / "blobs" / "123"
        for path in (self.snapshot, self.blob.parent, self.cache / "hf", self.url("1"), self.url("2")):
            path.mkdir(parents=True)
        write_tiny(self.blob)
        (self.snapshot / "m-Q8_0.gguf").symlink_to(self.blob)
        note = {"files": [[str(self.snapshot / "m-Q8_0.gguf"), self.blob.stat().st_size]]}
        (self.cache / "hf" / "aaaa.json").write_text(json.dumps(note))
        (self.cache / "hf" / "bbbb.json").write_text(json.dumps(note))
        for key in "12":
            (self.url(key) / "m.gguf").write_bytes(b"GGUF" * int(key))
            (self.url(key) / "m.gguf.json").write_text("{}")
            (self.url(key) / "lock").touch()

    def url(self, key: str) -> Path:
        return self.cache / "url" / f"key{key}"

    def run(self, *args: str) -> Result:
        return CliRunner().invoke(main, args, env={"FEWBIT_CACHE": str(self.cache), "FEWBIT_OFFLINE": "1"})

    def listed(self) -> list[dict[str, Any]]:
        rows = json.loads(self.run("list", "--json").stdout)
        return [row for row in rows if row["path"]]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_list_has_names_that_tell_models_apart_and_whole_paths(home: Home) -> None:
    assert {row["name"]: row["path"] for row in home.listed()} == {
        "hf:org/repo:m-Q8_0.gguf": str(home.snapshot / "m-Q8_0.gguf"),
        "key1/m.gguf": str(home.url("1") / "m.gguf"),
        "key2/m.gguf": str(home.url("2") / "m.gguf"),
    }
    lines = home.run("list").stdout.splitlines()
    assert lines[0].split() == ["name", "size", "path"]
    assert lines[-1].split() == ["key2/m.gguf", "8", "bytes", str(home.url("2") / "m.gguf")]


def test_list_of_an_empty_cache_tells_how_to_fetch(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["list"], env={"FEWBIT_CACHE": str(tmp_path / "none")})
    assert len(result.stdout.splitlines()) == 1 + len(builtin())
    assert "not fetched yet: fewbit pull smollm2" in result.stdout


def test_paths_are_whole_on_a_terminal(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    assert str(home.url("2") / "m.gguf") in home.run("list").stdout


def test_rm_by_name(home: Home) -> None:
    result = home.run("rm", "key1/m.gguf", "hf:org/repo:m-Q8_0.gguf")
    assert result.exit_code == 0, result.output
    assert [line.split(",")[0] for line in result.stdout.splitlines()] == [
        "removed key1/m.gguf",
        "removed hf:org/repo:m-Q8_0.gguf",
    ]
    assert [row["name"] for row in home.listed()] == ["m.gguf"]
    assert not home.url("1").exists()
    assert not home.blob.exists()
    assert not list((home.cache / "hf").iterdir())


def test_rm_by_path(home: Home) -> None:
    path = home.url("2") / "m.gguf"
    assert json.loads(home.run("rm", str(path), "--json").stdout) == [
        {"name": "key2/m.gguf", "bytes": 8, "path": str(path)}
    ]
    assert not path.exists()


def test_rm_keeps_what_another_revision_uses(home: Home) -> None:
    other = home.snapshot.parent / "def" / "m-Q8_0.gguf"
    other.parent.mkdir()
    other.symlink_to(home.blob)
    assert home.run("rm", "hf:org/repo:m-Q8_0.gguf").exit_code == 0
    assert other.is_file()


def test_rm_of_all_parts(home: Home) -> None:
    for i in (1, 2):
        (home.url("1") / f"s-0000{i}-of-00002.gguf").write_bytes(b"GGUF")
    assert home.run("rm", "s-00001-of-00002.gguf").exit_code == 0
    assert sorted(path.name for path in home.url("1").iterdir() if path.suffix == ".gguf") == ["m.gguf"]


def test_rm_leaves_files_of_others_alone(home: Home, tiny: str) -> None:
    result = home.run("rm", tiny)
    assert result.exit_code == 1
    assert "fewbit did not fetch this file; remove it with `rm`" in result.stderr
    assert Path(tiny).exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nope", "there is no such model; there are: hf:org/repo:m-Q8_0.gguf, key1/m.gguf, key2/m.gguf"),
        ("m.gguf", "several models are called that; name one: key1/m.gguf, key2/m.gguf"),
        ("smollm2", "there is no such model"),
        ("", "there is no such model"),
    ],
)
def test_rm_of_what_is_not_there_removes_nothing(home: Home, name: str, message: str) -> None:
    before = home.listed()
    result = home.run("rm", "key1/m.gguf", name)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert home.listed() == before


def test_inspect_of_a_path_and_of_a_name(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home.snapshot / "m-Q8_0.gguf"
    asked = []

    def find(model: str, **_: object) -> Path:
        asked.append(model)
        return path

    expected = json.loads(home.run("inspect", str(path), "--json").stdout)
    monkeypatch.setattr("fewbit.files.hub.find", find)
    for name in ("smollm2", "hf:org/repo"):
        assert json.loads(home.run("inspect", name, "--json").stdout) == expected
    assert asked == ["smollm2", "hf:org/repo"]


def test_what_was_quantized_is_listed_and_removed(home: Home) -> None:
    folder = str(Path(__file__).parents[1] / "zoo" / "llama" / "hf")
    first = home.run("run", folder, "hi", "--format", "q8_0", "--max-tokens", "2", "--seed", "1")
    assert first.exit_code == 0, first.output
    (made,) = [row for row in home.listed() if "cache/quantized" in row["path"]]
    assert made["name"] == "hf-q8_0.gguf"
    assert home.run("run", made["path"], "hi", "--max-tokens", "2", "--seed", "1").stdout == first.stdout
    assert home.run("rm", "hf-q8_0.gguf").exit_code == 0
    assert not Path(made["path"]).parent.exists()
    assert home.run("run", folder, "hi", "--format", "q8_0", "--no-keep", "--max-tokens", "2").exit_code == 0
    assert not [row for row in home.listed() if "cache/quantized" in row["path"]]


def test_what_was_quantized_stays_without_keep(home: Home) -> None:
    folder = str(Path(__file__).parents[1] / "zoo" / "llama" / "hf")
    options = ["--format", "q8_0", "--max-tokens", "2", "--seed", "1"]
    first = home.run("run", folder, "hi", *options)
    second = home.run("run", folder, "hi", *options, "--no-keep")
    assert (second.exit_code, second.stdout) == (first.exit_code, first.stdout) == (0, first.stdout)
    assert [row["name"] for row in home.listed() if "cache/quantized" in row["path"]] == ["hf-q8_0.gguf"]


def test_one_line_says_what_fell_back(home: Home) -> None:
    folder = str(Path(__file__).parents[1] / "zoo" / "llama" / "hf")
    result = home.run("run", folder, "hi", "--format", "q4_k_m", "--max-tokens", "2")
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stderr.splitlines() if "fall back" in line]
    assert line.startswith("fewbit: q4_k_m: ")
    assert line.endswith(" bits per weight")


def test_a_format_that_there_is_not(home: Home) -> None:
    folder = str(Path(__file__).parents[1] / "zoo" / "llama" / "hf")
    result = home.run("run", folder, "hi", "--format", "q9")
    assert result.exit_code == 1
    assert "there is no format 'q9' to quantize a model to; there are: " in result.stderr


def test_a_checkpoint_of_a_repository_has_its_name(home: Home) -> None:
    for name in ("config.json", "model.safetensors"):
        (home.snapshot / name).write_bytes(b"{}")
    files = [[str(home.snapshot / name), 2] for name in ("config.json", "model.safetensors")]
    (home.cache / "hf" / "cccc.json").write_text(json.dumps({"files": files}))
    (row,) = [row for row in home.listed() if row["name"] == "hf:org/repo"]
    assert row["bytes"] == 4
    assert len(row["files"]) == 2

"""Where models come from: paths, names, and the cache. What is fetched: test_hub_url.py, test_hub_fetched.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import DtypeError, FewbitError, MissingError, PathError
from fewbit.files import hub
from fewbit.files.hub import folder, names, web

MODEL = b"GGUF" + bytes(100)


pytestmark = pytest.mark.usefixtures("cache")


# Paths


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(MODEL)
    assert hub.find(path) == hub.find(str(path)) == path


def test_a_file_in_the_current_and_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").write_bytes(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.find("model") == Path("model")
    assert hub.find("~/model") == tmp_path / "model"


def test_a_file_that_is_not_there_and_one_nearly_called_so(tmp_path: Path) -> None:
    (tmp_path / "SmolLM2-135M-Q4_0.gguf").write_bytes(MODEL)
    with pytest.raises(PathError, match=r"no such file; did you mean 'SmolLM2-135M-Q4_0.gguf'\?"):
        hub.find(tmp_path / "smollm2-135m-q4_1.gguf")
    with pytest.raises(PathError, match=r"no such file; the folder has: SmolLM2-135M-Q4_0.gguf"):
        hub.find(tmp_path / "x")
    with pytest.raises(PathError, match=r"no such file, and no folder '.*nowhere'"):
        hub.find(str(tmp_path / "nowhere" / "x.gguf"))


def test_a_folder_with_one_model(tmp_path: Path) -> None:
    for name in ("a.gguf", "mmproj-a-F16.gguf", "imatrix.gguf", "README.md"):
        (tmp_path / name).write_bytes(MODEL)
    assert hub.find(tmp_path) == tmp_path / "a.gguf"


def test_a_folder_with_a_split_model(tmp_path: Path) -> None:
    parts = names.part_names("a-00001-of-00003.gguf")
    for name in parts:
        (tmp_path / name).write_bytes(MODEL)
    assert hub.find(tmp_path) == tmp_path / parts[0]
    assert hub.find(tmp_path / parts[1]) == tmp_path / parts[1]
    (tmp_path / parts[2]).unlink()
    with pytest.raises(
        PathError, match=r"the model has 3 parts, but only these are there: a-00001-of-00003.gguf, a-00002"
    ):
        hub.find(tmp_path)
    with pytest.raises(PathError, match=r"the model has 3 parts, not found: a-00003-of-00003.gguf"):
        hub.find(tmp_path / parts[0])


def test_a_folder_with_none_or_several(tmp_path: Path) -> None:
    with pytest.raises(PathError, match="no GGUF or safetensors model"):
        hub.find(tmp_path)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(MODEL)
    with pytest.raises(PathError, match=r"2 GGUF models, name one of them: a\.gguf, b\.gguf"):
        hub.find(tmp_path)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(PathError, match="not a regular file"):
        hub.find(tmp_path / "pipe.gguf")
    (tmp_path / "broken.gguf").symlink_to(tmp_path / "gone")
    with pytest.raises(PathError, match="no such file"):
        hub.find(str(tmp_path / "broken.gguf"))
    (tmp_path / "a-00003-of-00002.gguf").write_bytes(MODEL)
    with pytest.raises(PathError, match="part 3 of 2"):
        hub.find(tmp_path / "a-00003-of-00002.gguf")
    for bad in ("a\0.gguf", "x" * 5000 + ".gguf", "x" * 5000 + "/y"):
        with pytest.raises(PathError):
            hub.find(bad)


@pytest.mark.parametrize("bad", [3, None, b"a.gguf", ["a"]])
def test_what_is_no_path(bad: Any) -> None:
    with pytest.raises(DtypeError, match="str or a Path"):
        hub.find(bad)


@pytest.mark.parametrize("bad", ["", "smolm2", "SmolLM2", "llama"])
def test_what_is_not_understood(bad: str) -> None:
    with pytest.raises(MissingError, match=r"hf:org/repo.* a name that `fewbit pull --list` shows"):
        hub.find(bad)
    if bad.startswith(("s", "S")):
        with pytest.raises(MissingError, match=r"did you mean .*'smollm2"):
            hub.find(bad)


@pytest.mark.parametrize("bad", ["ftp://host/a.gguf", "file:///etc/passwd", "data://,GGUF"])
def test_schemes_that_are_refused(bad: str) -> None:
    with pytest.raises(MissingError, match="must begin with https:// or http://"):
        hub.find(bad)


def test_a_repository_without_its_prefix_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PathError, match=r"a repository is written hf:org/repo\.GGUF"):
        hub.find("org/repo.GGUF")


@given(st.text(max_size=30))
def test_any_text_is_found_or_refused(text: str) -> None:
    try:
        found = hub.find(text, offline=True)
    except FewbitError:
        return
    assert found.exists()


# The names of files


def test_quantizations_in_names() -> None:
    found = {
        "Qwen2.5-0.5B-Instruct-Q4_K_M.gguf": "Q4_K_M",
        "qwen2.5-0.5b-instruct-q8_0.gguf": "Q8_0",
        "model.Q4_0.gguf": "Q4_0",
        "Qwen3-UD-Q4_K_XL.gguf": "Q4_K_XL",
        "m-Q4_0_4_4.gguf": "Q4_0_4_4",
        "IQ4_XS/m-IQ4_XS-00001-of-00002.gguf": "IQ4_XS",
        "gpt-oss-20b-mxfp4.gguf": "MXFP4",
        "m-f16-Q6_K.gguf": "Q6_K",
        "m-BF16.gguf": "BF16",
        "Qwen2.gguf": None,
    }
    assert {name: names.quantization(name) for name in found} == found


def test_the_usual_choice_and_a_named_one() -> None:
    files = ["m-Q2_K.gguf", "m-Q4_0.gguf", "m-Q8_0.gguf", "sub/m-F16.gguf", "mmproj-Q4_K_M.gguf", "README.md"]
    assert names.select(files, None, "r").name == "m-Q4_0.gguf"
    for selector in ("sub/m-F16.gguf", "m-F16.gguf", "m-F16", "f16", "FP16", "F16"):
        assert names.select(files, selector, "r").name == "sub/m-F16.gguf"
    assert names.select(["x-Q2_K.gguf"], None, "r").name == "x-Q2_K.gguf"
    assert names.select(["x-UD-Q4_K_XL.gguf", "x-Q8_0.gguf"], "ud-q4_k_xl", "r").name == "x-UD-Q4_K_XL.gguf"


def test_choices_that_fail_say_what_there_is() -> None:
    files = ["a-IQ1_S.gguf", "a-IQ2_S.gguf"]
    for selector in (None, "q4_0", "b-IQ1_S.gguf", "../a-IQ1_S.gguf"):
        with pytest.raises(MissingError, match=r"there are: a-IQ1_S\.gguf, a-IQ2_S\.gguf"):
            names.select(files, selector, "r")
    with pytest.raises(MissingError, match=r"several models match.*: a-Q4_0\.gguf, b-Q4_0\.gguf"):
        names.select(["a-Q4_0.gguf", "b-Q4_0.gguf"], None, "r")
    with pytest.raises(MissingError, match="no GGUF model"):
        names.select(["model.safetensors"], None, "r")
    with pytest.raises(MissingError, match="has 2 parts"):
        names.select(["a-00001-of-00002.gguf"], None, "r")
    many = [f"m{i}-Q4_0.gguf" for i in range(100)]
    with pytest.raises(MissingError, match="and 80 more"):
        names.select(many, None, "r")


@pytest.mark.parametrize(
    "bad", ["../a.gguf", "/a.gguf", "a/../../b.gguf", "a\\..\\b.gguf", "a\n.gguf", "./a.gguf", "a//b.gguf"]
)
def test_names_that_leave_a_folder_are_not_seen(bad: str) -> None:
    assert names.models([bad]) == []


@given(st.text(max_size=300))
def test_a_safe_name_stays_in_its_folder(name: str) -> None:
    safe = web.safe_name(name + ".gguf")
    assert Path("/cache", safe).resolve().parent == Path("/cache")
    assert safe.endswith(".gguf")
    assert safe.isascii()
    assert len(safe) <= 150


# The cache


def test_an_odd_value_of_offline_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWBIT_OFFLINE", "maybe")
    with pytest.raises(FewbitError, match="must be 0 or 1, got"):
        hub.find("smollm2")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert hub.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("FEWBIT_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.cache_folder() == tmp_path / ".cache" / "fewbit"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert hub.cache_folder() == tmp_path / ".cache" / "fewbit"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert hub.cache_folder() == tmp_path / "x" / "fewbit"


def test_notes_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "note"
    assert folder.read_note(path) == {}
    for text in ("", "[1]", "{", "\0", json.dumps("x"), "[" * 100_000):
        path.write_text(text)
        assert folder.read_note(path) == {}
    folder.write_note(path, {"bytes": 3})
    assert folder.read_note(path) == {"bytes": 3}

"""Where a prompt comes from, and whether an argument is a model or a prompt."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import click
import pytest

from fewbit.cli.model import DEFAULT, is_model, model_and_prompt
from fewbit.cli.prompt import read_prompt
from fewbit.errors import FewbitError, MissingError, PathError
from fewbit.llm import LLM

Stdin = Callable[[bytes], None]


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Stdin:
    def use(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    use(b"")
    return use


def test_an_argument_alone(stdin: Stdin) -> None:
    assert read_prompt("Why?", None) == "Why?"


def test_all_parts_in_order(stdin: Stdin, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("two\n")
    stdin(b"three\n\n")
    assert read_prompt("one", str(tmp_path / "p.txt")) == "one\n\ntwo\n\nthree\n"


@pytest.mark.parametrize(("argument", "file"), [("-", None), (None, "-"), (None, None), ("-", "-")])
def test_standard_input_alone(stdin: Stdin, argument: str | None, file: str | None) -> None:
    stdin("\ufeffWie heißt du?\r\n".encode())
    assert read_prompt(argument, file) == "Wie heißt du?"


@pytest.mark.parametrize("argument", ["", "  ", "\n", "-"])
def test_an_empty_prompt_is_wrong_usage(stdin: Stdin, argument: str) -> None:
    with pytest.raises(click.UsageError, match="the prompt is empty"):
        read_prompt(argument, None)


def test_an_empty_argument_beside_a_pipe(stdin: Stdin) -> None:
    stdin(b"piped")
    assert read_prompt("", None) == "piped"


@pytest.mark.parametrize("content", [b"", b"\n"])
def test_no_prompt_at_all_is_wrong_usage(stdin: Stdin, content: bytes) -> None:
    stdin(content)
    with pytest.raises(click.UsageError, match="there is no prompt"):
        read_prompt(None, None)


def test_what_is_no_text_is_refused(stdin: Stdin, tmp_path: Path) -> None:
    stdin(b"ab\xff")
    with pytest.raises(FewbitError, match=r"standard input: not UTF-8 text .byte 2"):
        read_prompt("-", None)
    stdin(b"")
    (tmp_path / "p").write_bytes(b"\xc3")
    with pytest.raises(FewbitError, match=r"not UTF-8 text .byte 0"):
        read_prompt(None, str(tmp_path / "p"))


@pytest.mark.parametrize("name", ["no-such-file", ".", "a\0b"])
def test_files_that_cannot_be_read(stdin: Stdin, tmp_path: Path, name: str) -> None:
    with pytest.raises(PathError, match="cannot be read"):
        read_prompt(None, str(tmp_path / name))


def test_a_pipe_is_read_beside_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    out, into = os.pipe()
    os.write(into, b"piped")
    os.close(into)
    with os.fdopen(out) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        assert read_prompt("one", None) == "one\n\npiped"


def test_a_device_is_not_read_beside_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/zero") as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        assert read_prompt("one", None) == "one"


def test_a_terminal_is_read_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        assert read_prompt("one", None) == "one"
        with pytest.raises(click.UsageError):
            read_prompt(None, None)
        os.write(ours, b"typed\n\x04")
        assert read_prompt("-", None) == "typed"
    os.close(ours)


def test_a_process_without_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert read_prompt("one", None) == "one"
    with pytest.raises(FewbitError, match="there is no standard input"):
        read_prompt("-", None)


def test_what_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").write_bytes(b"GGUF")
    (tmp_path / "folder").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.gguf").write_bytes(b"GGUF")
    names = ["weights", "missing.gguf", "hf:org/repo", "https://host/a", "HTTP://host/a", "smollm2", "./folder"]
    for model in [*names, ".", "..", "models", "a.safetensors"]:
        assert is_model(model), model
    for prompt in ("Why is the sky blue?", "folder", "", "smollm", "a\0b", "x" * 100_000, "hf", "-"):
        assert not is_model(prompt), prompt[:20]


def test_which_argument_is_what() -> None:
    assert model_and_prompt(None, ()) == (None, None)
    assert model_and_prompt("smollm2", ()) == ("smollm2", None)
    assert model_and_prompt("Hi", ("a.gguf",)) == ("Hi", "a.gguf")


@pytest.mark.parametrize(
    "prompt", ["Hi", "Hello!", "why?", "2+2", "2024", "e.g.", "well-known", "天空为什么是蓝色的", "C:", ""]
)
def test_a_word_can_be_a_prompt(prompt: str) -> None:
    assert model_and_prompt(prompt, ()) == (None, prompt)


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("llama3", "llama3.2 or llama3.1 or llama3.3"),
        ("qwen2.5:8b", "qwen2.5:7b or qwen2.5 or qwen3.5:0.8b"),
        ("Mistral", "mistral or mistral:7b or mistral-nemo"),
        ("org/repo", None),
        ("phi", "phi4 or phi3.5 or phi4:14b"),
        ("gpt-9", "gpt-oss"),
        ("llama4:latest", "llama3.2 or llama3.1 or llama3.3"),
    ],
)
def test_a_word_that_looks_like_a_model_is_no_prompt(
    word: str, near: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEWBIT_CACHE", str(tmp_path))
    with pytest.raises(MissingError) as info:
        model_and_prompt(word, ())
    hint = f"did you mean {near}? If" if near else "`fewbit pull --list` shows the names; if"
    assert str(info.value) == f"no model is called {word!r}; {hint} it is a prompt: fewbit run smollm2 {word}"


def test_models_that_may_have_been_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEWBIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "Llama-3.2-1B-Q4_K_M.gguf").write_bytes(b"GGUF")
    for word, name in {"smollm": "smollm2", "llama-3.2-1b": "Llama-3.2-1B-Q4_K_M.gguf"}.items():
        with pytest.raises(MissingError, match=rf"did you mean .*{name}.*\? If it is a prompt: fewbit run smollm2"):
            model_and_prompt(word, ())
    with pytest.raises(MissingError, match=r"did you mean llama3.2 or llama3.1 or llama3.3"):
        model_and_prompt("llam", ())
    assert model_and_prompt("Lla", ()) == (None, "Lla")


def test_a_prompt_of_several_words_needs_quotes() -> None:
    with pytest.raises(click.UsageError, match='needs quotes: "why is the sky blue"'):
        model_and_prompt("why", ("is", "the", "sky", "blue"))
    with pytest.raises(click.UsageError, match='needs quotes: "why so"'):
        model_and_prompt("a.gguf", ("why", "so"))


def test_the_default_is_that_of_the_library() -> None:
    assert signature(LLM).parameters["model"].default == DEFAULT

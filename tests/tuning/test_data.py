"""Examples: what is learned of conversations and texts, and which lines are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fewbit as fb
from fewbit.tuning.data import ExampleReader

from ..cli.tiny import write_tiny

USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def reader(tmp_path: Path) -> ExampleReader:
    path = write_tiny(tmp_path / "model.gguf", template=CHATML)
    return ExampleReader(fb.Tokenizer.from_gguf(path), 64)


def learned(reader: ExampleReader, line: Any) -> str:
    example = reader.example(line)
    return reader.tokenizer.decode(
        [token for token, is_learned in zip(example.tokens, example.learned, strict=True) if is_learned]
    )


def test_of_a_conversation_the_answers_are_learned(reader: ExampleReader) -> None:
    assert learned(reader, {"messages": [USER, ANSWER]}) == "yo</>"
    other = {"role": "assistant", "content": "no"}
    assert learned(reader, {"messages": [USER, ANSWER, USER, other]}) == "yo</>no</>"


def test_of_a_completion_what_follows_the_prompt_is_learned(reader: ExampleReader) -> None:
    assert learned(reader, {"prompt": "ab", "completion": "cd"}) == "cd"
    assert learned(reader, {"text": "abcd"}) == "abcd"


def test_prompts_can_be_learned(reader: ExampleReader) -> None:
    reader.on_prompt = True
    assert learned(reader, {"messages": [USER, ANSWER]}) == "<user>hi</><assistant>yo</>"


def test_long_examples_are_cut(reader: ExampleReader) -> None:
    assert len(reader.example({"text": "x" * 100}).tokens) == 64
    with pytest.raises(fb.FileError, match="nothing to learn in its first 64 tokens"):
        reader.example({"prompt": "x" * 100, "completion": "y"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: it is not JSON"),
        ("[" * 100_000, "line 2: it is not JSON"),
        ("3", "line 2: an example is"),
        ('{"text": 5}', "line 2: an example is"),
        ('{"messages": [3]}', "line 2: a message is"),
        ('{"messages": []}', "line 2"),
        ('{"messages": [{"role": "user", "content": "hi"}]}', "no message of the assistant"),
        ('{"prompt": "x", "completion": ""}', "line 2: the example has nothing to learn"),
    ],
)
def test_wrong_lines(reader: ExampleReader, tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "ok"}\n' + line + "\n")
    with pytest.raises(fb.FileError, match=message):
        reader.read(path)


def test_files_that_cannot_be_read(reader: ExampleReader, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    with pytest.raises(fb.PathError, match="cannot be read"):
        reader.read(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(fb.FileError, match="UTF-8"):
        reader.read(path)
    path.write_text("\n")
    with pytest.raises(fb.FileError, match="no examples"):
        reader.read(path)
    path.write_text(json.dumps({"messages": [USER, ANSWER]}) + "\n\n" + json.dumps({"text": "ab"}))
    assert len(reader.read(path)) == 2

"""Files and arguments that are not what GGUF functions take: one sentence that helps."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.errors import FileError
from fewbit.files import hub
from fewbit.files.gguf import Deferred

from ..ops.test_wrong_arguments import WRONG

TENSORS = {"w": np.ones((4, 64), np.float32), "v": fb.quantize(np.ones((4, 64), np.float32), "q8_0")}


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


NOT_GGUF = {
    "model.safetensors": (safetensors(), r"a safetensors file.*GGUF.*convert it"),
    "other.bin": (safetensors(), r"a safetensors file.*GGUF.*convert it"),
    "pytorch_model.bin": (b"PK\x03\x04" + bytes(100), r"a PyTorch checkpoint or a zip archive.*convert it"),
    "pickle.pt": (b"\x80\x02" + bytes(100), r"a pickle.*convert it"),
    "old.bin": (b"tjgg" + bytes(100), r"older than GGUF.*convert it"),
    "page.gguf": (b"<!DOCTYPE html>" + bytes(100), r"a web page.*download the file itself"),
    "config.json": (b'{"model_type": "llama"}', r"JSON.*give the GGUF file"),
    "pointer.gguf": (b"version https://git-lfs.github.com/spec/v1\n", r"Git LFS pointer.*git lfs pull"),
    "wheel.gz": (b"\x1f\x8b" + bytes(100), r"compressed.*unpack it"),
    "zeros.gguf": (bytes(100), r"begins with zeros.*download it again"),
    "noise.gguf": (b"\x93\x12\x11\xff" + bytes(100), r"not a GGUF file .it starts with b'\\x93"),
}


@pytest.mark.parametrize("name", NOT_GGUF)
def test_files_of_another_kind(tmp_path: Path, name: str) -> None:
    data, words = NOT_GGUF[name]
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(FileError, match=rf"{name}: .*{words}") as caught:
        fb.read_gguf(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count(". ") == 0


def test_a_file_that_was_cut_short_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    fb.write_gguf(path, {"general.name": "a", "tokenizer.ggml.tokens": ["a"] * 100}, TENSORS)
    data = path.read_bytes()
    for size in (5, 20, 50, 300, 1000, len(data) - 200, len(data) - 20):
        path.write_bytes(data[:size])
        with pytest.raises(FileError, match=r"a.gguf: the file is truncated or damaged: .*; download it again"):
            fb.read_gguf(path)
    with pytest.raises(
        FileError, match=f"tensor 'v' of 272 bytes reaches past the {len(data) - 20:,} bytes of the file"
    ):
        fb.read_gguf(path)


@pytest.mark.parametrize("function", [fb.read_gguf, hub.find])
def test_wrong_paths(function: Any) -> None:
    for wrong in WRONG:
        with pytest.raises(fb.FewbitError) as caught:
            function(wrong)
        if not isinstance(wrong, str | bytes):
            assert isinstance(caught.value, ValueError | TypeError)


def replaced(argument: str, wrong: Any) -> dict[str, Any]:
    if argument == "name":
        return {"tensors": {wrong: np.ones(3)}}
    return {
        "value": {"metadata": {"a": wrong}},
        "tensor": {"tensors": {"w": wrong}},
        "made": {"tensors": {"w": Deferred((4, 64), "q8_0", lambda: wrong)}},
    }.get(argument, {argument: wrong})


@pytest.mark.parametrize("argument", ["path", "metadata", "tensors", "alignment", "value", "tensor", "made", "name"])
def test_wrong_arguments_of_write_gguf(tmp_path: Path, argument: str) -> None:
    given = {"path": tmp_path / "a.gguf", "metadata": {"a": 1}, "tensors": TENSORS, "alignment": 32}
    for wrong in WRONG:
        try:
            changed = replaced(argument, wrong)
        except TypeError:  # no key of a dictionary
            continue
        if argument == "path" and isinstance(wrong, str | bytes):
            continue
        try:
            fb.write_gguf(**(given | changed))  # type: ignore[arg-type]
        except fb.FewbitError as error:
            assert isinstance(error, ValueError | TypeError), repr(error)  # noqa: PT017
        except Exception as error:
            pytest.fail(f"{argument}={wrong!r}: {error!r}")
    assert [path.name for path in tmp_path.iterdir() if path.name != "a.gguf"] == []


def test_a_folder_of_safetensors_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors())
    with pytest.raises(fb.FewbitError, match=r"its safetensors files need config.json beside them"):
        hub.find(tmp_path)

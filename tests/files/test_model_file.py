"""Model files: what loading needs of them, whatever kind they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.errors import FileError, PathError
from fewbit.files.model import ModelFile
from fewbit.models import open_model

METADATA = {
    "general.architecture": "llama",
    "general.name": "small",
    "llama.block_count": 2,
    "llama.rope.freq_base": 1e4,
    "llamas.block_count": 3,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.chat_template": "{{ messages }}",
}


def opened(folder: Path, metadata: dict[str, Any]) -> ModelFile:
    fb.write_gguf(folder / "model.gguf", metadata, {"w": np.ones((2, 32), np.float32)})
    return open_model(folder / "model.gguf")


def test_gguf(tmp_path: Path) -> None:
    file = opened(tmp_path, METADATA)
    assert file.path == tmp_path / "model.gguf"
    assert file.architecture == "llama"
    assert file.config == {"block_count": 2, "rope.freq_base": 1e4}
    assert list(file.tensors) == ["w"]
    assert file.tensors["w"].shape == (2, 32)
    assert file.file_bytes == file.path.stat().st_size
    assert file.template() == "{{ messages }}"
    assert dict(file.tokenizer()) == {key: value for key, value in METADATA.items() if not key.startswith("llama")}
    w = file.tensors["w"]
    file.forget("w")
    assert w.dequantize().sum() == 64
    file.close()
    with pytest.raises(PathError, match="the file is closed"):
        file.tensors["w"]


@pytest.mark.parametrize("name", [None, 3, ["llama"]])
def test_no_architecture(tmp_path: Path, name: Any) -> None:
    file = opened(tmp_path, {} if name is None else {"general.architecture": name})
    with pytest.raises(FileError, match=r"general\.architecture must be a name, it is"):
        file.config.get("block_count")


def test_no_template(tmp_path: Path) -> None:
    assert opened(tmp_path, {"general.architecture": "llama"}).template() is None


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(PathError, match="cannot be opened"):
        open_model(tmp_path / "model.gguf")

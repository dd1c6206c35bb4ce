"""Hessians in GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.errors import FileError
from fewbit.files.hessian import write_hessians


def test_matrices_share_arrays(tmp_path: Path) -> None:
    square, stack = np.eye(3, dtype=np.float32), np.ones((2, 4, 4), np.float32)
    write_hessians(tmp_path / "a.gguf", {"q": square, "k": square, "up": stack, "v": square.copy()})
    found = fb.read_hessians(tmp_path / "a.gguf")
    assert list(found) == ["q", "k", "up", "v"]
    assert len(found.file.tensors) == 3
    np.testing.assert_array_equal(found["k"], square)
    np.testing.assert_array_equal(found["up"], stack)
    assert len(found) == 4


@pytest.mark.parametrize(
    ("metadata", "tensor", "message"),
    [
        ({"general.type": "model"}, np.eye(2, dtype=np.float32), "no Hessians"),
        ({"hessian.names": 3}, np.eye(2, dtype=np.float32), "no Hessians"),
        ({"hessian.tensors": ["other"]}, np.eye(2, dtype=np.float32), "is missing, or not a square"),
        ({}, np.eye(2, dtype=np.float16), "not a square of f32"),
        ({}, np.ones((2, 3), np.float32), "not a square of f32"),
        ({}, np.full((2, 2), np.nan, np.float32), "not finite"),
    ],
)
def test_wrong_files(tmp_path: Path, metadata: dict[str, Any], tensor: Any, message: str) -> None:
    facts = {"general.type": "hessian", "hessian.names": ["w"], "hessian.tensors": ["w"], **metadata}
    fb.write_gguf(tmp_path / "a.gguf", facts, {"w": tensor})
    with pytest.raises(FileError, match=message):
        fb.read_hessians(tmp_path / "a.gguf")["w"]

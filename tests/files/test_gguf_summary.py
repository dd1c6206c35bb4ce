from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.files.gguf import read_gguf, summary, write_gguf
from fewbit.tensor import QuantTensor


def test_summary(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {
        "general.name": "m",
        "short": [1, 2],
        "tenths": [0.1, 1e-5],
        "long": np.arange(100, dtype=np.int32),
        "words": [f"w{i}" for i in range(20)],
        "odd": float("nan"),
        "odds": [float("inf"), 0.5],
        "nested": [[1], ["a"]],
        "flags": [True] * 17,
    }
    tensors = {
        "a": np.ones(4, np.float32),
        "b": QuantTensor.from_bytes(bytes(288), (2, 256), "q4_k"),
        "c": np.ones((2, 2), np.float32),
    }
    write_gguf(tmp_path / "m.gguf", metadata, tensors)
    found = summary(read_gguf(tmp_path / "m.gguf"))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["metadata"] == {
        "general.name": "m",
        "short": [1, 2],
        "tenths": [0.1, 1e-5],
        "long": {"type": "int32", "count": 100, "first": [0, 1, 2, 3, 4]},
        "words": {"type": "string", "count": 20, "first": ["w0", "w1", "w2", "w3", "w4"]},
        "odd": "nan",
        "odds": ["inf", 0.5],
        "nested": [[1], ["a"]],
        "flags": {"type": "bool", "count": 17, "first": [True] * 5},
    }
    assert found["formats"] == [
        {"format": "q4_k", "tensors": 1, "values": 512, "bytes": 288, "bits_per_weight": 4.5},
        {"format": "f32", "tensors": 2, "values": 8, "bytes": 32, "bits_per_weight": 32.0},
    ]
    assert found["total"] == {"tensors": 3, "values": 520, "bytes": 320, "bits_per_weight": 8 * 320 / 520}
    assert found["tensors"][1] | {"offset": 0} == {
        "name": "b", "format": "q4_k", "shape": [2, 256], "values": 512, "bytes": 288, "file": 0, "offset": 0,
    }  # fmt: skip
    assert found["files"] == [str(tmp_path / "m.gguf")]


def test_summary_without_tensors(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", {}, {"a": np.ones(4, np.float32)})
    found = summary(read_gguf(tmp_path / "m.gguf"), tensors=False)
    assert "tensors" not in found
    assert found["total"]["tensors"] == 1


def test_summary_of_nothing(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", {}, {})
    assert summary(read_gguf(tmp_path / "m.gguf"))["total"]["bits_per_weight"] == 0

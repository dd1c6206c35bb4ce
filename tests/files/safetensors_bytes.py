"""Safetensors files made by hand, sound and damaged."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

NAMES = {"float32": "F32", "float16": "F16", "uint16": "BF16", "uint8": "U8", "float64": "F64", "int8": "I8"}


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def file_of(header: Any, data: bytes = b"", size: int | None = None) -> bytes:
    """A file with this header, JSON or bytes; `size` is what it says of its header's length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


def packed(tensors: dict[str, np.ndarray[Any, Any]]) -> bytes:
    """A sound file; arrays of uint16 are bf16."""
    header, data = {}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = entry(NAMES[array.dtype.name], list(array.shape), len(data), len(data) + len(raw))
        data += raw
    text = json.dumps(header)
    return file_of((text + " " * (-len(text) % 8)).encode(), data)

"""What a GGUF file holds, as plain data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..tensors import tensor_sizes
from .reader import GGUF
from .values import StringArray

WHOLE = 16  # arrays of up to so many entries are given in full
FIRST = 5  # of longer ones, the first entries


def summary(gguf: GGUF, *, tensors: bool = True) -> dict[str, Any]:
    """Files, metadata, tensors and sizes by format, ready for JSON. Long arrays are given by their first entries.

    >>> import tempfile
    >>> from fewbit.files.gguf import read_gguf, write_gguf
    >>> folder = tempfile.TemporaryDirectory()
    >>> write_gguf(f"{folder.name}/a.gguf", {"general.name": "a"}, {"w": np.ones((2, 32), np.float16)})
    >>> summary(read_gguf(f"{folder.name}/a.gguf"))["formats"]
    [{'format': 'f16', 'tensors': 1, 'values': 64, 'bytes': 128, 'bits_per_weight': 16.0}]
    >>> folder.cleanup()
    """
    infos = list(gguf.infos.values())
    facts = {
        "files": [str(path) for path in gguf.paths],
        "architecture": gguf.metadata.get("general.architecture"),
        "parameters": sum(math.prod(info.shape) for info in infos),
        "version": gguf.version,
        "alignment": gguf.alignment,
        "file_bytes": gguf.file_bytes,
        "metadata": {key: _brief(value) for key, value in gguf.typed_metadata.items()},
    }
    return facts | tensor_sizes(infos, lambda info: info.format.name, tensors=tensors)


def _brief(value: Any) -> Any:
    if not isinstance(value, StringArray | np.ndarray | tuple):
        return _plain(value)
    if len(value) > WHOLE:
        return {"type": _element_type(value), "count": len(value), "first": _brief(value[:FIRST])}
    return [_brief(v) for v in value]


def _element_type(value: StringArray | np.ndarray[Any, Any] | tuple[Any, ...]) -> str:
    if isinstance(value, np.ndarray):
        return str(value.dtype.name)
    return "string" if isinstance(value, StringArray) else "array"


def _plain(value: Any) -> Any:
    """A float32 in its shortest decimal form; infinity and NaN, which JSON does not have, as strings."""
    plain = float(str(value)) if isinstance(value, np.float32) else value
    plain = plain.item() if isinstance(plain, np.generic) else plain
    return str(plain) if isinstance(plain, float) and not math.isfinite(plain) else plain

"""What a GGUF file holds, as plain data."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from .header import TensorInfo
from .reader import GGUF
from .values import StringArray

WHOLE = 16  # arrays of so many entries are given whole
FIRST = 5  # of longer ones so many


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
    out = {
        "files": [str(path) for path in gguf.paths],
        "architecture": gguf.metadata.get("general.architecture"),
        "parameters": sum(math.prod(info.shape) for info in infos),
        "version": gguf.version,
        "alignment": gguf.alignment,
        "file_bytes": gguf.file_bytes,
        "metadata": {key: _brief(value) for key, value in gguf.typed_metadata.items()},
        "formats": _by_format(infos),
        "total": _sizes(infos),
    }
    return out | {"tensors": [_tensor(info) for info in infos]} if tensors else out


def _tensor(info: TensorInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "format": info.format.name,
        "shape": list(info.shape),
        "values": math.prod(info.shape),
        "bytes": info.nbytes,
        "file": info.part,
        "offset": info.offset,
    }


def _by_format(infos: list[TensorInfo]) -> list[dict[str, Any]]:
    groups: defaultdict[str, list[TensorInfo]] = defaultdict(list)
    for info in infos:
        groups[info.format.name].append(info)
    rows = [{"format": name, **_sizes(members)} for name, members in groups.items()]
    return sorted(rows, key=lambda row: -int(row["bytes"]))


def _sizes(infos: Iterable[TensorInfo]) -> dict[str, Any]:
    infos = list(infos)
    values = sum(math.prod(info.shape) for info in infos)
    size = sum(info.nbytes for info in infos)
    bits = 8 * size / values if values else 0.0
    return {"tensors": len(infos), "values": values, "bytes": size, "bits_per_weight": bits}


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
    """A float32 in as few digits as tell it from its neighbours; infinity and NaN, which JSON has not, as words."""
    plain = float(str(value)) if isinstance(value, np.float32) else value
    plain = plain.item() if isinstance(plain, np.generic) else plain
    return str(plain) if isinstance(plain, float) and not math.isfinite(plain) else plain

"""Write GGUF files: header first, then one tensor after another."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedWriter
from typing import Any

import numpy as np
import numpy.typing as npt

from ...arrays import to_array, to_bytes_view
from ...errors import DataError, DtypeError, FewbitError, FormatError, PathError, ShapeError
from ...formats import Format, get
from ...tensor import QuantTensor
from ...validation import to_integer, to_path
from ..shown import short
from .encode import encode_text, encode_value, u32, u64
from .values import DEFAULT_ALIGNMENT, LENGTH_BYTES, MAGIC, MAX_DIMS, MAX_KEY_BYTES

VERSION = 3
MAX_NAME_BYTES = 63  # other readers keep tensor names in 64 bytes
CHUNK_BYTES = 1 << 24

FORMAT_NAMES = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
}  # fmt: skip


@dataclass(frozen=True)
class Deferred:
    """A tensor whose bytes are made only when it is written.

    Args:
        shape: Its shape.
        format: Its format.
        make: Called when the tensor is written. Returns a `QuantTensor` or an array.

    >>> Deferred((4, 32), "q8_0", lambda: QuantTensor.from_bytes(bytes(136), (4, 32), "q8_0")).shape
    (4, 32)
    """

    shape: tuple[int, ...]
    format: str | Format
    make: Callable[[], Any]


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Any],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
) -> None:
    """Write a GGUF file of version 3. It appears under its name when it is complete.

    A whole number in the metadata becomes the first of UINT32, INT32, UINT64 and INT64 that holds it, a float FLOAT32;
    in lists they become INT32 or INT64, and FLOAT32. A NumPy scalar or array keeps its type: `np.uint64(3)`.

    Args:
        path: The file.
        metadata: Values by key.
        tensors: A `QuantTensor`, an array or a `Deferred` for each name. They are written one at a time, in this order.
        alignment: Alignment of the tensors in bytes, a power of two. Replaces `general.alignment`.

    >>> import tempfile
    >>> from fewbit.files.gguf import read_gguf
    >>> folder = tempfile.TemporaryDirectory()
    >>> write_gguf(f"{folder.name}/a.gguf", {"a.count": 3, "a.scores": [0.5, 1]}, {"w": np.zeros((2, 4), np.float16)})
    >>> dict(read_gguf(f"{folder.name}/a.gguf").metadata)
    {'a.count': 3, 'a.scores': array([0.5, 1. ], dtype=float32)}
    >>> folder.cleanup()
    """
    size = to_integer(alignment, "alignment")
    if not 1 <= size < 1 << 32 or size.bit_count() != 1:
        raise DataError(f"alignment must be a power of two below 2^32, got {alignment}")
    path = to_path(path)
    for what, given in (("metadata", metadata), ("tensors", tensors)):
        if not isinstance(given, Mapping):
            raise DtypeError(f"{what} must be a dictionary, not {type(given).__name__}")
    header, specs = encode_header(metadata, tensors, size)
    hidden = path.parent / f".fewbit-{secrets.token_hex(8)}"
    try:
        with open(hidden, "xb") as file:
            _write(file, header, specs, tensors, size)
        os.replace(hidden, path)
    except FewbitError:
        raise
    except OSError as error:
        raise PathError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        hidden.unlink(missing_ok=True)


@dataclass(frozen=True)
class TensorSpec:
    """What is known of a tensor before it is written."""

    shape: tuple[int, ...]
    format: Format

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) // self.format.block * self.format.block_bytes

    def __str__(self) -> str:
        return f"{self.format} of {'x'.join(map(str, self.shape))}"


def _write(
    file: BufferedWriter, header: bytes, specs: dict[str, TensorSpec], tensors: Mapping[str, Any], alignment: int
) -> None:
    file.write(header)
    for name, spec in specs.items():
        _pad(file, alignment)
        for chunk in _chunks(name, spec, tensors[name]):
            file.write(chunk)
    _pad(file, alignment)


def _pad(file: BufferedWriter, alignment: int) -> None:
    end = -(-file.tell() // alignment) * alignment
    file.truncate(end)
    file.seek(end)


def _chunks(name: str, spec: TensorSpec, tensor: Any) -> Iterator[memoryview]:
    if isinstance(tensor, Deferred):
        tensor = tensor.make()
        made = _spec(name, tensor)
        if made != spec:
            raise ShapeError(f"tensor {short(name)} should be {spec}, got {made}")
    data = tensor.data if isinstance(tensor, QuantTensor) else _little(tensor)
    for at in range(0, data.size, CHUNK_BYTES):
        yield data[at : at + CHUNK_BYTES].data


def _little(tensor: Any) -> npt.NDArray[np.uint8]:
    array = to_array(tensor, "a tensor")
    return to_bytes_view(np.ascontiguousarray(array, array.dtype.newbyteorder("<")))


def encode_header(
    metadata: Mapping[str, Any], tensors: Mapping[str, Any], alignment: int = DEFAULT_ALIGNMENT
) -> tuple[bytes, dict[str, TensorSpec]]:
    """The header of a file, and what it says of each tensor: a `TensorSpec`, or one of what `write_gguf` takes."""
    pairs = {key: value for key, value in metadata.items() if key != "general.alignment"}
    if alignment != DEFAULT_ALIGNMENT:
        pairs["general.alignment"] = np.uint32(alignment)
    out = bytearray(MAGIC + u32(VERSION) + u64(len(tensors)) + u64(len(pairs)))
    for key, value in pairs.items():
        kind, coded = encode_value(value, f"metadata key {short(key)}")
        out += _name(key, MAX_KEY_BYTES) + u32(kind) + coded
    specs = {name: _spec(name, tensor) for name, tensor in tensors.items()}
    at = 0
    for name, spec in specs.items():
        dims = b"".join(u64(n) for n in reversed(spec.shape))
        assert spec.format.gguf is not None
        out += _name(name, MAX_NAME_BYTES) + u32(len(spec.shape)) + dims + u32(spec.format.gguf) + u64(at)
        at += -(-spec.nbytes // alignment) * alignment
    return bytes(out), specs


def _spec(name: str, tensor: Any) -> TensorSpec:
    what = f"tensor {short(name)}"
    if isinstance(tensor, QuantTensor | Deferred | TensorSpec):
        fmt, shape = get(tensor.format), tuple(to_integer(n, f"a size of {what}") for n in tensor.shape)
    else:
        array = to_array(tensor, what)
        if array.dtype.name not in FORMAT_NAMES:
            raise DtypeError(f"{what}: arrays of {', '.join(FORMAT_NAMES)} can be written, not of {array.dtype}")
        fmt, shape = get(FORMAT_NAMES[array.dtype.name]), array.shape
    if fmt.gguf is None:
        raise FormatError(f"{what}: GGUF files have no format {fmt}")
    if not 1 <= len(shape) <= MAX_DIMS or min(shape) < 1:
        raise ShapeError(f"{what}: 1 to {MAX_DIMS} dimensions, each of at least 1, can be written, not {shape}")
    if shape[-1] % fmt.block:
        raise ShapeError(f"{what}: rows of {fmt} hold a multiple of {fmt.block} values, not {shape[-1]}")
    return TensorSpec(shape, fmt)


def _name(name: Any, limit: int) -> bytes:
    if not isinstance(name, str):
        raise DtypeError(f"names must be str, not {type(name).__name__}: {short(name)}")
    coded = encode_text(name, "a name")
    if len(coded) - LENGTH_BYTES > limit:
        raise DataError(f"the name {short(name)} has {len(coded) - LENGTH_BYTES} bytes, at most {limit} are allowed")
    return coded

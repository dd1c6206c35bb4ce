"""Safetensors files, read over a memory map: one file, or a folder of them with an index.

A file is the length of its header (u64, little endian), the header as JSON, and the tensors, which follow each other
without a gap. Nothing in it is ever run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any

from ..errors import FileError, PathError
from ..formats import get
from ..tensor import QuantTensor
from ..validation import to_path
from .maps import FileMap, open_map
from .shown import first_names, short
from .tensors import MappedTensors

MAX_HEADER_BYTES = 100_000_000
MAX_DIMS = 16
INDEX_NAME, FILE_NAME = "model.safetensors.index.json", "model.safetensors"

# Bits of a value; those with a format can be used as weights.
DTYPES = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
FORMATS = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F64": "f64", "I8": "i8", "I16": "i16", "I32": "i32",
           "I64": "i64"}  # fmt: skip

_SHARD_NAME = re.compile(r"[^/\\\x00-\x1f]+\.safetensors")
_OTHER_KINDS = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"),
    (b"<", "a web page; download the file itself, or give hf:org/repo"),
    (b"PK\x03\x04", "a PyTorch checkpoint; save the model as safetensors"),
    (b"\x80\x02", "a pickle, which could run code; save the model as safetensors"),
)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Dtype, shape and place of a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int  # in the file
    nbytes: int
    part: int = 0  # of several files


class Safetensors(MappedTensors[StoredTensor]):
    """The tensors of one safetensors file or several, by name.

    >>> import struct, tempfile
    >>> header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    >>> with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
    ...     _ = file.write(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1, 2))
    ...     file.flush()
    ...     read_safetensors(file.name)["w"].dequantize().tolist()
    [1.0, 2.0]
    """

    def __getitem__(self, name: str) -> QuantTensor:
        data, info = self.data(name), self.infos[name]
        if info.dtype not in FORMATS:
            raise FileError(
                f"{self.paths[info.part]}: tensor {short(name)} is {info.dtype}; weights may be {', '.join(FORMATS)}"
            )
        fmt = get(FORMATS[info.dtype])
        if info.offset % fmt.block_bytes:  # not aligned
            data = data.copy()
        return QuantTensor.from_bytes(data, info.shape or (1,), fmt)


def read_safetensors(path: Any) -> Safetensors:
    """Open a file, or the files of a folder: those that its index names, or its only one."""
    path = to_path(path)
    return _read_folder(path) if path.is_dir() else _joined([path])


def shard_names(index: Any, where: object) -> dict[str, str]:
    """Which file has which tensor, by the contents of an index; files are names in the same folder, nothing else.

    >>> shard_names({"weight_map": {"w": "a.safetensors"}}, "an index")
    {'w': 'a.safetensors'}
    """
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not names:
        raise FileError(f"{where}: an index needs a weight_map with the file of each tensor")
    for tensor, file in names.items():
        if not isinstance(file, str) or not _SHARD_NAME.fullmatch(file) or file.startswith("."):
            raise FileError(
                f"{where}: the index puts tensor {short(tensor)} in {short(file)}; "
                "files are named like model-00001-of-00002.safetensors and lie beside the index"
            )
    return names


def read_json(path: Path, limit: int = MAX_HEADER_BYTES) -> Any:
    """The contents of a JSON file, of a size that is sensible."""
    try:
        if not path.is_file():
            raise PathError(f"{path}: there is no such file")
        if path.stat().st_size > limit:
            raise FileError(f"{path}: the file has {path.stat().st_size:,} bytes, the limit is {limit:,}")
        data = path.read_bytes()
    except OSError as error:
        if isinstance(error, PathError):
            raise
        raise PathError(f"{path}: cannot be read: {error.strerror or error}") from None
    return parse_json(data, path)


def parse_json(data: bytes, where: object) -> Any:
    """JSON in which no name is given twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise FileError(f"{where}: {short(twice)} occurs twice")
        return found

    try:
        return json.loads(data.decode(), object_pairs_hook=unique)
    except FileError:
        raise
    except UnicodeDecodeError as error:
        raise FileError(f"{where}: byte {error.start} of the JSON is not UTF-8 text") from None
    except RecursionError:
        raise FileError(f"{where}: the JSON is nested too deeply") from None
    except ValueError as error:
        raise FileError(f"{where}: not valid JSON: {error}") from None


def _read_folder(folder: Path) -> Safetensors:
    index = folder / INDEX_NAME
    if not index.is_file():
        return _joined([_only_file(folder)])
    names = shard_names(read_json(index), index)
    files = sorted(set(names.values()))
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise PathError(f"{folder}: the index names files that are missing: {first_names(missing)}")
    joined = _joined([folder / name for name in files])
    _check_index(index, names, files, joined)
    return joined


def _only_file(folder: Path) -> Path:
    found = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if folder / FILE_NAME in found:
        return folder / FILE_NAME
    if len(found) == 1:
        return found[0]
    if found:
        raise PathError(f"{folder}: there are {len(found)} safetensors files and no {INDEX_NAME}; download it too")
    pickles = sorted(path.name for kind in ("*.bin", "*.pt", "*.pth") for path in folder.glob(kind))
    if pickles:
        raise PathError(
            f"{folder}: {pickles[0]} is a pickle, which could run code and is not supported; "
            "look for a safetensors or GGUF version of the model"
        )
    raise PathError(f"{folder}: there is no safetensors file in it")


def _check_index(index: Path, names: Mapping[str, str], files: list[str], found: Safetensors) -> None:
    for name, file in names.items():
        if name not in found.infos:
            raise FileError(f"{index}: tensor {short(name)} is in none of the files; download the model again")
        where = files[found.infos[name].part]
        if where != file:
            raise FileError(f"{index}: the index puts tensor {short(name)} in {file}, but it is in {where}")
    for name in found.infos:
        if name not in names:
            raise FileError(f"{index}: tensor {short(name)} is missing from the index; download it again")


def _joined(paths: list[Path]) -> Safetensors:
    maps: list[FileMap] = []
    infos: dict[str, StoredTensor] = {}
    for part, path in enumerate(paths):
        data = open_map(path)
        maps.append(data)
        for info in parse_header(data, path, part):
            if info.name in infos:
                other = paths[infos[info.name].part].name
                raise FileError(f"{path}: tensor {short(info.name)} is in {other} too")
            infos[info.name] = info
    return Safetensors(paths, maps, infos)


def parse_header(data: mmap | bytes, path: object, part: int = 0) -> list[StoredTensor]:
    """The tensors of a file, checked: each lies inside it, none overlaps another, and no byte is left over."""
    for magic, what in _OTHER_KINDS:
        if data[: len(magic)] == magic and data[8:9] != b"{":  # or it may be the length
            raise FileError(f"{path}: this is {what}")
    if len(data) < 8:
        raise FileError(f"{path}: a safetensors file has at least 8 bytes, this one has {len(data)}")
    size = int.from_bytes(data[:8], "little")
    if size > MAX_HEADER_BYTES:
        raise FileError(f"{path}: its header claims {size:,} bytes, the limit is {MAX_HEADER_BYTES:,}")
    if size > len(data) - 8:
        raise FileError(
            f"{path}: its header claims {size:,} bytes, but the file has {len(data):,}; the download may be incomplete"
        )
    if data[8:9] != b"{":
        raise FileError(f"{path}: not a safetensors file (its header starts with {data[8:9]!r}, expected b'{{')")
    header = parse_json(bytes(data[8 : 8 + size]), path)
    _check_metadata(header.pop("__metadata__", {}), path)
    start = 8 + size
    infos = [_info(name, value, start, part, path) for name, value in header.items()]
    _check_places(infos, start, len(data), path)
    return infos


def _check_metadata(values: Any, path: object) -> None:
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise FileError(f"{path}: __metadata__ must hold texts by name, it is {short(values)}")


def _info(name: str, value: Any, start: int, part: int, path: object) -> StoredTensor:
    what = f"{path}: tensor {short(name)}"
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise FileError(f"{what} needs dtype, shape and data_offsets, its entry is {short(value)}")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FileError(f"{what} has the unknown dtype {short(dtype)}; there are: {', '.join(DTYPES)}")
    if not _are_sizes(shape) or len(shape) > MAX_DIMS:
        raise FileError(f"{what} needs a shape of at most {MAX_DIMS} sizes, it is {short(shape)}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FileError(f"{what} needs a begin and an end in data_offsets, they are {short(offsets)}")
    bits = math.prod(shape) * DTYPES[dtype]
    if bits != 8 * (offsets[1] - offsets[0]):
        given = offsets[1] - offsets[0]
        raise FileError(f"{what}: {dtype} of {'x'.join(map(str, shape))} takes {bits / 8:g} bytes, it has {given}")
    return StoredTensor(name, dtype, tuple(shape), start + offsets[0], offsets[1] - offsets[0], part)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(n) is int and 0 <= n < 1 << 48 for n in values)


def _check_places(infos: Iterable[StoredTensor], start: int, end: int, path: object) -> None:
    at = start
    for info in sorted(infos, key=lambda info: (info.offset, info.nbytes)):
        if info.offset + info.nbytes > end:
            raise FileError(
                f"{path}: tensor {short(info.name)} ends at byte {info.offset + info.nbytes:,}, "
                f"but the file ends at {end:,}; the download may be incomplete"
            )
        if info.offset != at:
            why = (
                "overlaps the one before it"
                if info.offset < at
                else f"starts {info.offset - at} bytes after the end of the one before it"
            )
            raise FileError(f"{path}: tensor {short(info.name)} {why}; tensors follow each other without a gap")
        at += info.nbytes
    if at != end:
        raise FileError(f"{path}: {end - at:,} bytes after the last tensor are unused")

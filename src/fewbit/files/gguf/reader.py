"""Reads GGUF files over a memory map: metadata, and tensors that share the bytes of the file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ...errors import FileError, PathError
from ...tensor import QuantTensor
from ...validation import to_path
from ..maps import FileMap, open_map
from ..shown import first_names, short
from ..tensors import MappedTensors
from .header import Header, TensorInfo, parse_header

PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)
SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")

Part = tuple[Path, FileMap, Header]


def read_gguf(path: str | os.PathLike[str]) -> GGUF:
    """Open a GGUF file over a memory map.

    Args:
        path: The file. Of a split model any part will do: the others are found beside it.

    Raises:
        PathError: The file is missing or cannot be opened.
        FileError: The file is damaged, or not a GGUF file.

    >>> import numpy as np, tempfile
    >>> from fewbit.files.gguf import write_gguf
    >>> folder = tempfile.TemporaryDirectory()
    >>> write_gguf(f"{folder.name}/a.gguf", {"general.name": "a"}, {"w": np.ones((2, 32), np.float32)})
    >>> gguf = read_gguf(f"{folder.name}/a.gguf")
    >>> gguf
    <GGUF a.gguf: version 3, 1 metadata keys, 1 tensors>
    >>> gguf.metadata["general.name"], gguf.tensors["w"]
    ('a', QuantTensor(f32, 2x32, 256 bytes, 32 bits a weight))
    >>> folder.cleanup()
    """
    part = _open(to_path(path))
    count = _part_count(part)
    return GGUF([part] if count == 1 else _all_parts(part, count))


class GGUF:
    """An open GGUF file, or all parts of a split one. A split model looks like a single file.

    After `close`, or at the end of a `with` block, no more tensors can be read. Those read before stay valid, and so
    does the metadata.

    Attributes:
        metadata: Plain values by key: int, float, bool, str, NumPy arrays and sequences of str.
        typed_metadata: The same with numbers as NumPy scalars; `write_gguf` writes them in the same types.
        infos: Format, shape and place of each tensor.
        tensors: A `QuantTensor` over the memory map for each name.
        paths: The files.
        version: Version of the format.
        alignment: Alignment of the tensors in bytes.
        file_bytes: Size of all files.
    """

    metadata: Mapping[str, Any]
    typed_metadata: Mapping[str, Any]
    infos: Mapping[str, TensorInfo]
    tensors: Tensors

    def __init__(self, parts: list[Part]) -> None:
        first = parts[0][2]
        typed = {key: value for key, value in first.metadata.items() if len(parts) == 1 or key not in SPLIT_KEYS}
        infos = {info.name: info for _, _, header in parts for info in header.tensors}
        self.tensors = Tensors([path for path, _, _ in parts], [data for _, data, _ in parts], infos)
        self.paths, self.infos = self.tensors.paths, self.tensors.infos
        self.file_bytes, self.maps = self.tensors.file_bytes, self.tensors.maps
        self.version = first.version
        self.alignment = first.alignment
        self.typed_metadata = MappingProxyType(typed)
        self.metadata = MappingProxyType({key: _plain(value) for key, value in typed.items()})

    @property
    def path(self) -> Path:
        """The file, or the first of a split model."""
        return self.paths[0]

    @property
    def architecture(self) -> str:
        """The architecture of the model, `general.architecture`."""
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise FileError(f"{self.path}: general.architecture must be a name, it is {name!r}")
        return name

    @property
    def config(self) -> Mapping[str, Any]:
        """Hyperparameters, named without the architecture."""
        prefix = f"{self.architecture}."
        return {key.removeprefix(prefix): value for key, value in self.metadata.items() if key.startswith(prefix)}

    def tokenizer(self) -> Mapping[str, Any]:
        """The metadata of the tokenizer: the keys `tokenizer.*` and `general.*`."""
        return {key: value for key, value in self.metadata.items() if key.startswith(("tokenizer.", "general."))}

    def template(self) -> str | None:
        """The source of the chat template."""
        source = self.metadata.get("tokenizer.chat_template")
        return source if isinstance(source, str) else None

    def samples(self, nbytes: int) -> Iterator[bytes]:
        """Name, format, shape and some bytes of each tensor: a fingerprint of the model."""
        for name in sorted(self.infos):
            tensor = self.tensors[name]
            data, middle = tensor.stored.reshape(-1), tensor.nbytes // 2
            yield json.dumps([name, tensor.format.name, tensor.shape]).encode()
            yield data[:nbytes].tobytes() + data[middle : middle + nbytes].tobytes()

    def close(self) -> None:
        """Close the file. It is unmapped when no tensor uses it."""
        self.tensors.close()

    def forget(self, name: str) -> None:
        """Release the memory of a tensor. If it is used again, it is read from the file again."""
        self.tensors.forget(name)

    def __enter__(self) -> GGUF:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        files = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        counts = f"{len(self.metadata)} metadata keys, {len(self.infos)} tensors"
        return f"<GGUF {self.path.name}{files}: version {self.version}, {counts}>"


class Tensors(MappedTensors[TensorInfo]):
    """The tensors of a GGUF file by name."""

    def __getitem__(self, name: str) -> QuantTensor:
        data, info = self.data(name), self.infos[name]
        return QuantTensor.from_bytes(data, info.shape, info.format)


def _open(path: Path) -> Part:
    named = PART_NAME.fullmatch(path.name)
    data = open_map(path)
    return path, data, parse_header(data, str(path), int(named["number"]) - 1 if named else 0)


def _part_count(part: Part) -> int:
    """How many files the model has, by its metadata and by the file's name, which must agree."""
    path, _, header = part
    count = _split_number(part, "split.count") if "split.count" in header.metadata else 1
    named = PART_NAME.fullmatch(path.name)
    number, expected = (int(named["number"]), int(named["count"])) if named else (1, 1)
    if count != expected:
        raise FileError(
            f"{path}: split.count says {count}, the name says {expected}; the files of a split model are named "
            f"NAME-00001-of-000NN.gguf"
        )
    if not 1 <= number <= count:
        raise FileError(f"{path}: the file name says part {number} of {count}")
    return count


def _all_parts(given: Part, count: int) -> list[Part]:
    path = given[0]
    named = PART_NAME.fullmatch(path.name)
    assert named  # or there would be one part
    paths = [path.with_name(f"{named['stem']}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]
    missing = [p.name for p in paths if not p.exists()]
    if missing:
        raise PathError(f"{path}: the model has {count} parts, not found: {first_names(missing)}")
    parts = [given if p == path else _open(p) for p in paths]
    for i, part in enumerate(parts):
        _check_part(part, i, count)
    _check_tensors(parts)
    return parts


def _check_part(part: Part, i: int, count: int) -> None:
    path = part[0]
    for key, expected in (("split.count", count), ("split.no", i)):
        found = _split_number(part, key)
        if found != expected:
            raise FileError(f"{path}: {key} is {found}, but the file name says part {i + 1} of {count}: {expected}")


def _check_tensors(parts: list[Part]) -> None:
    infos = [info for _, _, header in parts for info in header.tensors]
    for part in parts:
        found = _split_number(part, "split.tensors.count")
        if found != len(infos):
            raise FileError(
                f"{part[0]}: split.tensors.count is {found}, the {len(parts)} files have {len(infos)} tensors"
            )
    seen: dict[str, TensorInfo] = {}
    for info in infos:
        other = seen.setdefault(info.name, info)
        if other is not info:
            files = f"{parts[other.part][0].name} and in {parts[info.part][0].name}"
            raise FileError(f"{parts[0][0]}: tensor {short(info.name)} is in {files}")


def _split_number(part: Part, key: str) -> int:
    path, _, header = part
    value = header.metadata.get(key)
    if not isinstance(value, np.integer):
        found = short(value) if key in header.metadata else "missing"
        raise FileError(f"{path}: {key} must be a whole number, it is {found}")
    return int(value)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value

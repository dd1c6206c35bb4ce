"""Beside the `gguf` package: each reads what the other writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf as oracle
import numpy as np
import pytest

from fewbit.files.gguf import read_gguf, write_gguf
from fewbit.formats import from_gguf
from fewbit.tensor import QuantTensor

from ..samples import random_bytes

TYPES = list(oracle.GGMLQuantizationType)
PLAIN = {0: "<f4", 1: "<f2", 24: "i1", 25: "<i2", 26: "<i4", 27: "<i8", 28: "<f8"}
# The package counts 40 bytes for a block of Q8_1, which is not meant for files; ggml and fewbit count 36.
ODD = {oracle.GGMLQuantizationType.Q8_1}

METADATA: dict[str, Any] = {
    "a.u8": np.uint8(255), "a.i8": np.int8(-1), "a.u16": np.uint16(65535), "a.i16": np.int16(-2),
    "a.u32": np.uint32(2**32 - 1), "a.i32": np.int32(-3), "a.f32": np.float32(0.1), "a.bool": True,
    "a.text": "äöü 漢字 🙂", "a.u64": np.uint64(2**64 - 1), "a.i64": np.int64(-(2**63)), "a.f64": np.float64(0.1),
    "a.ints": [1, -2, 3], "a.floats": [0.5, 0.25], "a.flags": [True, False], "a.words": ["few", "bits", "ä"],
}  # fmt: skip


def tensor(kind: oracle.GGMLQuantizationType, shape: tuple[int, ...]) -> QuantTensor:
    fmt = from_gguf(kind)
    whole = (*shape[:-1], shape[-1] * fmt.block)
    rows = int(np.prod(shape[:-1], dtype=int))
    return QuantTensor.from_bytes(random_bytes(fmt, rows, whole[-1], seed=kind), whole, fmt)


def same_metadata(reader: oracle.GGUFReader, metadata: Any) -> bool:
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert list(fields) == list(metadata)
    return all(
        list(metadata[key]) == value if isinstance(value, list) else metadata[key] == value
        for key, value in fields.items()
    )


@pytest.mark.parametrize("alignment", [32, 256])
def test_the_package_reads_what_is_written(tmp_path: Path, alignment: int) -> None:
    shapes = [(2,), (3, 2), (2, 3, 1), (2, 1, 2, 1)]
    tensors = {f"t{kind}.{i}": tensor(kind, s) for kind in TYPES if kind not in ODD for i, s in enumerate(shapes)}
    path = tmp_path / "a.gguf"
    write_gguf(path, METADATA, tensors, alignment=alignment)
    reader, gguf = oracle.GGUFReader(path), read_gguf(path)
    assert same_metadata(reader, gguf.metadata)
    assert [t.name for t in reader.tensors] == list(tensors)
    for found in reader.tensors:
        expected = tensors[found.name]
        assert found.data.tobytes() == expected.to_bytes()
        assert tuple(found.shape[::-1]) == expected.shape
        assert found.tensor_type == expected.format.gguf
        assert found.data_offset == gguf.infos[found.name].offset


@pytest.mark.parametrize("alignment", [None, 8, 128])
def test_what_the_package_writes_is_read(tmp_path: Path, alignment: int | None) -> None:
    path = tmp_path / "a.gguf"
    writer = oracle.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    add_all(writer)
    tensors = {f"t{kind}": tensor(kind, (3, 2)) for kind in TYPES if kind not in ODD}
    for name, t in tensors.items():
        add_tensor(writer, name, t)
    finish(writer)
    gguf = read_gguf(path)
    assert gguf.alignment == (alignment or 32)
    assert same_metadata(oracle.GGUFReader(path), gguf.metadata)
    assert all(type(gguf.typed_metadata[key]) is type(value) for key, value in METADATA.items() if is_typed(value))
    assert list(gguf.tensors) == list(tensors)
    assert all(gguf.tensors[name] == t for name, t in tensors.items())


def is_typed(value: Any) -> bool:
    return isinstance(value, np.generic | str)


def add_all(writer: oracle.GGUFWriter) -> None:
    kinds = {np.float32: "FLOAT32", np.float64: "FLOAT64", bool: "BOOL", str: "STRING", list: "ARRAY"}
    for key, value in METADATA.items():
        name = kinds.get(type(value), type(value).__name__.upper())
        plain = value.item() if isinstance(value, np.generic) else value
        writer.add_key_value(key, plain, oracle.GGUFValueType[name])


def add_tensor(writer: oracle.GGUFWriter, name: str, t: QuantTensor) -> None:
    kind = oracle.GGMLQuantizationType(t.format.gguf)
    if kind in PLAIN:
        writer.add_tensor(name, t.data.view(PLAIN[kind]).reshape(t.shape))
    else:
        writer.add_tensor(name, t.data.reshape(t.rows, -1), raw_dtype=kind)


def finish(writer: oracle.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_both_write_the_same_bytes(tmp_path: Path) -> None:
    writer = oracle.GGUFWriter(tmp_path / "theirs.gguf", "llama")
    add_all(writer)
    tensors = {
        "a": tensor(oracle.GGMLQuantizationType.Q4_K, (3, 1)),
        "b": tensor(oracle.GGMLQuantizationType.F32, (5,)),
    }
    for name, t in tensors.items():
        add_tensor(writer, name, t)
    finish(writer)
    write_gguf(tmp_path / "ours.gguf", {"general.architecture": "llama", **METADATA}, tensors)
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


def test_big_endian_files_of_the_package_are_refused(tmp_path: Path) -> None:
    writer = oracle.GGUFWriter(tmp_path / "a.gguf", "llama", endianess=oracle.GGUFEndian.BIG)
    finish(writer)
    with pytest.raises(ValueError, match="big-endian"):
        read_gguf(tmp_path / "a.gguf")


def test_split_files_of_the_package(tmp_path: Path) -> None:
    writer = oracle.GGUFWriter(tmp_path / "a.gguf", "llama", split_max_tensors=2, small_first_shard=True)
    tensors = {f"t{i}": tensor(oracle.GGMLQuantizationType.Q8_0, (i + 1, 2)) for i in range(5)}
    for name, t in tensors.items():
        add_tensor(writer, name, t)
    finish(writer)
    paths = sorted(tmp_path.glob("*.gguf"))
    assert len(paths) == 4
    for path in paths:
        gguf = read_gguf(path)
        assert list(gguf.paths) == paths
        assert dict(gguf.metadata) == {"general.architecture": "llama"}
        assert all(gguf.tensors[name] == t for name, t in tensors.items())

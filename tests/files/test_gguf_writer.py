from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fewbit.errors import DataError, DtypeError, FewbitError, FormatError, PathError, ShapeError
from fewbit.files.gguf import GGUF, Deferred, StringArray, read_gguf, write_gguf
from fewbit.files.gguf.reader import SPLIT_KEYS
from fewbit.tensor import QuantTensor

from ..samples import ALL, random_bytes
from .gguf_bytes import same

FILE_FORMATS = [fmt for fmt in ALL if fmt.gguf is not None]


def round_trip(path: Path, metadata: dict[str, Any], tensors: Any = None, alignment: int = 32) -> GGUF:
    write_gguf(path / "a.gguf", metadata, tensors or {}, alignment=alignment)
    return read_gguf(path / "a.gguf")


def test_types_that_plain_values_get(tmp_path: Path) -> None:
    values = {
        "u32": 7, "i32": -7, "u64": 2**40, "i64": -(2**40), "f32": 0.1, "f64": 1e300, "inf": float("inf"),
        "bool": True, "text": "ä",
    }  # fmt: skip
    typed = round_trip(tmp_path, values).typed_metadata
    kinds = [np.uint32, np.int32, np.uint64, np.int64, np.float32, np.float64, np.float32, np.bool_, str]
    assert [type(value) for value in typed.values()] == kinds
    assert typed["f32"] == np.float32(0.1)


def test_types_that_lists_get(tmp_path: Path) -> None:
    values = {
        "i32": [1, 2], "i64": [1, 2**40], "u64": [1, 2**63], "f32": [1, 0.5], "f64": [1e300, 0.5],
        "bool": [True, False], "typed": [np.uint16(1), np.uint16(2)],
    }  # fmt: skip
    typed = round_trip(tmp_path, values).typed_metadata
    assert [value.dtype.name for value in typed.values()] == [
        "int32", "int64", "uint64", "float32", "float64", "bool", "uint16",
    ]  # fmt: skip
    assert {key: value.tolist() for key, value in typed.items()} == values


SCALARS = [np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64, np.float32, np.float64]


@pytest.mark.parametrize("kind", [*SCALARS, np.bool_])
def test_numpy_keeps_its_type(tmp_path: Path, kind: Any) -> None:
    values = {"one": kind(1), "many": np.array([0, 1, 1], kind), "none": np.zeros(0, kind)}
    assert same(values, dict(round_trip(tmp_path, values).typed_metadata))


def test_big_endian_arrays_are_swapped(tmp_path: Path) -> None:
    gguf = round_trip(tmp_path, {"k": np.array([1, 2], ">u2")}, {"w": np.array([[1, 2]], ">f4")})
    assert gguf.metadata["k"].tolist() == [1, 2]
    assert gguf.tensors["w"].dequantize().tolist() == [[1, 2]]


numbers = st.sampled_from(SCALARS).flatmap(
    lambda kind: st.lists(st.integers(0, 100)).map(lambda values: np.array(values, kind))
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
arrays = st.recursive(
    numbers | st.lists(texts).map(StringArray.pack), lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple)
)
scalars = st.one_of(texts, st.booleans().map(np.bool_), numbers.filter(len).map(lambda a: a[0]))


def depth(value: Any) -> int:
    return 1 + max(map(depth, value)) if isinstance(value, tuple) else 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(texts, scalars | arrays.filter(lambda value: depth(value) <= 4), max_size=6))
def test_any_metadata_come_back(tmp_path: Path, metadata: dict[str, Any]) -> None:
    for key in ("general.alignment", *SPLIT_KEYS):  # these say how the file lies
        metadata.pop(key, None)
    assert same(metadata, dict(round_trip(tmp_path, metadata).typed_metadata))


@pytest.mark.parametrize("fmt", FILE_FORMATS, ids=str)
@pytest.mark.parametrize("shape", [(1,), (3, 2), (2, 2, 1), (2, 1, 2, 1)])
def test_tensors_come_back(tmp_path: Path, fmt: Any, shape: tuple[int, ...]) -> None:
    whole = (*shape[:-1], shape[-1] * fmt.block)
    data = random_bytes(fmt, int(np.prod(shape[:-1], dtype=int)), whole[-1])
    tensor = QuantTensor.from_bytes(data, whole, fmt)
    assert round_trip(tmp_path, {}, {"w": tensor}).tensors["w"] == tensor


@pytest.mark.parametrize("kind", ["f4", "f2", "f8", "i1", "i2", "i4", "i8", ml_dtypes.bfloat16])
def test_arrays_come_back(tmp_path: Path, kind: Any) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(kind)
    tensor = round_trip(tmp_path, {}, {"w": array[:, ::2]}).tensors["w"]
    assert tensor.shape == (2, 2, 4)
    assert np.array_equal(tensor.dequantize(), array[:, ::2].astype(np.float32))


@pytest.mark.parametrize("alignment", [1, 8, 64, 1 << 16])
def test_alignment(tmp_path: Path, alignment: int) -> None:
    tensors = {f"t{i}": np.full(3 + i, i, np.float32) for i in range(4)}
    gguf = round_trip(tmp_path, {"general.alignment": 16}, tensors, alignment)
    assert gguf.metadata["general.alignment"] == gguf.alignment == alignment
    assert all(info.offset % alignment == 0 for info in gguf.infos.values())
    assert gguf.file_bytes % alignment == 0
    assert all(np.array_equal(gguf.tensors[name].dequantize(), array) for name, array in tensors.items())


def test_the_usual_alignment_is_not_written(tmp_path: Path) -> None:
    assert "general.alignment" not in round_trip(tmp_path, {"general.alignment": np.uint32(64)}).metadata


def test_deferred_tensors_are_made_one_by_one(tmp_path: Path) -> None:
    log: list[int] = []

    def make(i: int) -> np.ndarray[Any, Any]:
        assert (tmp_path / "a.gguf").exists() is False
        log.append(i)
        return np.full((2, 32), i, np.float32)

    tensors = {f"t{i}": Deferred((2, 32), "f32", lambda i=i: make(i)) for i in range(3)}
    gguf = round_trip(tmp_path, {}, tensors)
    assert log == [0, 1, 2]
    assert gguf.tensors["t2"].dequantize()[0, 0] == 2


def test_a_file_may_be_written_over_itself(tmp_path: Path) -> None:
    first = round_trip(tmp_path, {"a": 1}, {"w": np.arange(32, dtype=np.float32)})
    second = round_trip(tmp_path, {"a": 2}, first.tensors)
    assert second.tensors["w"] == first.tensors["w"]
    assert (first.metadata["a"], second.metadata["a"]) == (1, 2)


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> Any:
        raise RuntimeError("no")

    write_gguf(tmp_path / "a.gguf", {"a": 1}, {})
    with pytest.raises(RuntimeError, match="no"):
        write_gguf(tmp_path / "a.gguf", {}, {"w": Deferred((32,), "f32", fail)})
    with pytest.raises(ShapeError, match=r"tensor 'w' should be f32 of 32, got f32 of 2x32"):
        write_gguf(tmp_path / "a.gguf", {}, {"w": Deferred((32,), "f32", lambda: np.zeros((2, 32), np.float32))})
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]
    assert read_gguf(tmp_path / "a.gguf").metadata["a"] == 1


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PathError, match="cannot be written: No such file"):
        write_gguf(tmp_path / "none" / "a.gguf", {}, {})
    with pytest.raises(PathError, match="cannot be written"):
        write_gguf(tmp_path, {}, {})


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ([], DataError, "empty list has no type"),
        ([[1], []], DataError, "empty list has no type"),
        (2**64, DataError, "numbers of 65 bits do not fit a 64-bit type"),
        ([-1, 2**63], DataError, "do not fit a 64-bit type"),
        ([10**400, 0.5], DataError, "too large for a float"),
        (None, DtypeError, "a NoneType cannot be written"),
        (b"x", DtypeError, "a bytes cannot be written"),
        (1j, DtypeError, "complex"),
        (np.float16(1), DtypeError, "float16 cannot be written"),
        (np.array(["a"]), DtypeError, "cannot be written"),
        (np.zeros((2, 2)), ShapeError, "one dimension, got 2"),
        ([1, "a"], DtypeError, "all of one kind, not int, str"),
        ([1, [2]], DtypeError, "all of one kind, not int, list"),
        ([True, 1], DtypeError, "all of one kind, not bool, int"),
        ("\ud800", DataError, "not UTF-8 text"),
        (["a", "\ud800"], DataError, "not UTF-8 text"),
        ([[[[[1]]]]], DataError, "at most 4 deep"),
    ],
)
def test_values_that_cannot_be_written(tmp_path: Path, value: Any, kind: type[FewbitError], message: str) -> None:
    with pytest.raises(kind, match=f"metadata key 'k': .*{message}"):
        write_gguf(tmp_path / "a.gguf", {"k": value}, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("tensor", "kind", "message"),
    [
        (np.zeros(3, np.uint8), DtypeError, "arrays of float32, .* can be written, not of uint8"),
        (np.float32(1), ShapeError, r"1 to 4 dimensions, each of at least 1, can be written, not \(\)"),
        (np.zeros((2, 0), np.float32), ShapeError, r"not \(2, 0\)"),
        (np.zeros((1,) * 5, np.float32), ShapeError, "1 to 4 dimensions"),
        (Deferred((-2, -2), "f32", lambda: None), ShapeError, r"not \(-2, -2\)"),
        (Deferred((33,), "q8_0", lambda: None), ShapeError, "multiple of 32 values, not 33"),
        (QuantTensor.from_bytes(bytes(36), (1, 32), "int8"), FormatError, "GGUF files have no format int8"),
    ],
)
def test_tensors_that_cannot_be_written(tmp_path: Path, tensor: Any, kind: type[FewbitError], message: str) -> None:
    with pytest.raises(kind, match=f"tensor 'w': .*{message}"):
        write_gguf(tmp_path / "a.gguf", {}, {"w": tensor})


@pytest.mark.parametrize("alignment", [0, -8, 48, 1 << 32])
def test_alignments_that_cannot_be(tmp_path: Path, alignment: int) -> None:
    with pytest.raises(DataError, match="power of two"):
        write_gguf(tmp_path / "a.gguf", {}, {}, alignment=alignment)


@pytest.mark.parametrize(("name", "kind"), [("n" * 64, DataError), (3, DtypeError), ("\ud800", DataError)])
def test_names_that_cannot_be(tmp_path: Path, name: Any, kind: type[FewbitError]) -> None:
    with pytest.raises(kind):
        write_gguf(tmp_path / "a.gguf", {}, {name: np.zeros(3, np.float32)})
    with pytest.raises(kind):
        write_gguf(tmp_path / "a.gguf", {name * (2000 if kind is DataError else 1): 1}, {})

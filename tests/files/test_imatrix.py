"""Importance matrices in llama.cpp's files."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.errors import DataError, FewbitError, FileError, PathError, ShapeError
from fewbit.files.imatrix import ImportanceMatrix, SquareSums

DENSE, EXPERTS = "blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight"


def entries() -> dict[str, SquareSums]:
    rng = np.random.default_rng(0)
    return {
        DENSE: SquareSums(rng.random((1, 8)) * 40, np.array([40.0])),
        EXPERTS: SquareSums(np.array([[2.0] * 4, [0.0] * 4, [9.0] * 4]), np.array([2.0, 0.0, 3.0])),
    }


def write(path: Path, **changes: Any) -> Path:
    """A file as llama-imatrix writes it."""
    tensors: dict[str, Any] = {}
    for name, entry in entries().items():
        tensors[f"{name}.in_sum2"] = entry.sums.astype(np.float32)
        tensors[f"{name}.counts"] = entry.counts.astype(np.float32)[:, None]
    metadata = {
        "general.type": "imatrix", "imatrix.datasets": ["a.txt"], "imatrix.chunk_count": np.uint32(5),
        "imatrix.chunk_size": np.uint32(8), **changes.pop("metadata", {}),
    }  # fmt: skip
    fb.write_gguf(path, metadata, {name: t for name, t in {**tensors, **changes}.items() if t is not None})
    return path


def dat(*parts: tuple[str, int, list[float]], tail: bytes = b"") -> bytes:
    out = struct.pack("<i", len(parts))
    for name, calls, values in parts:
        out += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, len(values))
        out += np.array(values, "<f4").tobytes()
    return out + tail


def test_means_by_tensor(tmp_path: Path) -> None:
    found = fb.read_imatrix(write(tmp_path / "a.gguf"))
    assert isinstance(found, dict | ImportanceMatrix)
    assert set(found) == {DENSE, EXPERTS}
    assert (found.chunk_count, found.chunk_size, list(found.datasets)) == (5, 8, ["a.txt"])
    assert found[DENSE].dtype == np.float32
    np.testing.assert_allclose(found[DENSE], entries()[DENSE].sums[0] / 40, rtol=1e-6)
    assert found[EXPERTS].tolist() == [[1.0] * 4, [1.0] * 4, [3.0] * 4]  # an expert without tokens counts as 1


def test_what_is_written_is_read(tmp_path: Path) -> None:
    first = fb.read_imatrix(write(tmp_path / "a.gguf"))
    fb.write_imatrix(tmp_path / "b.gguf", first)
    second = fb.read_imatrix(tmp_path / "b.gguf")
    assert (second.chunk_count, second.chunk_size, list(second.datasets)) == (5, 8, ["a.txt"])
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    shapes = {name: info.shape for name, info in fb.read_gguf(tmp_path / "b.gguf").infos.items()}
    assert shapes[f"{EXPERTS}.in_sum2"] == (3, 4)
    assert shapes[f"{EXPERTS}.counts"] == (3, 1)
    assert shapes[f"{DENSE}.counts"] == (1, 1)


def test_older_files(tmp_path: Path) -> None:
    path = tmp_path / "a.dat"
    tail = struct.pack("<ii", 4, 5) + b"a.txt"
    path.write_bytes(dat((DENSE, 4, [4.0, 8.0]), (EXPERTS, 2, [2.0] * 12), tail=tail))
    found = fb.read_imatrix(path)
    assert (found.chunk_count, list(found.datasets)) == (4, ["a.txt"])
    assert found[DENSE].tolist() == [1.0, 2.0]
    assert found[EXPERTS].tolist() == [1.0] * 12  # the file does not say how many experts there are
    fitted = found.fitting(EXPERTS, (3, 7, 4))
    assert fitted is not None
    assert fitted.shape == (3, 4)
    path.write_bytes(dat((DENSE, 0, [4.0])))
    assert fb.read_imatrix(path)[DENSE].tolist() == [1.0]


def test_values_fit_tensors(tmp_path: Path) -> None:
    found = fb.read_imatrix(write(tmp_path / "a.gguf"))
    shapes = {(5, 8): (8,), (1, 5, 8): (8,)}
    for shape, expected in shapes.items():
        values = found.fitting(DENSE, shape)
        assert values is not None
        assert values.shape == expected
    assert found.fitting("output.weight", (5, 8)) is None
    with pytest.raises(ShapeError, match=r"blk.0.attn_q.weight has 8 values, which do not fit a tensor of 5 x 16"):
        found.fitting(DENSE, (5, 16))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{DENSE}.counts": None}, "counts' is missing"),
        ({f"{DENSE}.counts": np.zeros((1, 1), np.float16)}, "must be f32"),
        ({f"{DENSE}.counts": np.zeros((3, 1), np.float32)}, "8 sums of .* cannot be divided among 3 counts"),
        ({f"{DENSE}.in_sum2": np.full((1, 8), np.nan, np.float32)}, "no sums of squares"),
        ({f"{DENSE}.in_sum2": np.full((1, 8), -1, np.float32)}, "no sums of squares"),
        ({"metadata": {"general.type": "model"}}, "general.type is 'model', not imatrix"),
        ({"metadata": {"imatrix.chunk_size": "x"}}, "imatrix.chunk_size must be a whole number"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FileError, match=message):
        fb.read_imatrix(write(tmp_path / "a.gguf", **changes))


def test_a_model_is_no_importance_matrix(tmp_path: Path) -> None:
    fb.write_gguf(tmp_path / "a.gguf", {}, {"w": np.zeros(4, np.float32)})
    with pytest.raises(FileError, match=r"it has no tensor NAME\.in_sum2"):
        fb.read_imatrix(tmp_path / "a.gguf")
    with pytest.raises(PathError, match="No such file"):
        fb.read_imatrix(tmp_path / "none")
    with pytest.raises(DataError, match="empty"):
        fb.write_imatrix(tmp_path / "b.gguf", ImportanceMatrix({}))


@pytest.mark.parametrize(
    "data",
    [
        b"", struct.pack("<i", 0), struct.pack("<i", -1), struct.pack("<ii", 1, 1 << 20), struct.pack("<ii", 1, -4),
        b"\x01\x00\x00\x00\x01\x00\x00\x00\xff", dat((DENSE, 1, [])), dat((DENSE, 1, [np.inf])), b"some text, not this",
    ],
)  # fmt: skip
def test_damaged_older_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.dat").write_bytes(data)
    with pytest.raises(FileError, match=r"a\.dat"):
        fb.read_imatrix(tmp_path / "a.dat")


def test_every_cut_of_a_file_is_refused_or_read(tmp_path: Path) -> None:
    """A cut never raises anything but an error of the package."""
    for whole in (dat((DENSE, 4, [4.0, 8.0]), ("b", 1, [1.0])), write(tmp_path / "a.gguf").read_bytes()):
        for size in range(0, len(whole), 7):
            (tmp_path / "cut").write_bytes(whole[:size])
            try:
                found = fb.read_imatrix(tmp_path / "cut")
            except FewbitError:
                continue
            assert len(found)


def test_nothing_is_left_of_a_write_that_fails(tmp_path: Path) -> None:
    with pytest.raises(PathError):
        fb.write_imatrix(tmp_path / "none" / "a.gguf", ImportanceMatrix(entries()))
    long = ImportanceMatrix({"x" * 70: entries()[DENSE]})
    with pytest.raises(DataError, match="at most 63"):
        fb.write_imatrix(tmp_path / "a.gguf", long)
    assert list(tmp_path.iterdir()) == []

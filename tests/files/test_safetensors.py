"""Safetensors: what is read, and one clear error for everything that is wrong with a file or an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.errors import FewbitError, FileError, MissingError, PathError
from fewbit.files.safetensors import MAX_HEADER_BYTES, parse_header, read_safetensors

from .safetensors_bytes import entry, file_of, packed

A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(4, dtype=np.float16)
SOUND = {"a": entry("F32", [2], 0, 8), "b": entry("F16", [2, 2], 8, 16)}


def write(folder: Path, data: bytes, name: str = "model.safetensors") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def test_tensors_share_the_map(tmp_path: Path) -> None:
    bf16 = np.array([0x3F80, 0xC000], np.uint16)
    file = read_safetensors(write(tmp_path, packed({"a": A, "b": B, "c": bf16})))
    assert list(file) == ["a", "b", "c"]
    assert len(file) == 3
    np.testing.assert_array_equal(file["a"].dequantize(), A)
    np.testing.assert_array_equal(file["b"].dequantize(), B)
    np.testing.assert_array_equal(file["c"].dequantize(), [1, -2])
    assert [str(file[name].format) for name in file] == ["f32", "f16", "bf16"]
    assert not file["a"].stored.flags.owndata
    tensor = file["a"]
    file.forget("a")
    np.testing.assert_array_equal(tensor.dequantize(), A)
    file.close()
    with pytest.raises(PathError, match="the file is closed"):
        file["a"]


def test_a_tensor_at_an_odd_place_is_copied(tmp_path: Path) -> None:
    header = {"x": entry("U8", [1], 0, 1), "a": entry("F32", [2], 1, 9)}
    file = read_safetensors(write(tmp_path, file_of(header, b"x" + np.ones(2, np.float32).tobytes())))
    np.testing.assert_array_equal(file["a"].dequantize(), [1, 1])


def test_metadata_scalars_and_empty_tensors(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "e": entry("F32", [0, 4], 0, 0), "s": entry("F32", [], 0, 4)}
    file = read_safetensors(write(tmp_path, file_of(header, np.float32(3).tobytes())))
    assert file["s"].dequantize().tolist() == [3]
    assert file.infos["e"].shape == (0, 4)


def test_types_that_are_no_weights(tmp_path: Path) -> None:
    file = read_safetensors(write(tmp_path, file_of({"a": entry("F8_E4M3", [4], 0, 4)}, bytes(4))))
    assert file.data("a").size == 4
    with pytest.raises(FileError, match=r"'a' is F8_E4M3; weights may be F32, F16, BF16"):
        file["a"]
    with pytest.raises(MissingError, match="there is no tensor 'z' among its 1"):
        file["z"]


DAMAGED: dict[str, tuple[bytes, str]] = {
    "short": (b"1234", "at least 8 bytes, this one has 4"),
    "huge header": (file_of(b"{}", size=MAX_HEADER_BYTES + 1), "claims 100,000,001 bytes, the limit is 100,000,000"),
    "header past the end": (
        file_of(b"{}", size=3),
        r"claims 3 bytes, but the file has 10; the download may be incomplete",
    ),
    "largest length": (b"\xff" * 8 + b"{}", "claims 18,446,744,073,709,551,615 bytes"),
    "no object": (file_of(b"[]"), r"starts with b'\['"),
    "no json": (file_of(b"{nope}"), "not valid JSON"),
    "no utf-8": (file_of(b'{"\xff": 1}'), "byte 2 of the JSON is not UTF-8"),
    "deep json": (file_of(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "nested too deeply"),
    "long number": (file_of(b'{"a":' + b"9" * 5000 + b"}"), "not valid JSON"),
    "twice": (file_of(b'{"a": 1, "a": 2}'), "'a' occurs twice"),
    "metadata": (file_of({"__metadata__": {"a": 1}}), "__metadata__ must hold texts"),
    "no entry": (file_of({"a": 3}), "'a' needs dtype, shape and data_offsets"),
    "more keys": (file_of({"a": entry("F32", [1], 0, 4) | {"x": 1}}, bytes(4)), "needs dtype, shape"),
    "dtype": (file_of({"a": entry("F31", [1], 0, 4)}, bytes(4)), "unknown dtype 'F31'; there are: BOOL"),
    "no dtype": (file_of({"a": entry([], [1], 0, 4)}, bytes(4)), "unknown dtype"),  # type: ignore[arg-type]
    "negative": (file_of({"a": entry("F32", [-1], 0, 4)}, bytes(4)), "needs a shape"),
    "true": (file_of({"a": entry("F32", [True], 0, 4)}, bytes(4)), "needs a shape"),
    "float": (file_of({"a": entry("F32", [1.0], 0, 4)}, bytes(4)), "needs a shape"),  # type: ignore[list-item]
    "overflow": (file_of({"a": entry("F32", [1 << 40] * 5, 0, 4)}, bytes(4)), "takes 6.4.*bytes, it has 4"),
    "dimensions": (file_of({"a": entry("F32", [1] * 99, 0, 4)}, bytes(4)), "at most 16 sizes"),
    "backwards": (file_of({"a": entry("F32", [1], 4, 0)}, bytes(4)), "begin and an end in data_offsets"),
    "three offsets": (file_of({"a": SOUND["a"] | {"data_offsets": [0, 8, 9]}}, bytes(8)), "begin and an end"),
    "size": (file_of({"a": entry("F32", [3], 0, 8)}, bytes(8)), "F32 of 3 takes 12 bytes, it has 8"),
    "half a byte": (file_of({"a": entry("F4", [3], 0, 1)}, bytes(1)), "F4 of 3 takes 1.5 bytes, it has 1"),
    "overlap": (file_of(SOUND | {"c": entry("F32", [1], 4, 8)}, bytes(16)), "overlaps the one before it"),
    "the same place": (file_of(SOUND | {"c": entry("F32", [2], 0, 8)}, bytes(16)), "overlaps the one before it"),
    "gap": (file_of({"a": entry("F32", [1], 4, 8)}, bytes(8)), "starts 4 bytes after the end"),
    "cut": (
        file_of(SOUND, bytes(12)),
        r"'b' ends at byte 150, but the file ends at 146; the download may be incomplete",
    ),
    "left over": (file_of(SOUND, bytes(20)), "4 bytes after the last tensor are unused"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer.*git lfs pull"),
    "page": (b"<!DOCTYPE html>", "a web page"),
    "zip": (b"PK\x03\x04" + bytes(20), "a PyTorch checkpoint"),
    "pickle": (b"\x80\x02" + bytes(20), "a pickle, which could run code"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(tmp_path: Path, name: str) -> None:
    data, message = DAMAGED[name]
    with pytest.raises(FileError, match=message) as caught:
        read_safetensors(write(tmp_path, data))
    assert str(caught.value).startswith(str(tmp_path))


def test_empty_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="the file is empty"):
        read_safetensors(write(tmp_path, b""))
    with pytest.raises(PathError, match="cannot be opened"):
        read_safetensors(tmp_path / "none.safetensors")


# Several files


def shards(folder: Path, index: Any) -> Path:
    write(folder, packed({"a": A}), "model-1.safetensors")
    write(folder, packed({"b": B}), "model-2.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


GOOD = {"a": "model-1.safetensors", "b": "model-2.safetensors"}


def test_an_index(tmp_path: Path) -> None:
    file = read_safetensors(shards(tmp_path, {"metadata": {"total_size": 32}, "weight_map": GOOD}))
    assert sorted(file) == ["a", "b"]
    np.testing.assert_array_equal(file["b"].dequantize(), B)


WRONG: dict[str, tuple[Any, str]] = {
    "a list": ([], "needs a weight_map"),
    "nothing": ({"weight_map": {}}, "needs a weight_map"),
    "a number": ({"weight_map": {"a": 3}}, "the index puts tensor 'a' in 3"),
    "up": ({"weight_map": GOOD | {"a": "../model-1.safetensors"}}, "lie beside the index"),
    "root": ({"weight_map": GOOD | {"a": "/etc/x.safetensors"}}, "lie beside the index"),
    "windows": ({"weight_map": GOOD | {"a": "..\\x.safetensors"}}, "lie beside the index"),
    "other kind": ({"weight_map": GOOD | {"a": "config.json"}}, "lie beside the index"),
    "zero byte": ({"weight_map": GOOD | {"a": "a\0.safetensors"}}, "lie beside the index"),
    "missing file": ({"weight_map": GOOD | {"a": "model-3.safetensors"}}, "files that are missing: model-3"),
    "missing tensor": ({"weight_map": GOOD | {"c": "model-1.safetensors"}}, "'c' is in none of the files"),
    "wrong file": ({"weight_map": GOOD | {"b": "model-1.safetensors"}, "x": 1}, "'b' is in none|it is in model-2"),
    "swapped": (
        {"weight_map": {"a": GOOD["b"], "b": GOOD["a"]}},
        "the index puts tensor 'a' in model-2.*, but it is in model-1",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_indexes(tmp_path: Path, name: str) -> None:
    index, message = WRONG[name]
    with pytest.raises(FewbitError, match=message):
        read_safetensors(shards(tmp_path, index))


def test_a_tensor_that_the_index_leaves_out(tmp_path: Path) -> None:
    write(tmp_path, packed({"a": A, "x": B}), "model-1.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    with pytest.raises(FileError, match="'x' is missing from the index"):
        read_safetensors(tmp_path)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    folder = shards(tmp_path, {"weight_map": GOOD})
    write(folder, packed({"a": A, "b": B}), "model-2.safetensors")
    with pytest.raises(FileError, match=r"'a' is in model-1.safetensors too"):
        read_safetensors(folder)


def test_folders_without_an_index(tmp_path: Path) -> None:
    with pytest.raises(PathError, match="there is no safetensors file in it"):
        read_safetensors(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(
        PathError, match=r"pytorch_model.bin is a pickle, which could run code and is not supported; look"
    ):
        read_safetensors(tmp_path)
    write(tmp_path, packed({"a": A}), "weights.safetensors")
    assert list(read_safetensors(tmp_path)) == ["a"]
    write(tmp_path, packed({"b": B}), "more.safetensors")
    with pytest.raises(PathError, match=r"2 safetensors files and no model.safetensors.index.json"):
        read_safetensors(tmp_path)


# Anything at all


@settings(max_examples=300)
@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 255))
def test_any_bytes(data: bytes, at: int, byte: int) -> None:
    changed = bytearray(packed({"a": A, "b": B}))
    changed[at % len(changed)] = byte
    for damaged in (data, file_of(data), bytes(changed), bytes(changed[:at])):
        try:
            infos = parse_header(damaged, "a file")
        except FileError:
            pass
        else:
            assert sum(info.nbytes for info in infos) <= len(damaged)
            assert all(info.offset + info.nbytes <= len(damaged) for info in infos)

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import FewbitError, FileError, MissingError, PathError
from fewbit.files.gguf import GGUF, StringArray, read_gguf
from fewbit.files.gguf.values import string_ends

from . import gguf_bytes as raw


def read(tmp_path: Path, data: bytes) -> GGUF:
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    return read_gguf(path)


@pytest.mark.parametrize("version", [2, 3])
def test_versions(tmp_path: Path, version: int) -> None:
    gguf = read(tmp_path, raw.file([raw.pair("a", raw.U32, 7)], version=version))
    assert gguf.version == version
    assert dict(gguf.metadata) == {"a": 7}


def test_scalars_are_plain_and_keep_their_type_beside(tmp_path: Path) -> None:
    gguf = read(tmp_path, raw.file(raw.SCALARS))
    assert dict(gguf.metadata) == {
        "u8": 255, "i8": -128, "u16": 65535, "i16": -32768, "u32": 2**32 - 1, "i32": -(2**31), "f32": 0.5,
        "bool": True, "string": "äöü 漢字 🙂", "u64": 2**64 - 1, "i64": -(2**63), "f64": 1e300,
    }  # fmt: skip
    assert {type(value) for value in gguf.metadata.values()} == {int, float, bool, str}
    assert type(gguf.typed_metadata["u16"]) is np.uint16
    assert type(gguf.typed_metadata["f32"]) is np.float32


def test_arrays(tmp_path: Path) -> None:
    metadata = read(tmp_path, raw.file(raw.ARRAYS)).metadata
    assert metadata["numbers"].dtype == np.int32
    assert metadata["numbers"].tolist() == [1, -2, 3]
    assert metadata["flags"].dtype == bool
    assert metadata["words"] == ["few", "", "bits", "ä"]
    assert metadata["none"].size == 0
    numbers, words, arrays = metadata["nested"]
    assert numbers.tolist() == [1, 2]
    assert list(words) == ["a"]
    assert arrays[0].tolist() == [-1]


def test_what_is_read_cannot_be_changed(tmp_path: Path) -> None:
    gguf = read(tmp_path, raw.tiny())
    with pytest.raises(TypeError):
        gguf.metadata["a"] = 8  # type: ignore[index]
    with pytest.raises(ValueError, match="read-only"):
        gguf.tensors["w"].data[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        gguf.metadata["d"][0] = False


def test_tensors_are_views_of_the_map(tmp_path: Path) -> None:
    gguf = read(tmp_path, raw.tiny())
    info = gguf.infos["w"]
    assert (info.format.name, info.shape, info.nbytes) == ("q8_0", (2, 32), 68)
    assert np.shares_memory(gguf.tensors["w"].data, gguf.tensors["w"].data)
    assert gguf.tensors["w"].to_bytes() == bytes(range(68))
    assert gguf.tensors["n"].shape == (3,)
    assert gguf.tensors["n"].dequantize().tolist() == [0, 1, 2]
    assert list(gguf.tensors) == ["w", "n"]
    assert gguf.tensors.get("x") is None
    with pytest.raises(MissingError, match=r"no tensor 'x' among its 2$"):
        gguf.tensors["x"]


@pytest.mark.parametrize("alignment", [1, 2, 8, 32, 4096])
def test_alignments(tmp_path: Path, alignment: int) -> None:
    gap = -12 % alignment
    data = np.arange(3, dtype="<f4").tobytes() + bytes(gap) + np.arange(3, 6, dtype="<f4").tobytes()
    records = [raw.record("a", (3,), 0, 0), raw.record("b", (3, 1, 1, 1), 0, 12 + gap)]
    gguf = read(tmp_path, raw.file([raw.pair("general.alignment", raw.U32, alignment)], records, data, alignment))
    assert gguf.alignment == alignment
    assert gguf.tensors["a"].dequantize().tolist() == [0, 1, 2]
    assert gguf.tensors["b"].dequantize().tolist() == [[[[3, 4, 5]]]]


def test_tensors_outlive_the_file(tmp_path: Path) -> None:
    gguf = read(tmp_path, raw.tiny())
    with gguf:
        tensor = gguf.tensors["w"]
        mapped = weakref.ref(gguf.tensors._maps[0])
    gguf.path.unlink()
    assert tensor.to_bytes() == bytes(range(68))
    assert list(gguf.metadata["c"]) == ["p", "q"]
    with pytest.raises(PathError, match="closed"):
        gguf.tensors["w"]
    gguf.close()
    gc.collect()
    assert mapped() is not None
    del tensor
    gc.collect()
    assert mapped() is None


def test_a_tensor_alone_keeps_the_map(tmp_path: Path) -> None:
    tensor = read(tmp_path, raw.tiny()).tensors["w"]
    gc.collect()
    assert tensor.to_bytes() == bytes(range(68))


def test_a_map_without_tensors_goes_at_once(tmp_path: Path) -> None:
    gguf = read(tmp_path, raw.tiny())
    mapped = weakref.ref(gguf.tensors._maps[0])
    gguf.close()
    assert mapped() is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "cannot be opened: No such file"),
        (lambda path: path.mkdir(), "not a regular file"),
        (lambda path: path.touch(), "empty"),
    ],
)
def test_paths_that_cannot_be_read(tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path / "a.gguf")
    with pytest.raises(FewbitError, match=message):
        read_gguf(tmp_path / "a.gguf")


def test_path_with_a_zero_byte() -> None:
    with pytest.raises(PathError, match="null byte"):
        read_gguf("a\0b")


def plain_ends(data: bytes, at: int, count: int) -> list[int]:
    ends = []
    for _ in range(count):
        at += 8 + int.from_bytes(data[at : at + 8], "little")
        ends.append(at)
    return ends


@given(st.lists(st.one_of(st.text(max_size=20), st.sampled_from(["", "\0" * 8, "\1" + "\0" * 7, "x" * 256]))))
def test_string_arrays(strings: list[str]) -> None:
    packed = StringArray.pack(strings)
    assert packed.tolist() == strings
    assert packed == strings
    assert string_ends(packed.data, 0, len(packed.data), len(strings)).tolist() == plain_ends(
        packed.data, 0, len(strings)
    )


def test_many_strings_with_odd_ones_between() -> None:
    rng = np.random.default_rng(0)
    strings = ["w" * int(n) for n in rng.integers(1, 20, 150_000)]
    for at in rng.integers(0, len(strings), 30):
        strings[at] = ["", "\0" * 20, "y" * 70_000, "z" * 256][at % 4]
    packed = StringArray.pack(strings)
    before, after = b"\5" * 3, b"\0" * 50
    data = before + packed.data + after
    found = string_ends(data, 3, len(data), len(strings))
    assert found.tolist() == plain_ends(data, 3, len(strings))
    assert string_ends(data, 3, len(data) - 60, len(strings)).size < len(strings)


def test_string_arrays_are_sequences(tmp_path: Path) -> None:
    words = read(tmp_path, raw.file(raw.ARRAYS)).metadata["words"]
    assert (len(words), words[0], words[-1], words[1:3]) == (4, "few", "ä", ["", "bits"])
    assert "bits" in words
    assert words.index("bits") == 2
    assert repr(words) == "<4 strings: 'few', '', 'bits', ...>"
    assert words != 3
    with pytest.raises(IndexError):
        words[4]


def test_bad_text_in_an_array_is_found_when_it_is_read(tmp_path: Path) -> None:
    words = read(tmp_path, raw.seeds()["bad-utf8"]).metadata["words"]
    assert words[0] == "ok"
    for take in (lambda: words[1], words.tolist):
        with pytest.raises(FileError, match=r"a\.gguf: metadata key 'words': entry 1 is not UTF-8 text"):
            take()

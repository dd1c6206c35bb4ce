from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewbit.errors import FewbitError, FileError, PathError
from fewbit.files.gguf import read_gguf, summary, write_gguf


def write_parts(folder: Path, count: int = 3, **changes: Any) -> list[Path]:
    """A model in parts, with one tensor in each but the first. `changes` go into the metadata of the second part."""
    paths = [folder / f"m-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    for i, path in enumerate(paths):
        split = {
            "split.no": np.uint16(i),
            "split.count": np.uint16(count),
            "split.tensors.count": np.int32(count - 1),
        }
        split |= changes if i == 1 else {}
        metadata = {"general.name": "m"} if i == 0 else {}
        tensors = {f"t{i}": np.full((2, 32), i, np.float32)} if i else {}
        write_gguf(path, metadata | {key: value for key, value in split.items() if value is not None}, tensors)
    return paths


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_will_do(tmp_path: Path, given: int) -> None:
    paths = write_parts(tmp_path)
    gguf = read_gguf(paths[given])
    assert list(gguf.paths) == paths
    assert dict(gguf.metadata) == {"general.name": "m"}
    assert [info.part for info in gguf.infos.values()] == [1, 2]
    assert [gguf.tensors[name].dequantize()[0, 0] for name in gguf.tensors] == [1, 2]
    assert repr(gguf) == "<GGUF m-00001-of-00003.gguf and 2 more: version 3, 1 metadata keys, 2 tensors>"
    assert summary(gguf)["file_bytes"] == sum(path.stat().st_size for path in paths)
    assert summary(gguf)["tensors"][1]["file"] == 2


def test_a_joined_model_can_be_written_as_one(tmp_path: Path) -> None:
    gguf = read_gguf(write_parts(tmp_path)[0])
    write_gguf(tmp_path / "one.gguf", gguf.typed_metadata, gguf.tensors)
    assert list(read_gguf(tmp_path / "one.gguf").tensors) == ["t1", "t2"]


def test_one_part_of_one(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00001.gguf"
    write_gguf(path, {"split.count": np.uint16(1)}, {"w": np.ones(3, np.float32)})
    assert len(read_gguf(path).tensors) == 1
    write_gguf(path, {}, {"w": np.ones(3, np.float32)})
    assert read_gguf(path).tensors["w"].nbytes == 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split.count": np.uint16(4)}, r"00002-of-00003.gguf: split.count is 4, .* part 2 of 3: 3"),
        ({"split.no": np.uint16(2)}, r"split.no is 2, but the file name says part 2 of 3: 1"),
        ({"split.no": None}, "split.no must be a whole number, it is missing"),
        ({"split.count": None}, "split.count must be a whole number, it is missing"),
        ({"split.no": "1"}, "split.no must be a whole number, it is '1'"),
        ({"split.tensors.count": np.int32(7)}, "split.tensors.count is 7, the 3 files have 2 tensors"),
    ],
)
def test_parts_that_disagree(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FileError, match=message):
        read_gguf(write_parts(tmp_path, **changes)[0])


def test_the_given_part_is_checked_too(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, **{"split.count": np.uint16(4)})
    with pytest.raises(FileError, match=r"split.count says 4, the name says 3"):
        read_gguf(paths[1])


def test_missing_parts_are_named(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, 6)
    paths[3].unlink()
    with pytest.raises(PathError, match=r"6 parts, not found: m-00004-of-00006.gguf$"):
        read_gguf(paths[0])
    for path in (paths[1], paths[2], paths[5]):
        path.unlink()
    with pytest.raises(PathError, match=r"m-00004-of-00006.gguf and 1 more$"):
        read_gguf(paths[0])


def test_one_tensor_in_two_parts(tmp_path: Path) -> None:
    paths = write_parts(tmp_path)
    gguf = read_gguf(paths[0])
    split = {"split.no": np.uint16(2), "split.count": np.uint16(3), "split.tensors.count": np.int32(2)}
    write_gguf(paths[2], split, {"t1": gguf.tensors["t1"]})
    with pytest.raises(FileError, match=r"tensor 't1' is in m-00002-of-00003.gguf and in m-00003-of-00003.gguf"):
        read_gguf(paths[0])


def test_a_damaged_part(tmp_path: Path) -> None:
    paths = write_parts(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-300])
    with pytest.raises(FileError, match=r"m-00003-of-00003.gguf: .* reaches past"):
        read_gguf(paths[0])


@pytest.mark.parametrize("name", ["m.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-00001-of-00002.gguf"])
def test_names_that_do_not_fit(tmp_path: Path, name: str) -> None:
    paths = write_parts(tmp_path)
    with pytest.raises(FewbitError, match=r"the file name says|the name says"):
        read_gguf(paths[0].rename(tmp_path / name))


def test_a_name_with_parts_for_a_whole_file(tmp_path: Path) -> None:
    for name, message in (("m-00001-of-00002.gguf", "split.count says 1"), ("m-00005-of-00001.gguf", "part 5 of 1")):
        write_gguf(tmp_path / name, {}, {"w": np.ones(3, np.float32)})
        with pytest.raises(FileError, match=message):
            read_gguf(tmp_path / name)

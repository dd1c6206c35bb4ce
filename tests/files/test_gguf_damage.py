"""Damaged and hostile files: a clear error, and little memory."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fewbit.errors import FewbitError, FileError

from . import gguf_bytes as raw

HUGE = [2**31 + 2**61, 2**63, 2**64 - 1]
START = b"GGUF" + raw.u32(3)
W = raw.record("w", (32,), 0, 0)
DATA = bytes(256)


def tensor(dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return raw.file([], [raw.record("w", dims, kind, offset)], DATA)


def value(kind: int, coded: bytes) -> bytes:
    return raw.file([raw.pair("k", kind, coded)])


DAMAGED = {
    "magic": (b"GGML" + bytes(40), r"not a GGUF file .it starts with b'GGML'"),
    "short": (b"GG", r"not a GGUF file .it starts with b'GG'"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
    "version 1": (raw.seeds()["version1"], r"unsupported GGUF version 1; fewbit reads versions 2 and 3"),
    "version 4": (raw.file(version=4), "unsupported GGUF version 4"),
    "version 0": (raw.file(version=0), "unsupported GGUF version 0"),
    "big-endian": (raw.seeds()["big-endian"], "big-endian"),
    "no counts": (START, "the number of tensors of 8 bytes reaches past the 8 bytes of the file"),
    "tensors": (START + raw.u64(2**63) + raw.u64(0), "9223372036854775808 tensors do not fit: 8 bytes follow"),
    "pairs": (START + raw.u64(0) + raw.u64(1000) + bytes(99), "1000 metadata pairs do not fit"),
    "long key": (raw.file([raw.pair("k" * 70_000, raw.U8, 1)]), "key of metadata pair 0 has 70000 bytes"),
    "key past the end": (START + raw.u64(0) + raw.u64(1) + raw.u64(999) + bytes(40), "key of metadata pair 0 of 999"),
    "bad key": (raw.file([raw.pair(b"\xff", raw.U8, 1)]), "not UTF-8 text"),
    "same key": (raw.file([raw.pair("k", raw.U8, 1)] * 2), r"key 'k' occurs twice \(byte 38\)"),
    "type": (value(13, b"\0"), "key 'k' has the unknown type 13"),
    "bool": (value(raw.BOOL, b"\2"), "a bool that is 2"),
    "bools": (value(raw.ARRAY, raw.u32(raw.BOOL) + raw.u64(2) + b"\1\7"), "a bool that is 7"),
    "string": (value(raw.STRING, raw.u64(2**63) + b"x"), "key 'k' has 9223372036854775808 bytes, at most"),
    "bad string": (value(raw.STRING, raw.text(b"ab\x80")), "key 'k' is not UTF-8 text"),
    "number": (value(raw.U64, b"\0"), "key 'k' of 8 bytes reaches past"),
    "array type": (value(raw.ARRAY, raw.u32(99) + raw.u64(0)), "array of the unknown type 99"),
    "array count": (value(raw.ARRAY, raw.u32(raw.U8) + raw.u64(2**62)), "numbers in metadata key 'k' do not fit"),
    "strings count": (value(raw.ARRAY, raw.u32(raw.STRING) + raw.u64(3) + bytes(16)), "3 strings in .* do not fit"),
    "strings end": (value(raw.ARRAY, raw.u32(raw.STRING) + raw.u64(2) + bytes(8) + b"\x05" + bytes(7)), "entry 1 of"),
    "arrays": (value(raw.ARRAY, raw.u32(raw.ARRAY) + raw.u64(2**62) + bytes(99)), "arrays in .* do not fit"),
    "deep": (raw.seeds()["deep"], "more than 4 deep"),
    "alignment 0": (raw.file([raw.pair("general.alignment", raw.U32, 0)]), "alignment is 0, not a power of two"),
    "alignment 48": (raw.file([raw.pair("general.alignment", raw.U32, 48)]), "alignment is 48"),
    "alignment -8": (raw.file([raw.pair("general.alignment", raw.I32, -8)]), "alignment is -8"),
    "alignment text": (raw.file([raw.pair("general.alignment", raw.STRING, "32")]), "alignment is '32'"),
    "no dims": (tensor(()), "tensor 'w' has 0 dimensions"),
    "five dims": (tensor((1,) * 5), "tensor 'w' has 5 dimensions"),
    "zero dim": (tensor((32, 0)), "of 0x32 has no values"),
    "overflow": (tensor((2**32, 2**31)), "of 2147483648x4294967296 has 2\\^63 or more values"),
    "wraps": (tensor((2**63, 2, 2**63, 2)), "2\\^63 or more"),
    "block": (tensor((33,), 8), "of 33: rows of q8_0 hold a multiple of 32 values"),
    "tensor type": (tensor((32,), 4), "unknown GGUF tensor type 4"),
    "past the end": (tensor((65,)), "of 260 bytes reaches past"),
    "offset": (tensor((32,), 0, 2**63), "reaches past"),
    "offset and size": (tensor((32,), 0, 2**64 - 32), "reaches past"),
    "unaligned": (tensor((32,), 0, 8), "starts at 8 in the data, which is not a multiple of the alignment 32"),
    "same tensor": (raw.file([], [W, W], DATA), "tensor 'w' occurs twice"),
    "overlap": (raw.seeds()["overlap"], "tensors 'a' and 'b' overlap"),
    "no data": (raw.file([], [W]), "of 128 bytes reaches past"),
    "wide alignment": (raw.file([raw.pair("general.alignment", raw.U32, 2**31)], [W], DATA), "reaches past"),
    "split": (raw.seeds()["split"], r"split.count says 2, the name says 1; .* NAME-00001-of-000NN.gguf"),
    "split count": (
        raw.file([raw.pair("split.count", raw.STRING, "2")]),
        "split.count must be a whole number, it is '2'",
    ),
}


@contextlib.contextmanager
def little_memory(limit: int = 8 << 20) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def bear(path: Path, data: bytes) -> bool:
    """Was it read? If not, it must have been for a FewbitError."""
    path.write_bytes(data)
    try:
        gguf = raw.read_all(path)
    except FewbitError:
        return False
    raw.check_again(gguf, path.with_name("again.gguf"))
    return True


@pytest.mark.parametrize("what", DAMAGED)
def test_errors_say_what_is_wrong(tmp_path: Path, what: str) -> None:
    data, message = DAMAGED[what]
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    with little_memory(), pytest.raises(FileError, match=message) as caught:
        raw.read_all(path)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 500 + len(str(path))


@pytest.mark.parametrize("version", [2, 3])
def test_truncated_at_every_byte(tmp_path: Path, version: int) -> None:
    whole = raw.tiny()
    whole = whole[:4] + raw.u32(version) + whole[8:]
    read = [size for size in range(len(whole) + 1) if bear(tmp_path / "a.gguf", whole[:size])]
    assert read == [len(whole)]


def test_every_byte_changed(tmp_path: Path) -> None:
    whole = raw.tiny()
    with little_memory():
        for at in range(len(whole)):
            for byte in {0, 0xFF, whole[at] ^ 1, whole[at] ^ 0x80}:
                bear(tmp_path / "a.gguf", whole[:at] + bytes([byte]) + whole[at + 1 :])


@pytest.mark.parametrize("size", [4, 8])
def test_every_number_huge(tmp_path: Path, size: int) -> None:
    whole = raw.tiny()
    with little_memory():
        for at in range(len(whole) - size):
            for number in HUGE:
                coded = (number % (1 << 8 * size)).to_bytes(size, "little")
                bear(tmp_path / "a.gguf", whole[:at] + coded + whole[at + size :])


@pytest.mark.parametrize("kind", [raw.U8, raw.F64, raw.STRING, raw.ARRAY])
def test_a_large_hole_is_not_read(tmp_path: Path, kind: int) -> None:
    """A file that is large for nothing: no count in it may be believed beyond what a header may take."""
    path = tmp_path / "a.gguf"
    with path.open("wb") as file:
        file.write(START + raw.u64(0) + raw.u64(1) + raw.pair("k", raw.ARRAY, raw.u32(kind) + raw.u64(2**33)))
        file.truncate(1 << 40)
    with little_memory(), pytest.raises(FileError, match=r"8589934592 .* do not fit"):
        raw.read_all(path)


def test_a_string_longer_than_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    with path.open("wb") as file:
        file.write(START + raw.u64(0) + raw.u64(1) + raw.pair("k", raw.STRING, raw.u64(2**31)))
        file.truncate(1 << 40)
    with little_memory(), pytest.raises(FileError, match="at most 134217728 are allowed"):
        raw.read_all(path)


def test_many_nested_arrays(tmp_path: Path) -> None:
    empty = raw.array(raw.U8, [])
    nested = raw.u32(raw.ARRAY) + raw.u64(70_000) + empty * 70_000
    path = tmp_path / "a.gguf"
    path.write_bytes(value(raw.ARRAY, nested))
    with little_memory(), pytest.raises(FileError, match="the limit is 65536"):
        raw.read_all(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_mutations(tmp_path: Path, data: st.DataObject) -> None:
    """Pieces of valid files with bytes changed, cut out and put in."""
    whole = bytearray(raw.seeds()[data.draw(st.sampled_from(sorted(raw.seeds())))])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole)))
        cut = data.draw(st.sampled_from([0, 0, 1, 4, 8, 20]))
        whole[at : at + cut] = data.draw(st.one_of(st.binary(max_size=12), st.sampled_from(HUGE).map(raw.u64)))
    with little_memory():
        bear(tmp_path / "a.gguf", bytes(whole))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_anything_after_the_version(tmp_path: Path, rest: bytes) -> None:
    bear(tmp_path / "a.gguf", START + rest)


@pytest.mark.parametrize("path", sorted(raw.CORPUS.glob("*.gguf")), ids=lambda path: path.name)
def test_corpus(tmp_path: Path, path: Path) -> None:
    with little_memory():
        bear(tmp_path / "a.gguf", path.read_bytes())

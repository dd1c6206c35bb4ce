"""GGUF files put together by hand, byte by byte, and what a reader must bear with any of them."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.errors import DataError
from fewbit.files.gguf import GGUF, StringArray, read_gguf, summary, write_gguf

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = dict(zip((U8, I8, U16, I16, U32, I32, F32, BOOL, U64, I64, F64), "BbHhIif?Qqd", strict=True))
CORPUS = Path(__file__).with_name("corpus")


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    coded = value.encode() if isinstance(value, str) else value
    return u64(len(coded)) + coded


def pair(key: str | bytes, kind: int, value: Any) -> bytes:
    """A metadata pair; bytes are taken as they are, a str only for strings."""
    if isinstance(value, str):
        value = text(value)
    elif not isinstance(value, bytes):
        value = struct.pack("<" + CODES[kind], value)
    return text(key) + u32(kind) + value


def array(kind: int, values: Sequence[Any]) -> bytes:
    items = b"".join(
        value if isinstance(value, bytes) else text(value) if kind == STRING else struct.pack("<" + CODES[kind], value)
        for value in values
    )
    return u32(kind) + u64(len(values)) + items


def record(name: str | bytes, dims: Sequence[int], kind: int, offset: int) -> bytes:
    """A tensor record; dims fastest first."""
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def file(
    pairs: Sequence[bytes] = (), records: Sequence[bytes] = (), data: bytes = b"", alignment: int = 32, version: int = 3
) -> bytes:
    """A whole file."""
    header = b"GGUF" + u32(version) + u64(len(records)) + u64(len(pairs)) + b"".join(pairs) + b"".join(records)
    return header + bytes(-len(header) % alignment) + data if data else header


SCALARS = [
    pair("u8", U8, 255), pair("i8", I8, -128), pair("u16", U16, 65535), pair("i16", I16, -32768),
    pair("u32", U32, 2**32 - 1), pair("i32", I32, -(2**31)), pair("f32", F32, 0.5), pair("bool", BOOL, True),
    pair("string", STRING, "äöü 漢字 🙂"), pair("u64", U64, 2**64 - 1), pair("i64", I64, -(2**63)),
    pair("f64", F64, 1e300),
]  # fmt: skip

ARRAYS = [
    pair("numbers", ARRAY, array(I32, [1, -2, 3])),
    pair("flags", ARRAY, array(BOOL, [True, False])),
    pair("words", ARRAY, array(STRING, ["few", "", "bits", "ä"])),
    pair("none", ARRAY, array(F32, [])),
    pair("nested", ARRAY, array(ARRAY, [array(U8, [1, 2]), array(STRING, ["a"]), array(ARRAY, [array(I8, [-1])])])),
]


def tiny() -> bytes:
    """A small file with a bit of everything."""
    pairs = [
        pair("a", U32, 7),
        pair("b", STRING, "x"),
        pair("c", ARRAY, array(STRING, ["p", "q"])),
        pair("d", ARRAY, array(BOOL, [True])),
        pair("e", ARRAY, array(ARRAY, [array(U8, [1])])),
    ]
    records = [record("w", (32, 2), 8, 0), record("n", (3,), 0, 96)]
    return file(pairs, records, bytes(range(68)) + bytes(28) + np.arange(3, dtype="<f4").tobytes())


def seeds() -> dict[str, bytes]:
    """Files that take many ways through the reader."""
    words = [f"token{i}" * (1 + i % 3) for i in range(40)]
    odd = ["", "", "\0" * 9, "x" * 300, "a", "\1" + "\0" * 7, "漢" * 50]
    return {
        "tiny": tiny(),
        "empty": file(),
        "version2": file([pair("a", U8, 1)], version=2),
        "version1": file([pair("a", U8, 1)], version=1),
        "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        "scalars": file(SCALARS),
        "arrays": file(ARRAYS),
        "words": file([pair("words", ARRAY, array(STRING, words))]),
        "odd-words": file([pair("words", ARRAY, array(STRING, odd * 3))]),
        "bad-utf8": file([pair("words", ARRAY, array(STRING, [text("ok"), text(b"\xff\xfe")]))]),
        "deep": file([pair("deep", ARRAY, u32(ARRAY) + u64(1) + (u32(ARRAY) + u64(1)) * 40 + array(U8, [1]))]),
        "aligned": file(
            [pair("general.alignment", U32, 64)],
            [record("a", (4,), 1, 0), record("b", (256, 1, 2), 12, 64)],
            bytes(64 + 288),
            64,
        ),
        "unaligned": file([pair("general.alignment", U32, 1)], [record("a", (3,), 24, 0)], b"abc", 1),
        "overlap": file([], [record("a", (32,), 0, 0), record("b", (32,), 0, 64)], bytes(256)),
        "split": file([pair("split.no", U16, 0), pair("split.count", U16, 2), pair("split.tensors.count", I32, 1)]),
        "types": file(
            [],
            [record(f"t{i}", (256,), kind, 2048 * i) for i, kind in enumerate((0, 2, 8, 14, 23, 28, 30, 34, 39))],
            bytes(2048 * 9),
        ),
    }


def read_all(path: Path) -> GGUF:
    """Read a file and touch all that it holds; whatever is wrong must be a FewbitError."""
    gguf = read_gguf(path)
    for value in gguf.metadata.values():
        if isinstance(value, StringArray):
            assert len(value.tolist()) == len(value)
    for name, info in gguf.infos.items():
        tensor = gguf.tensors[name]
        assert tensor.nbytes == info.nbytes
        assert int(tensor.data[0]) + int(tensor.data[-1]) >= 0
    json.dumps(summary(gguf), allow_nan=False)
    return gguf


def check_again(gguf: GGUF, path: Path) -> None:
    """Write what was read to another file; the same must be read from it."""
    try:
        write_gguf(path, gguf.typed_metadata, gguf.tensors)
    except DataError as error:
        if "empty list" in str(error) or "at most 63" in str(error):  # may be read, but not written
            return
        raise
    try:
        again = read_gguf(path)
        left = {key: value for key, value in gguf.typed_metadata.items() if key != "general.alignment"}
        assert same(left, dict(again.typed_metadata))
        assert list(gguf.infos) == list(again.infos)
        assert all(gguf.tensors[name] == again.tensors[name] for name in gguf.infos)
    finally:
        os.unlink(path)


def same(a: Any, b: Any) -> bool:
    """Equal values of equal types; a NaN equals itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return bool(a == b)

"""Sequences in files: what comes back, and files that are damaged, foreign or hostile."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewbit.cache.kv import KVCache
from fewbit.cache.save import CHECKSUM_BYTES, HEADER, MAGIC
from fewbit.errors import FileError, OutOfPages, PathError
from fewbit.ops import attention

KV_HEADS, DIM = 2, 48


def make_cache(**options: Any) -> KVCache:
    options = {"layers": 2, "kv_heads": KV_HEADS, "dim": DIM, "pages": 16, "page_tokens": 8, "k": "q8_0"} | options
    return KVCache(**options, backend=attention)


def filled(cache: KVCache, length: int, committed: int, seed: int = 0) -> int:
    rng = np.random.default_rng(seed)
    sequence = cache.new()
    cache.extend(sequence, length)
    for layer in range(cache.layout.layers):
        cache.append(layer, sequence, *rng.standard_normal((2, length, KV_HEADS, DIM), np.float32))
    cache.commit(sequence, range(committed))
    return sequence


def content(cache: KVCache, sequence: int) -> list[bytes]:
    table, length = cache._pages.table(sequence), cache.length(sequence)
    return [
        b"".join(store.read(page, 1 << 30).tobytes() for page in table)[: length * KV_HEADS * store.row_bytes]
        for store in cache._stores()
    ]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    cache = make_cache()
    cache.save(filled(cache, 21, 19), tmp_path / "a.kv")
    return tmp_path / "a.kv"


@pytest.mark.parametrize("page_tokens", [1, 8, 32])
@pytest.mark.parametrize(("length", "committed"), [(0, 0), (1, 1), (16, 16), (21, 19), (21, 0)])
@pytest.mark.parametrize("k", ["q4_0", "f16"])
def test_round_trip(tmp_path: Path, k: str, length: int, committed: int, page_tokens: int) -> None:
    cache = make_cache(k=k, v="q8_0")
    a = filled(cache, length, committed)
    cache.save(a, tmp_path / "a.kv")
    other = make_cache(k=k, v="q8_0", page_tokens=page_tokens, pages=64)
    filled(other, 3, 0, seed=1)
    b = other.load(tmp_path / "a.kv")
    assert (other.length(b), other.committed(b)) == (length, committed)
    assert content(other, b) == content(cache, a)
    assert other.lookup(range(committed)) == committed // page_tokens * page_tokens
    assert os.listdir(tmp_path) == ["a.kv"]
    other.extend(b, 1)  # and on it goes
    other.append(0, b, *np.ones((2, 1, KV_HEADS, DIM), np.float32))
    assert other.attend(0, b, np.ones((1, 4, DIM), np.float32)).shape == (1, 4, DIM)


def test_known_pages_are_shared_and_not_read(saved: Path) -> None:
    cache = make_cache(pages=4)
    a, b = cache.load(saved), cache.load(saved)
    assert cache.stats().used == 4
    assert cache._pages.table(a)[:2] == cache._pages.table(b)[:2]
    assert content(cache, a) == content(cache, b)


def test_file_holds_nothing_of_earlier_owners(tmp_path: Path) -> None:
    files = []
    for seed in (1, 2):
        cache = make_cache(pages=2)
        cache.free(filled(cache, 16, 0, seed))
        cache.save(filled(cache, 3, 3), tmp_path / "a.kv")
        files.append((tmp_path / "a.kv").read_bytes())
    assert files[0] == files[1]


def test_a_full_cache_stays_as_it_was(saved: Path) -> None:
    cache = make_cache(pages=3)
    a = filled(cache, 10, 10, seed=3)
    before = content(cache, a), cache.stats()
    with pytest.raises(OutOfPages, match="needed: 2, free or evictable: 1"):
        cache.load(saved)  # its first page is known by its tokens
    assert content(cache, a) == before[0]
    assert (cache.stats().used, cache.stats().references) == (before[1].used, before[1].references)


def refuse(path: Path, sentence: str | None = None, **options: Any) -> None:
    cache = make_cache(**options)
    with pytest.raises(FileError, match=sentence):
        cache.load(path)
    assert cache.stats() == make_cache(**options).stats()
    assert not cache._new


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"layers": 3}, "saved with layers = 2, this cache has layers = 3"),
        ({"kv_heads": 4}, "kv_heads = 2"),
        ({"dim": 64}, "dim = 48, this cache has dim = 64"),
        ({"rotate": True}, "rotate = 0"),
        ({"k": "f16", "v": "q8_0"}, "k = q8_0, this cache has k = f16"),
        ({"v": "f16"}, "v = q8_0"),
    ],
)
def test_another_layout_is_refused(saved: Path, options: dict[str, Any], sentence: str) -> None:
    refuse(saved, sentence, **options)


def test_files_cut_short_or_too_long(saved: Path) -> None:
    data = saved.read_bytes()
    tokens_end = HEADER.size + 4 * 19
    ends = [0, 1, 7, 8, 12, HEADER.size - 1, HEADER.size, HEADER.size + 5, tokens_end, tokens_end + 1]
    ends += [len(data) // 2, len(data) - CHECKSUM_BYTES - 1, len(data) - CHECKSUM_BYTES, len(data) - 1]
    for damaged in [*(data[:end] for end in ends), data + b"\0", data * 2]:
        saved.write_bytes(damaged)
        refuse(saved, "ends too early|takes .* bytes, the file has")


def test_any_flipped_bit_is_noticed(saved: Path) -> None:
    data = saved.read_bytes()
    places = [*range(HEADER.size + 40), *range(HEADER.size + 40, len(data), 97), *range(len(data) - 20, len(data))]
    rng = np.random.default_rng(0)
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(rng.integers(8))
        saved.write_bytes(damaged)
        refuse(saved)


def signed(data: bytes) -> bytes:
    return data + blake2b(data, digest_size=CHECKSUM_BYTES).digest()


@pytest.mark.parametrize(
    ("length", "count", "sentence"),
    [
        (2**64 - 1, 0, "takes .* bytes, the file has"),
        (2**64 - 1, 2**64 - 1, "takes .* bytes, the file has"),
        (2**40, 19, "takes .* bytes, the file has"),
        (21, 22, "22 tokens of 21 were committed"),
        (0, 2**63, "were committed"),
        (20, 19, "takes .* bytes, the file has"),
    ],
)
def test_numbers_that_lie(saved: Path, length: int, count: int, sentence: str) -> None:
    data = saved.read_bytes()
    fields = HEADER.unpack(data[: HEADER.size])[:-2]
    header = HEADER.pack(*fields, length, count)
    saved.write_bytes(signed(header + data[HEADER.size : -CHECKSUM_BYTES]))
    refuse(saved, sentence)


def test_foreign_files(saved: Path) -> None:
    body = saved.read_bytes()[:-CHECKSUM_BYTES]
    saved.write_bytes(signed(b"GGUF" + body[4:]))
    refuse(saved, "no saved sequence")
    saved.write_bytes(signed(MAGIC + b"\2\0\0\0" + body[12:]))
    refuse(saved, "version 2 of saved sequences is not read, only version 1")


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    cache = make_cache()
    a = filled(cache, 5, 5)
    for path in (tmp_path / "missing" / "a.kv", tmp_path):
        with pytest.raises(PathError, match="cannot be written"):
            cache.save(a, path)
        with pytest.raises(PathError, match="no such file"):
            cache.load(path)
    assert not os.listdir(tmp_path)

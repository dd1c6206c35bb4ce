"""Sequences in files: what comes back, and files that are damaged, foreign or hostile."""

from __future__ import annotations

import json
import os
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewbit.cache.kv import KVCache
from fewbit.cache.save import CHECKSUM_BYTES, MAGIC, START
from fewbit.errors import FileError, OutOfPages, PathError
from fewbit.ops import attention
from fewbit.ops.specs import AttentionSpec, LayerSpec, RecurrentSpec

KV_HEADS, DIM = 2, 48


def make_cache(**options: Any) -> KVCache:
    options = {"layers": 2, "kv_heads": KV_HEADS, "dim": DIM, "pages": 16, "page_tokens": 8, "k": "q8_0"} | options
    return KVCache(**options, kernels=attention)


def filled(cache: KVCache, length: int, committed: int, seed: int = 0) -> int:
    rng = np.random.default_rng(seed)
    sequence = cache.new()
    step = cache.reserve([(sequence, length)])
    for layer in range(len(cache.layout.specs)):
        cache.append(layer, step, *rng.standard_normal((2, length, KV_HEADS, DIM), np.float32))
    cache.commit(sequence, range(committed))
    return sequence


def content(cache: KVCache, sequence: int) -> list[bytes]:
    """K and V of each layer, all tokens in a row."""
    table, length = cache.table(sequence), cache.length(sequence)
    parts: list[bytes] = []
    for layer in range(len(cache.layout.specs)):
        pages = [cache.store.read(layer, page, 1 << 30) for page in table]
        parts += [b"".join(rows.tobytes() for rows in part) for part in zip(*pages, strict=True)]
    widths = cache.layout.row_bytes(cache.layout.attention(0))
    return [part[: length * KV_HEADS * widths[number % 2]] for number, part in enumerate(parts)]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    cache = make_cache()
    cache.save(filled(cache, 21, 19), tmp_path / "a.kv")
    return tmp_path / "a.kv"


@pytest.mark.parametrize("page_tokens", [1, 8, 32])
@pytest.mark.parametrize(("length", "committed"), [(0, 0), (1, 1), (16, 16), (21, 19), (21, 0)])
@pytest.mark.parametrize("k", ["q4_0", "f16", "f8_e4m3"])
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
    step = other.reserve([(b, 1)])  # and on it goes
    other.append(0, step, *np.ones((2, 1, KV_HEADS, DIM), np.float32))
    assert other.attend(0, step, np.ones((1, 4, DIM), np.float32)).shape == (1, 4, DIM)


def test_known_pages_are_shared_and_not_read(saved: Path) -> None:
    cache = make_cache(pages=4)
    a, b = cache.load(saved), cache.load(saved)
    assert cache.stats().used == 4
    assert cache.table(a)[:2] == cache.table(b)[:2]
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
    assert not cache._sequences


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"layers": 3}, "saved with layers = 2, this cache has layers = 3"),
        ({"kv_heads": 4}, "saved with {'kv_heads': 2, .*} in layer 0, this cache keeps {'kv_heads': 4, "),
        ({"dim": 64}, "'k_dim': 48, .* 'k_dim': 64"),
        ({"v_dim": 16}, "'v_dim': 48, .* 'v_dim': 16"),
        ({"window": 5}, "'window': 0, .* 'window': 5, "),
        ({"rotate": True}, "rotate = False"),
        ({"k": "f16", "v": "q8_0"}, "k = q8_0, this cache has k = f16"),
        ({"v": "f16"}, "v = q8_0"),
    ],
)
def test_another_layout_is_refused(saved: Path, options: dict[str, Any], sentence: str) -> None:
    refuse(saved, sentence, **options)


def test_files_cut_short_or_too_long(saved: Path) -> None:
    data = saved.read_bytes()
    header_end = len(data) - CHECKSUM_BYTES - 21 * 2 * KV_HEADS * 2 * 68 - 4 * 19
    tokens_end = header_end + 4 * 19
    ends = [0, 1, 7, 8, 12, START.size - 1, START.size, header_end - 1, header_end, header_end + 5]
    ends += [tokens_end, tokens_end + 1]
    ends += [len(data) // 2, len(data) - CHECKSUM_BYTES - 1, len(data) - CHECKSUM_BYTES, len(data) - 1]
    for damaged in [*(data[:end] for end in ends), data + b"\0", data * 2]:
        saved.write_bytes(damaged)
        refuse(saved, "ends too early|takes .* bytes, the file has")


def test_any_flipped_bit_is_noticed(saved: Path) -> None:
    data = saved.read_bytes()
    places = [*range(START.size + 80), *range(START.size + 80, len(data), 97), *range(len(data) - 20, len(data))]
    rng = np.random.default_rng(0)
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(rng.integers(8))
        saved.write_bytes(damaged)
        refuse(saved)


def signed(data: bytes) -> bytes:
    return data + blake2b(data, digest_size=CHECKSUM_BYTES).digest()


def forge(path: Path, header: object, **changes: Any) -> None:
    """The same file with another header; it can be changed, or be anything."""
    data = path.read_bytes()
    end = START.size + START.unpack(data[: START.size])[2]
    if header is None:
        header = json.loads(data[START.size : end]) | changes
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(signed(START.pack(MAGIC, 2, len(text)) + text + data[end:-CHECKSUM_BYTES]))


@pytest.mark.parametrize(
    ("length", "count", "sentence"),
    [
        (2**64 - 1, 0, "takes .* bytes, the file has"),
        (2**64 - 1, 2**64 - 1, "takes .* bytes, the file has"),
        (10**300, 19, "takes .* bytes, the file has"),
        (21, 22, "22 of 21 tokens cannot be committed"),
        (0, 2**63, "tokens cannot be committed"),
        (20, 19, "takes .* bytes, the file has"),
        (-1, -1, "lacks numbers"),
        (21, True, "lacks numbers"),
        (21.0, 19, "lacks numbers"),
        ("21", 19, "lacks numbers"),
        (None, None, "lacks numbers"),
    ],
)
def test_numbers_that_lie(saved: Path, length: Any, count: Any, sentence: str) -> None:
    forge(saved, None, length=length, tokens=count)
    refuse(saved, sentence)


@pytest.mark.parametrize(
    "changes",
    [
        {"starts": []},
        {"starts": [1]},
        {"starts": [0, 0]},
        {"starts": 0},
        {"starts": [-1]},
        {"specs": None},
        {"specs": [None, None]},
        {"specs": [{}]},
        {"specs": [1, 2]},
        {"k": ["q8_0"]},
        {"rotate": 0},
        {"fingerprint": None},
    ],
)
def test_headers_that_lie(saved: Path, changes: dict[str, Any]) -> None:
    forge(saved, None, **changes)
    refuse(saved)


@pytest.mark.parametrize(
    "header", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100000, b'{"length": ' + b"9" * 5000 + b"}", {}]
)
def test_headers_that_are_none(saved: Path, header: Any) -> None:
    forge(saved, header)
    refuse(saved)


def test_foreign_files(saved: Path) -> None:
    body = saved.read_bytes()[:-CHECKSUM_BYTES]
    saved.write_bytes(signed(b"GGUF" + body[4:]))
    refuse(saved, "not a saved sequence")
    saved.write_bytes(signed(MAGIC + b"\1\0\0\0" + body[12:]))
    refuse(saved, "unsupported version 1 of saved sequences; fewbit reads version 2")
    saved.write_bytes(signed(MAGIC + b"\2\0\0\0\xff\xff\xff\xff" + body[16:]))
    refuse(saved, "a header of 4294967295 bytes is too long")


def test_fingerprints_must_match_if_both_give_one(tmp_path: Path) -> None:
    cache = make_cache()
    a = filled(cache, 5, 5)
    cache.save(a, tmp_path / "named.kv", fingerprint="one")
    cache.save(a, tmp_path / "nameless.kv")
    for name, fingerprint in (("named", "one"), ("named", ""), ("nameless", "two")):
        assert make_cache().load(tmp_path / f"{name}.kv", fingerprint=fingerprint)
    with pytest.raises(FileError, match="saved by another model: fingerprint 'one', not 'two'"):
        cache.load(tmp_path / "named.kv", fingerprint="two")


def test_a_cache_gives_its_own_fingerprint(tmp_path: Path) -> None:
    one, two = make_cache(), make_cache()
    one.fingerprint, two.fingerprint = "one", "two"
    one.save(filled(one, 5, 5), tmp_path / "saved.kv")
    assert one.load(tmp_path / "saved.kv")
    assert two.load(tmp_path / "saved.kv", fingerprint="one")
    with pytest.raises(FileError, match="saved by another model: fingerprint 'one', not 'two'"):
        two.load(tmp_path / "saved.kv")


def test_namespace_is_that_of_the_loader(saved: Path) -> None:
    cache = make_cache()
    cache.load(saved, "mine")
    assert (cache.lookup(range(19), "mine"), cache.lookup(range(19))) == (16, 0)


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    cache = make_cache()
    a = filled(cache, 5, 5)
    for path in (tmp_path / "missing" / "a.kv", tmp_path):
        with pytest.raises(PathError, match="cannot be written"):
            cache.save(a, path)
        with pytest.raises(PathError, match="no such file"):
            cache.load(path)
    assert not os.listdir(tmp_path)


MIXED: list[LayerSpec] = [AttentionSpec(1, 32, 64, window=6), None, AttentionSpec(2, 32, 32), RecurrentSpec(8)]


def mixed_cache(page_tokens: int) -> KVCache:
    return KVCache(specs=MIXED, pages=64, page_tokens=page_tokens, k="f32", kernels=attention, max_seqs=4)


def run_mixed(cache: KVCache, text: list[int], step: int) -> int:
    """K and V that are the numbers of their tokens, and a state that is their sum."""
    sequence = cache.new()
    for first in range(0, len(text), step):
        new = text[first : first + step]
        view = cache.reserve([(sequence, len(new))])
        for layer in (0, 2):
            spec = cache.layout.attention(layer)
            k, v = (
                np.repeat(np.array(new, np.float32), spec.kv_heads * dim).reshape(-1, spec.kv_heads, dim)
                for dim in (spec.k_dim, spec.v_dim)
            )
            cache.append(layer, view, k, v)
        states = cache.store.states(3).view(np.int64)
        states[view.writes] = states[view.reads] + sum(new)
        cache.commit(sequence, new)
    return sequence


def check_mixed(cache: KVCache, sequence: int, text: list[int]) -> None:
    state, size = cache.state(sequence), cache.page_tokens
    for layer in (0, 2):
        group = cache.store.group_of(layer)
        assert state.starts[group] <= cache.layout.groups[group].first_seen(len(text))
        for position in range(state.starts[group], len(text)):
            page = cache.store.read(layer, state.tables[group][position // size], size)
            assert all((part[position % size].view(np.float32) == text[position]).all() for part in page)
    assert cache.store.states(3)[state.slot].view(np.int64) == sum(text)


@pytest.mark.parametrize("step", [1, 4, 23])
@pytest.mark.parametrize("page_tokens", [1, 3, 4, 16])
def test_windows_and_states_come_back(tmp_path: Path, page_tokens: int, step: int) -> None:
    text, others = list(range(100, 123)), list(range(30))
    cache, other = mixed_cache(4), mixed_cache(page_tokens)
    cache.save(run_mixed(cache, text, step), tmp_path / "a.kv")
    mine = run_mixed(other, others, 5)
    loaded = [other.load(tmp_path / "a.kv"), other.load(tmp_path / "a.kv"), cache.load(tmp_path / "a.kv", "mine")]
    check_mixed(other, mine, others)
    for sequence in loaded[:2]:
        check_mixed(other, sequence, text)
    check_mixed(cache, loaded[2], text)
    other.save(loaded[0], tmp_path / "b.kv")
    again = cache.load(tmp_path / "b.kv", "again")
    check_mixed(cache, again, text)
    assert cache.load(tmp_path / "b.kv")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"starts": [0, 19]}, "tokens before 19 are missing, which a window of 6 sees"),
        ({"starts": [1, 16]}, "tokens before 1 are missing"),
        ({"starts": [0, 12]}, "takes .* bytes, the file has"),
        ({"tokens": 22}, "22 of 23 tokens cannot be committed"),  # the state would not fit
        ({"starts": [0, 10**30]}, "are missing"),
    ],
)
def test_windows_and_states_that_lie(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    cache, path = mixed_cache(4), tmp_path / "a.kv"
    cache.save(run_mixed(cache, list(range(23)), 4), path)
    forge(path, None, **changes)
    before = cache.stats()
    with pytest.raises(FileError, match=sentence):
        cache.load(path)
    assert cache.stats() == before

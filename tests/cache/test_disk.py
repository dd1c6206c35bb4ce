"""Pages in a folder: what comes back, what is refused, how much is kept, and what a killed process leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fewbit.cache.cache import Cache
from fewbit.cache.disk import CHECKSUM_BYTES, HEADER, DiskCache
from fewbit.cache.layout import make_layout
from fewbit.cache.spill import MIN_PAGES
from fewbit.cache.store import HostStore
from fewbit.errors import DtypeError, PathError, RequestError
from fewbit.ops.specs import AttentionSpec

ROOT = Path(__file__).parents[2]
SPEC = AttentionSpec(kv_heads=2, k_dim=32, v_dim=32)
TEXT = list(range(100, 164))  # 16 pages of 4


def make(folder: Path, pages: int = 64, k: str = "f16", fingerprint: str = "m", **options: object) -> Cache:
    disk = DiskCache(folder, **options)  # type: ignore[arg-type]
    return Cache(HostStore(make_layout([SPEC, SPEC], k, page_tokens=4), [pages]), fingerprint, disk=disk)


def fill(cache: Cache, text: list[int], namespace: str = "") -> None:
    """Run a prompt: the bytes of a token follow from it."""
    sequence = cache.new(text, namespace)
    first = cache.length(sequence)
    view = cache.reserve([(sequence, len(text) - first)])
    for slot, token in zip(view.slots(0).tolist(), text[first:], strict=True):
        for layer in range(2):
            for part in cache.store.kv(layer)[1::2]:
                part[slot // 4, :, slot % 4] = (token * 7 + layer) % 256
    cache.commit(sequence, text[first:])
    cache.free(sequence)


def check(cache: Cache, text: list[int], namespace: str = "") -> int:
    """All that is found is right; how many tokens that is."""
    sequence = cache.new(text, namespace)
    state = cache.state(sequence)
    for position, token in enumerate(text[: cache.length(sequence)]):
        for layer in range(2):
            for part in cache.store.kv(layer)[1::2]:
                row = part[state.tables[0][position // 4], :, position % 4]
                assert (row == (token * 7 + layer) % 256).all()
    cache.free(sequence)
    return len(state.tokens) or cache.lookup(text, namespace)


def fetched(cache: Cache, text: list[int], namespace: str = "") -> int:
    while not cache.fetch(text, namespace):
        pass
    return check(cache, text, namespace)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.page"))


def test_prompts_are_found_after_a_restart(tmp_path: Path) -> None:
    fill(first := make(tmp_path), TEXT)
    first.flush()
    again = make(tmp_path)
    assert again.lookup(TEXT) == 0
    assert fetched(again, [*TEXT[:40], 1, 2, 3, 4, 5]) == 40
    assert fetched(again, TEXT) == 64
    assert again.disk is not None
    assert again.disk.stats().read == 16
    assert again.stats().lookups == 11 + 16  # those of `new`, not of the disk


def test_evicted_pages_come_back(tmp_path: Path) -> None:
    cache = make(tmp_path, pages=20)
    fill(cache, TEXT)
    fill(cache, list(range(64)))
    assert cache.lookup(TEXT) < 64
    assert fetched(cache, TEXT) == 64
    assert fetched(cache, list(range(64))) == 64


def test_other_models_formats_layouts_and_namespaces_find_nothing(tmp_path: Path) -> None:
    fill(first := make(tmp_path), TEXT, "mine")
    first.flush()
    assert fetched(make(tmp_path, fingerprint="n"), TEXT, "mine") == 0
    assert fetched(make(tmp_path, k="q8_0"), TEXT, "mine") == 0
    assert fetched(make(tmp_path, identity="exact"), TEXT, "mine") == 0
    assert fetched(make(tmp_path), TEXT, "yours") == 0
    assert fetched(make(tmp_path), TEXT, "mine") == 64


def test_short_prompts_are_not_written(tmp_path: Path) -> None:
    fill(cache := make(tmp_path), TEXT[: 4 * MIN_PAGES - 1])
    cache.flush()
    assert files(tmp_path) == []
    fill(cache, TEXT[: 4 * MIN_PAGES])
    cache.flush()
    assert len(files(tmp_path)) == MIN_PAGES


@pytest.mark.parametrize("place", [0, 9, 14, 20, 40, 60, 300, -1])
def test_damaged_files_are_removed_and_what_is_before_them_is_used(tmp_path: Path, place: int) -> None:
    fill(first := make(tmp_path), TEXT)
    first.flush()
    for path in files(tmp_path):
        whole = path.read_bytes()
        for broken in (whole[:place], bytes([*whole[:place], whole[place] ^ 4, *whole[place:][1:]]), whole + b"0", b""):
            path.write_bytes(broken)
            cache = make(tmp_path)
            assert fetched(cache, TEXT) < 64
            assert not path.exists()
        path.write_bytes(whole)
    assert fetched(make(tmp_path), TEXT) == 64


def test_a_file_under_the_name_of_another_is_removed(tmp_path: Path) -> None:
    fill(first := make(tmp_path), TEXT)
    first.flush()
    a, b, *_ = files(tmp_path)
    a.write_bytes(b.read_bytes())
    cache = make(tmp_path)
    assert fetched(cache, TEXT) < 64
    assert not a.exists()
    assert b.exists()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / f"{'0' * 64}-0.page").mkdir()
    fill(cache := make(tmp_path, max_bytes=0), TEXT)
    cache.flush()
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", f"{'0' * 64}-0.page"}


def test_the_longest_unused_goes_first_and_ends_before_beginnings(tmp_path: Path) -> None:
    texts = [[*range(i, i + 64)] for i in (0, 100, 200)]
    fill(first := make(tmp_path), texts[0])
    first.flush()
    size = files(tmp_path)[0].stat().st_size
    cache = make(tmp_path, max_bytes=36 * size)
    fill(cache, texts[1])
    cache.flush()
    assert fetched(make(tmp_path, max_bytes=36 * size), texts[0]) == 64
    cache = make(tmp_path, max_bytes=36 * size)
    fill(cache, texts[2])
    cache.flush()
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 36 * size
    kept = [fetched(make(tmp_path), text) for text in texts]
    assert kept[0] == kept[2] == 64
    assert kept[1] == 16


def test_writing_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DiskCache(tmp_path, queue_bytes=300)
    gate = threading.Event()
    write = disk._write
    monkeypatch.setattr(disk, "_write", lambda key, payload: gate.wait(60) and write(key, payload))
    keys = [(bytes([i]) * 32, 0) for i in range(5)]
    assert [disk.put(key, b"x" * 100) for key in keys] == [True, True, True, False, False]
    assert disk.get(keys[2], 100) == b"x" * 100  # not written yet
    assert disk.stats().dropped == 2
    gate.set()
    disk.flush()
    assert [disk.has(key) for key in keys] == [True, True, True, False, False]
    assert disk.stats().written == 3


def test_a_disk_that_is_full_or_gone_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    fill(cache := make(tmp_path), TEXT)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        cache.flush()
    assert list(tmp_path.iterdir()) == []
    cache.flush()
    assert len(files(tmp_path)) == 16
    for path in files(tmp_path):
        path.unlink()
    assert fetched(make(tmp_path), TEXT) == 0


def test_a_process_that_is_killed_while_it_writes_leaves_nothing_wrong(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from tests.cache.test_disk import fill, make
cache = make(Path({str(tmp_path)!r}), pages=20)
print("begin", flush=True)
for i in range(100000):
    fill(cache, [*range(i % 50, i % 50 + 64)])
"""
    for wait in (0.02, 0.1, 0.3):
        process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n"
        threading.Event().wait(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        cache = make(tmp_path)
        assert len(list(tmp_path.iterdir())) == len(files(tmp_path))  # parts are gone
        for i in range(50):
            fetched(cache, [*range(i, i + 64)])
    assert any(fetched(make(tmp_path), [*range(i, i + 64)]) for i in range(50))


def test_time_is_bounded(tmp_path: Path) -> None:
    fill(first := make(tmp_path), TEXT)
    first.flush()
    cache, calls = make(tmp_path), 0
    while not cache.fetch(TEXT, seconds=-1.0):
        calls += 1
        assert check(cache, TEXT) == 4 * calls
    assert calls == 15


def test_no_room_in_memory(tmp_path: Path) -> None:
    fill(first := make(tmp_path), TEXT)
    first.flush()
    cache = make(tmp_path, pages=8)
    assert cache.fetch(TEXT)
    assert cache.available == (8,)


def test_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    fill(cache := make(folder), TEXT)
    cache.flush()
    assert folder.stat().st_mode & 0o77 == 0
    assert all(path.stat().st_mode & 0o77 == 0 for path in files(folder))
    payload = files(folder)[0].stat().st_size - HEADER.size - CHECKSUM_BYTES
    assert payload == cache.layout.groups[0].page_bytes


def test_folders_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PathError, match="cannot be used for a cache"):
        DiskCache(tmp_path / "file")
    with pytest.raises(DtypeError, match="the folder of a disk cache must be a str or a Path"):
        DiskCache(None)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="the bytes of a disk cache must be at least 0, got -1"):
        DiskCache(tmp_path, -1)

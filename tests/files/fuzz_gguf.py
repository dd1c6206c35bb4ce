"""Fuzz the GGUF reader: `python tests/files/fuzz_gguf.py --minutes 60 [--corpus DIR] [--keep]`.

Files of the corpus are mutated; a mutant that takes a new way through the reader joins the pool, and with `--keep` the
corpus. Whatever is not a FewbitError, takes much memory or takes long is kept as `crash-*.gguf` and ends in status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import random
import sys
import tempfile
import time
import traceback
import tracemalloc
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).parents[2]))

import fewbit.files.gguf
from fewbit.errors import FewbitError
from tests.files.gguf_bytes import CORPUS, check_again, read_all, seeds

WATCHED = str(Path(fewbit.files.gguf.__file__).parent)
MEMORY_BYTES = 8 << 20
SECONDS = 2.0
MAX_INPUT_BYTES = 8192
MAX_KEPT_BYTES = 1024
NUMBERS = (0, 1, 2, 3, 8, 9, 32, 2**16, 2**27, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**61, 2**63, 2**64 - 32, 2**64 - 1)

Edge = tuple[int, int, int]


class Ways:
    """The ways through the reader that were seen: pairs of lines that ran one after the other."""

    def __init__(self) -> None:
        self.seen: set[Edge] = set()
        self.now: set[Edge] = set()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        self.now = set()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)

    def are_new(self) -> bool:
        new = self.now - self.seen
        self.seen |= new
        return bool(new)

    def _enter(self, frame: types.FrameType, _event: str, _arg: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(WATCHED):
            return None
        key, last = hash((code.co_filename, code.co_firstlineno)), code.co_firstlineno

        def line(frame: types.FrameType, event: str, _arg: Any) -> Any:
            nonlocal last
            if event == "line":
                self.now.add((key, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line


class Mutator:
    """Makes a new file out of old ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def mutant(self, pool: list[bytes]) -> bytes:
        data = bytearray(self.random.choice(pool))
        changes = (self.flip, self.put_byte, self.put_number, self.put_number, self.cut, self.repeat, self.insert)
        for _ in range(self.random.choice((1, 1, 1, 2, 2, 3, 5, 8))):
            if self.random.random() < 0.1:
                self.splice(data, self.random.choice(pool))
            else:
                self.random.choice(changes)(data)
        return bytes(data[:MAX_INPUT_BYTES])

    def place(self, data: bytearray) -> int:
        """Anywhere, but more often near the start, where the header is."""
        return min(int(len(data) * self.random.random() ** self.random.choice((1, 2))), max(len(data) - 1, 0))

    def flip(self, data: bytearray) -> None:
        if data:
            data[self.place(data)] ^= 1 << self.random.randrange(8)

    def put_byte(self, data: bytearray) -> None:
        if data:
            data[self.place(data)] = self.random.choice((0, 1, 8, 9, 10, 12, 13, 0x7F, 0x80, 0xFF))

    def put_number(self, data: bytearray) -> None:
        at, size = self.place(data), self.random.choice((4, 8))
        left = len(data) - at
        number = self.random.choice((*NUMBERS, left, left - 8, len(data), self.random.randrange(300)))
        data[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "little")

    def cut(self, data: bytearray) -> None:
        at = self.place(data)
        del data[at : at + self.random.choice((1, 4, 8, 13, 32, len(data)))]

    def repeat(self, data: bytearray) -> None:
        at, size = self.place(data), self.random.choice((4, 8, 12, 13, 16, 24, 40, 64))
        data[at:at] = data[at : at + size] * self.random.choice((1, 1, 2, 20))

    def insert(self, data: bytearray) -> None:
        at = self.place(data)
        data[at:at] = self.random.randbytes(self.random.choice((1, 4, 8, 16)))

    def splice(self, data: bytearray, other: bytes) -> None:
        here, there = self.place(data), self.place(bytearray(other))
        size = self.random.choice((8, 16, 32, 64, len(other)))
        data[here : here + self.random.choice((0, size))] = other[there : there + size]


def trouble(data: bytes, folder: Path, ways: Ways) -> tuple[str, bool]:
    """What went wrong, or nothing; and whether the file was read."""
    path = folder / "a.gguf"
    path.write_bytes(data)
    started, read = time.process_time(), False
    tracemalloc.start()
    try:
        with ways.watch():
            gguf = read_all(path)
        read = True
        check_again(gguf, folder / "again.gguf")
    except FewbitError:
        pass
    except Exception:
        return traceback.format_exc(), read
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if peak > MEMORY_BYTES:
        return f"{peak} bytes of memory for a file of {len(data)}", read
    spent = time.process_time() - started
    return (f"{spent:.1f} s for a file of {len(data)} bytes" if spent > SECONDS else ""), read


def keep(folder: Path, kind: str, data: bytes) -> Path:
    path = folder / f"{kind}-{hashlib.sha256(data).hexdigest()[:12]}.gguf"
    path.write_bytes(data)
    return path


def fuzz(minutes: float, corpus: Path, seed: int, keep_new: bool) -> int:
    ways, mutator = Ways(), Mutator(seed)
    corpus.mkdir(exist_ok=True)
    for name, data in seeds().items() if keep_new else ():
        (corpus / f"seed-{name}.gguf").write_bytes(data)
    pool = [*seeds().values(), *(path.read_bytes() for path in sorted(corpus.glob("*.gguf")))]
    tried = read = found = joined = 0
    start = told = time.monotonic()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        queue = list(pool)
        while time.monotonic() < start + 60 * minutes:
            known = bool(queue)
            data = queue.pop() if known else mutator.mutant(pool)
            wrong, was_read = trouble(data, Path(name), ways)
            tried, read = tried + 1, read + was_read
            if wrong:
                found += 1
                print(keep(corpus, "crash", data), wrong, sep="\n", flush=True)
            elif ways.are_new() and not known:
                pool.append(data)
                joined += 1
                if keep_new and len(data) <= MAX_KEPT_BYTES:
                    keep(corpus, "way", data)
            if time.monotonic() > told + 60:
                told = time.monotonic()
                counts = f"{tried} tried, {read} read, {joined} new, {len(ways.seen)} ways, {found} troubles"
                print(f"{(told - start) / 60:.0f} min: {counts}", flush=True)
    print(f"{tried} tried, {read} read, {joined} new, {len(ways.seen)} ways, {found} troubles")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", action="store_true", help="keep small files that take new ways in the corpus")
    given = parser.parse_args()
    np.seterr(all="raise")
    print(f"seed {given.seed}", flush=True)
    sys.exit(1 if fuzz(given.minutes, given.corpus, given.seed, given.keep) else 0)


if __name__ == "__main__":
    main()

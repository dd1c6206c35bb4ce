"""Locks of the cache: one process at a time, and nothing is left of them."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from fewbit.errors import PathError
from fewbit.files.hub.folder import LOCK, locked, silent, sweep

ROUNDS = 60


def test_nothing_is_left_of_a_lock(tmp_path: Path) -> None:
    folder = tmp_path / "url" / "key"
    with locked(folder, "a", silent):
        assert (folder / LOCK).exists()
    assert not folder.exists()
    with locked(folder, "a", silent):
        (folder / "m.gguf").touch()
    assert os.listdir(folder) == ["m.gguf"]
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "failed", "a", silent):
        raise ZeroDivisionError
    assert not (tmp_path / "failed").exists()


def count_up(folder: Path, counter: Path, overlaps: Any) -> None:
    """Read, wait, write: two at a time would lose a count."""
    for _ in range(ROUNDS):
        with locked(folder, "a", silent):
            if (counter.parent / "inside").exists():
                overlaps.value += 1
            (counter.parent / "inside").touch()
            value = int(counter.read_text())
            os.sched_yield()
            counter.write_text(str(value + 1))
            (counter.parent / "inside").unlink()


def test_processes_take_turns_though_the_lock_comes_and_goes(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    context = multiprocessing.get_context("fork")
    overlaps = context.Value("i", 0)
    workers = [context.Process(target=count_up, args=(tmp_path / "home" / "key", counter, overlaps)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert (int(counter.read_text()), overlaps.value) == (4 * ROUNDS, 0)
    assert not (tmp_path / "home" / "key").exists()


def test_who_waits_says_so_and_goes_on_with_a_new_lock(tmp_path: Path) -> None:
    folder, said = tmp_path / "key", []
    context = multiprocessing.get_context("fork")
    ready, go = context.Event(), context.Event()

    def hold() -> None:
        with locked(folder, "a", silent):
            ready.set()
            go.wait(60)

    holder = context.Process(target=hold)
    holder.start()
    assert ready.wait(60)

    def progress(what: str, done: int, total: int | None) -> None:
        said.append(what)
        go.set()

    with locked(folder, "m.gguf", progress):
        assert (folder / LOCK).exists()
    holder.join(60)
    assert said == ["waiting for another process that fetches m.gguf"]
    assert not folder.exists()


def test_a_sweep_leaves_what_is_in_use(tmp_path: Path) -> None:
    for name in ("left", "used", "full", "empty"):
        (tmp_path / name).mkdir()
    for name in ("left", "full"):
        (tmp_path / name / LOCK).touch()
    (tmp_path / "full" / "m.gguf.part").touch()
    with locked(tmp_path / "used", "a", silent):
        sweep(tmp_path)
        assert sorted(os.listdir(tmp_path)) == ["empty", "full", "used"]
    sweep(tmp_path / "no" / "such")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PathError, match="cannot be written"), locked(tmp_path / "file" / "key", "a", silent):
        raise AssertionError

"""Answers and votes in a SQLite file."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Thread

import pytest

import fewbit as fb
from fewbit.files import feedback
from fewbit.files.feedback import FeedbackStore

HI = [{"role": "user", "content": "hi"}]


def test_what_is_rated_comes_back(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "votes.db")
    for place, text in enumerate(("one", "two", "three")):
        store.keep("a", place, "tiny", HI, text)
    assert store.rated() == []
    assert store.rate("a", 0, "good")
    assert store.rate("a", 1, "corrected", "better")
    assert store.rate("a", 0, "bad")  # the last vote counts
    assert not store.rate("a", 5, "good")
    store.close()
    again = FeedbackStore(tmp_path / "votes.db")
    assert [(one.answer, one.vote, one.correction) for one in again.rated("tiny")] == [
        ("one", "bad", None), ("two", "corrected", "better"),
    ]  # fmt: skip
    assert again.rated("other") == []
    assert again.forget("a")
    assert not again.forget("a")
    assert again.rated() == []


def test_answers_without_a_vote_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FeedbackStore(tmp_path / "votes.db")
    store.keep("old", 0, "tiny", HI, "text")
    store.keep("rated", 0, "tiny", HI, "text")
    store.rate("rated", 0, "good")
    now = time.time() + feedback.UNRATED_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: now)
    store.keep("new", 0, "tiny", HI, "text")
    assert [store.rate(name, 0, "bad") for name in ("old", "rated", "new")] == [False, True, True]


def test_several_threads(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "votes.db")

    def work(name: str) -> None:
        for place in range(20):
            store.keep(name, place, "tiny", HI, "text")
            store.rate(name, place, "good")

    threads = [Thread(target=work, args=(f"t{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.rated()) == 80


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "votes.db"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(fb.FileError, match="feedback cannot be kept there"):
        FeedbackStore(path)
    with pytest.raises(fb.PathError, match="feedback cannot be kept there"):
        FeedbackStore(tmp_path / "no" / "votes.db")

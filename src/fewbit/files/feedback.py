"""What clients say of answers, in a SQLite file: answers that they asked to keep, and their votes.

Nothing is kept that a client did not ask for. An answer without a vote is dropped after a week.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from threading import Lock
from typing import Any, Literal

from ..errors import FileError, PathError
from ..validation import to_path

Vote = Literal["good", "bad", "corrected"]
MIN_RATED = 20  # answers, to learn from
UNRATED_SECONDS = 7 * 24 * 3600
MAX_ANSWERS = 100_000  # the oldest go first

_SCHEMA = """
create table if not exists answers (
    id text not null, place integer not null, time real not null, model text not null, messages text not null,
    answer text not null, vote text, correction text, voted real, primary key (id, place)
) without rowid;
create index if not exists by_time on answers (time);
"""

_OF_MODEL = """vote is not null and
    (:model is null or model = :model or substr(model, 1, length(:model) + 1) = :model || ':')"""


@dataclass(frozen=True)
class RatedAnswer:
    """An answer, and what its reader said of it.

    Args:
        messages: The conversation before it.
        answer: What the model wrote.
        vote: "good", "bad" or "corrected".
        correction: What it should have written, if it was corrected.
    """

    messages: Sequence[Mapping[str, Any]]
    answer: str
    vote: Vote
    correction: str | None = None

    @property
    def conversation(self) -> str:
        """The same text for the same conversation."""
        return json.dumps(self.messages, sort_keys=True)


class FeedbackStore:
    """Answers and votes in a file, for several threads.

    >>> store = FeedbackStore(":memory:")
    >>> store.keep("a", 0, "tiny", [{"role": "user", "content": "hi"}], "hello")
    >>> store.rate("a", 0, "good"), store.rate("b", 0, "good")
    (True, False)
    >>> [(rated.answer, rated.vote) for rated in store.rated()]
    [('hello', 'good')]

    Args:
        path: The file, which is made if it is not there; ":memory:" keeps nothing.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = to_path(path)
        self._lock = Lock()
        try:
            _make_private(path)
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.execute("pragma journal_mode = wal")
            self._db.executescript(_SCHEMA)
            if "voted" not in [row[1] for row in self._db.execute("pragma table_info(answers)")]:
                self._db.execute("alter table answers add column voted real")  # a file of an earlier version
        except sqlite3.DatabaseError as error:
            kind = PathError if isinstance(error, sqlite3.OperationalError) else FileError
            raise kind(f"{path}: feedback cannot be kept there: {error}") from None

    def keep(self, name: str, place: int, model: str, messages: Sequence[Mapping[str, Any]], answer: str) -> None:
        """Keep an answer, until it is rated or forgotten."""
        now, text = time.time(), json.dumps(list(messages))
        with self._lock:
            self._db.execute(
                "insert or replace into answers (id, place, time, model, messages, answer) values (?, ?, ?, ?, ?, ?)",
                (name, place, now, model, text, answer),
            )
            self._db.execute("delete from answers where vote is null and time < ?", (now - UNRATED_SECONDS,))
            self._db.execute(
                "delete from answers where time < (select time from answers order by time desc limit 1 offset ?)",
                (MAX_ANSWERS,),
            )

    def rate(self, name: str, place: int, vote: Vote, correction: str | None = None) -> bool:
        """Take a vote; a later one replaces it. Returns whether the answer is here."""
        with self._lock:
            done = self._db.execute(
                "update answers set vote = ?, correction = ?, voted = ? where id = ? and place = ?",
                (vote, correction, time.time(), name, place),
            )
            return done.rowcount > 0

    def forget(self, name: str) -> bool:
        """Drop an answer and its votes. Returns whether it was here."""
        with self._lock:
            return self._db.execute("delete from answers where id = ?", (name,)).rowcount > 0

    def rated(self, model: str | None = None) -> list[RatedAnswer]:
        """All rated answers, or those of one model and its adapters, the oldest first."""
        select = f"select messages, answer, vote, correction from answers where {_OF_MODEL} order by time, id, place"
        with self._lock:
            rows = self._db.execute(select, {"model": model}).fetchall()
        return [RatedAnswer(json.loads(messages), *rest) for messages, *rest in rows]

    def num_rated(self, model: str | None = None, since: float = 0.0) -> int:
        """How many answers were rated, of one model or all, since a time."""
        select = f"select count(*) from answers where {_OF_MODEL} and coalesce(voted, time) > :since"
        with self._lock:
            count: int = self._db.execute(select, {"model": model, "since": since}).fetchone()[0]
        return count

    def close(self) -> None:
        with self._lock:
            self._db.close()


def _make_private(path: str | PathLike[str]) -> None:
    """Make a file that only this user can read; SQLite gives those beside it the same mode."""
    if str(path) != ":memory:":
        with suppress(OSError):  # SQLite says what is wrong
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))

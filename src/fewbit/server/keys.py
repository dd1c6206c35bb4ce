"""API keys: their names, what they may use, and how much of it in a minute."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from ..errors import ArgumentError, PathError
from .errors import ApiError

MIN_KEY_CHARS = 8
MAX_FILE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key and its quotas; None: no limit."""

    key: str
    name: str = ""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    models: frozenset[str] | None = None

    @property
    def id(self) -> str:
        """A text that stands for the key and does not give it away."""
        return blake2b(self.key.encode(), digest_size=8).hexdigest()


class Quota:
    """What a key has left of this minute: two buckets that fill steadily and hold a minute's worth."""

    def __init__(self, key: ApiKey, clock: Callable[[], float] = monotonic) -> None:
        self._requests = _Bucket(key.requests_per_minute, clock)
        self._tokens = _Bucket(key.tokens_per_minute, clock)

    def admit(self) -> None:
        """Count a request, or refuse it. Tokens may be overdrawn by a request, and those after it wait."""
        for bucket, what in ((self._requests, "requests"), (self._tokens, "tokens")):
            seconds = bucket.seconds_until(1.0)
            if seconds > 0:
                raise ApiError(429, f"this key is limited to {bucket.rate} {what} per minute; try again later",
                               code="rate_limit_exceeded", retry_after=int(seconds) + 1)  # fmt: skip
        self._requests.take(1)

    def charge(self, tokens: int) -> None:
        """Count tokens of a prompt or an output."""
        self._tokens.take(tokens)


class _Bucket:
    def __init__(self, rate: int | None, clock: Callable[[], float]) -> None:
        self.rate, self._clock = rate, clock
        self._level, self._filled = float(rate or 0), clock()

    def take(self, count: int) -> None:
        self._fill()
        self._level -= count

    def seconds_until(self, count: float) -> float:
        if self.rate is None:
            return 0.0
        self._fill()
        return (min(count, self.rate) - self._level) * 60 / self.rate

    def _fill(self) -> None:
        now, rate = self._clock(), self.rate or 0
        self._level = min(float(rate), self._level + (now - self._filled) * rate / 60)
        self._filled = now


class _KeyRecord(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    key: str
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    models: list[str] | None = None


class _KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[_KeyRecord]


def read_keys(path: str | Path) -> tuple[ApiKey, ...]:
    """The API keys in a file with one a line; empty lines and those that begin with # are none."""
    lines = [line.strip() for line in _read(path).splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ArgumentError(f"{path}: there is no API key; write one on each line")
    for number, key in enumerate(keys, 1):
        _check(key, f"{path}: key {number}")
    return tuple(ApiKey(key) for key in dict.fromkeys(keys))


def read_key_table(path: str | Path) -> tuple[ApiKey, ...]:
    """The API keys in a TOML or JSON file, with names and quotas.

    [[keys]]
    name = "ada"
    key = "..."
    requests_per_minute = 60
    tokens_per_minute = 20000
    models = ["small"]
    """
    text = _read(path)
    try:
        value: Any = msgspec.json.decode(text) if Path(path).suffix == ".json" else tomllib.loads(text)
        records = msgspec.convert(value, _KeyFile).keys
    except (msgspec.MsgspecError, tomllib.TOMLDecodeError) as error:
        raise ArgumentError(f"{path}: {error}; a file of keys is a list `keys` of tables with name and key") from None
    if not records:
        raise ArgumentError(f"{path}: there is no API key; write one [[keys]] with name and key for each")
    for record in records:
        _check(record.key, f"{path}: the key of {record.name!r}")
        for what in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(record, what)
            if value is not None and value < 1:
                raise ArgumentError(f"{path}: {what} of {record.name!r} must be at least 1, got {value}")
    for what in ("name", "key"):
        if len({getattr(record, what) for record in records}) < len(records):
            raise ArgumentError(f"{path}: two keys have the same {what}")
    return tuple(
        ApiKey(one.key, one.name, one.requests_per_minute, one.tokens_per_minute,
               None if one.models is None else frozenset(one.models))
        for one in records
    )  # fmt: skip


def _read(path: str | Path) -> str:
    try:
        if Path(path).stat().st_size > MAX_FILE_BYTES:
            raise ArgumentError(f"{path}: a file of keys has at most {MAX_FILE_BYTES:,} bytes")
        return Path(path).read_text("utf-8")
    except UnicodeDecodeError:
        raise PathError(f"{path}: this is no text; write one API key on each line") from None
    except OSError as error:
        raise PathError(f"{path}: {error.strerror or error}") from None


def _check(key: str, what: str) -> None:
    if len(key) < MIN_KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key:
        raise ArgumentError(
            f"{what} is not {MIN_KEY_CHARS} or more ASCII characters without spaces; "
            "`openssl rand -hex 24` makes a good one"
        )

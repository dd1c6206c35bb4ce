"""Reading and writing small files that the user names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import FewbitError, PathError


def read_bytes(path: str | Path) -> bytes:
    with _path_errors(path, "read"):
        return Path(path).read_bytes()


def write_text(path: str | Path, text: str) -> None:
    with _path_errors(path, "written"):
        Path(path).write_text(text, encoding="utf-8")


def decoded(data: bytes, name: str) -> str:
    """Text without the end of its last line.

    >>> decoded(b"one\\ntwo\\n", "a file")
    'one\\ntwo'
    """
    return _decoded(data, name).removesuffix("\n").removesuffix("\r")


def decoded_lines(data: bytes, name: str) -> list[str]:
    """All lines of a text, blank ones too.

    >>> decoded_lines(b"one\\r\\n\\ntwo", "a file"), decoded_lines(b"\\n", "a file"), decoded_lines(b"", "a file")
    (['one', '', 'two'], [''], [])
    """
    text = _decoded(data, name)
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FewbitError(f"{name}: not UTF-8 text (byte {error.start})") from None


@contextmanager
def _path_errors(path: str | Path, done: str) -> Iterator[None]:
    """Turn system errors into a `PathError`, and ValueErrors of impossible names and of text that cannot be encoded."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise PathError(f"{path}: cannot be {done}: {getattr(error, 'strerror', None) or error}") from None

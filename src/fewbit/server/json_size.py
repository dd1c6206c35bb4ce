"""Limits on the values in a JSON body, checked before it is decoded: msgspec holds the GIL until it is done."""

from __future__ import annotations

from .errors import ApiError

MAX_OBJECTS = 250_000  # strings, lists and objects; these take msgspec about 30 ms
MAX_NUMBERS = 1 << 20
CHUNK_BYTES = 256 << 10  # other threads can run between two of them


def check_values(data: bytes) -> None:
    """Refuse JSON with too many values.

    >>> check_values(b'["a"' + b',"a"' * 10**6 + b']')
    Traceback (most recent call last):
    fewbit.server.errors.ApiError: the body has too many values: at most 250000 strings, lists and objects are read
    """
    objects, commas = _sizes(data, data)
    if objects <= MAX_OBJECTS and commas <= MAX_NUMBERS:  # though those in strings are counted too
        return
    num_objects = num_commas = 0
    quotes, rest = 0, b""  # a backslash whose other half is in the next chunk
    for start in range(0, len(data), CHUNK_BYTES):
        chunk = rest + data[start : start + CHUNK_BYTES]
        num_backslashes = len(chunk) - len(chunk.rstrip(b"\\"))
        rest = b"\\" if num_backslashes % 2 else b""
        plain = chunk.removesuffix(rest).replace(rb"\\", b"").replace(rb"\"", b"")
        outside = b"".join(plain.split(b'"')[quotes % 2 :: 2])
        quotes += plain.count(b'"')
        objects, commas = _sizes(plain, outside)
        num_objects, num_commas = num_objects + objects, num_commas + commas
        _refuse(num_objects, MAX_OBJECTS, "strings, lists and objects")
        _refuse(num_commas, MAX_NUMBERS, "numbers")


def _sizes(text: bytes, outside: bytes) -> tuple[int, int]:
    """Strings and brackets of a text, and commas, by what is outside of strings."""
    return text.count(b'"') // 2 + outside.count(b"[") + outside.count(b"{"), outside.count(b",")


def _refuse(count: int, most: int, what: str) -> None:
    if count > most:
        raise ApiError(400, f"the body has too many values: at most {most} {what} are read", code="too_many_items")

"""Types of GGUF metadata by number, and arrays of strings, which are decoded on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ...errors import FileError

MAGIC = b"GGUF"

BOOL, STRING, ARRAY = 7, 8, 9
DTYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    BOOL: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}

MAX_KEY_BYTES = (1 << 16) - 1  # of a metadata key, by the specification
MAX_DEPTH = 4  # of arrays in arrays
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32

LENGTH_BYTES = 8  # of a string or a count
_WINDOW = 1 << 18
_STEP = 1 << 10
_NO_ENDS = np.zeros(0, np.int64)


class StringArray(Sequence[str]):
    """An array of strings in the bytes of the file, each after its length. Strings are decoded on demand.

    >>> texts = StringArray.pack(["few", "bits"])
    >>> texts[1], len(texts), list(texts)
    ('bits', 2, ['few', 'bits'])
    """

    __slots__ = ("_ends", "data", "where")

    def __init__(self, data: bytes, ends: npt.NDArray[np.int64], where: str = "strings") -> None:
        self.data = data
        self.where = where  # for errors
        self._ends = ends

    @classmethod
    def pack(cls, strings: Sequence[str]) -> StringArray:
        """Strings in the layout of the file."""
        coded = [text.encode() for text in strings]
        ends = np.cumsum([LENGTH_BYTES + len(text) for text in coded], dtype=np.int64)
        return cls(b"".join(chain.from_iterable((len(t).to_bytes(8, "little"), t) for t in coded)), ends)

    def __len__(self) -> int:
        return self._ends.size

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        start = int(self._ends[i - 1]) if i else 0
        return self._text(self.data[start + LENGTH_BYTES : int(self._ends[i])], i)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def tolist(self) -> list[str]:
        """All of them, decoded.

        >>> StringArray.pack(["a", "b"]).tolist()
        ['a', 'b']
        """
        data, ends = self.data, self._ends.tolist()
        starts = [LENGTH_BYTES, *(end + LENGTH_BYTES for end in ends[:-1])]
        try:
            return [str(data[start:end], "utf-8") for start, end in zip(starts, ends, strict=False)]
        except UnicodeDecodeError:
            return [self[i] for i in range(len(self))]  # names the bad one

    def _text(self, coded: bytes, i: int) -> str:
        try:
            return coded.decode()
        except UnicodeDecodeError as error:
            raise FileError(f"{self.where}: entry {i} is not UTF-8 text: {error.reason} in {coded[:40]!r}") from None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StringArray):
            return self.data == other.data
        return self.tolist() == list(other) if isinstance(other, list | tuple) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"<{len(self)} strings: {shown}{', ...' if len(self) > 3 else ''}>"


def string_ends(data: Any, start: int, stop: int, count: int) -> npt.NDArray[np.int64]:
    """Where each of `count` strings from byte `start` ends; fewer than `count` if one of them reaches past `stop`.

    `count` strings of no characters must fit. A vocabulary has hundreds of thousands of strings, so most are found many
    at a time: a length below 256 shows as a byte and seven zeros.

    >>> string_ends(StringArray.pack(["few", "bits"]).data, 0, 23, 2).tolist()
    [11, 23]
    """
    ends = np.empty(count, np.int64)
    at, done, step = start, 0, _STEP
    while done < count:
        found = _short_strings(data[at : min(at + _WINDOW, stop)])[: count - done]
        ends[done : done + found.size] = found + at
        at, done = (int(found[-1]) + at if found.size else at), done + found.size
        step = _STEP if found.size >= _STEP else 2 * step  # so that failed scans cost little
        for _ in range(min(step, count - done) if found.size < _STEP else 0):
            length = int.from_bytes(data[at : at + LENGTH_BYTES], "little")
            if length > stop - at - LENGTH_BYTES:
                return ends[:done]
            at += LENGTH_BYTES + length
            ends[done] = at
            done += 1
    return ends


def _short_strings(window: bytes) -> npt.NDArray[np.int64]:
    """Ends of the strings at the start of the window, up to one that is long, or that holds zeros, or is cut off."""
    zero = np.frombuffer(window, np.uint8) == 0
    if zero.size <= LENGTH_BYTES:
        return _NO_ENDS
    two = zero[:-1] & zero[1:]
    four = two[:-2] & two[2:]
    seven = four[:-3] & four[3:]
    starts = np.flatnonzero(seven[1:])
    if not starts.size or starts[0] != 0:
        return _NO_ENDS
    lengths = np.frombuffer(window, np.uint8)[starts]
    follows = starts[:-1] + LENGTH_BYTES + lengths[:-1] == starts[1:]
    good = int(follows.argmin()) if not follows.all() else follows.size
    return starts[1 : good + 1]

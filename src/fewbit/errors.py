"""Errors. Each is a FewbitError and the built-in exception that fits."""

from __future__ import annotations

from collections.abc import Sequence


class FewbitError(Exception):
    """Base class of all errors that fewbit raises."""


class ArgumentError(FewbitError, ValueError):
    """An argument has an invalid value."""


class FormatError(FewbitError, ValueError):
    """The format is unknown, or does not support the operation."""


class ShapeError(FewbitError, ValueError):
    """A shape or a number of bytes does not match."""


class DtypeError(FewbitError, TypeError):
    """An argument or array has the wrong type."""


class DataError(FewbitError, ValueError):
    """Values that cannot be packed: NaN, infinity, or too large for the format."""


class LogitsError(DataError):
    """Logits that nothing can be sampled from.

    Attributes:
        rows: Their row numbers. The other rows are valid.
    """

    def __init__(self, message: str, rows: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.rows = list(rows)

    def __reduce__(self) -> tuple[type[LogitsError], tuple[str, list[int]]]:
        return LogitsError, (str(self), self.rows)


class LayoutError(FewbitError, BufferError, ValueError):
    """Memory that is read-only, overlapping or not contiguous."""


class FileError(FewbitError, ValueError):
    """A damaged file, or one of an unsupported type or version."""


class FileChanged(FileError):
    """A file that was truncated or written to while a model used it. What the model computes is lost."""


class PathError(FewbitError, OSError):
    """A file is missing, or cannot be opened or written."""


class FetchError(FewbitError, OSError):
    """A download failed: no network, not on the server, or a wrong checksum."""


class ExtraError(FewbitError, ImportError):
    """An optional package is not installed. The message names the extra."""


class MissingError(FewbitError, KeyError):
    """An unknown name."""

    __str__ = Exception.__str__  # a KeyError would put its text in quotes


class UnknownId(FewbitError, LookupError):
    """An unknown sequence or pin: never created, or freed already."""


class PositionError(FewbitError, IndexError):
    """A position or length past the end of a sequence."""


class OutOfPages(FewbitError, MemoryError):
    """The KV cache has too few free pages. Nothing was changed; free a sequence and try again."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(needed, free)
        self.needed = needed
        self.free = free

    def __str__(self) -> str:
        return f"the KV cache is full: pages needed: {self.needed}, free or evictable: {self.free}"


class OutOfMemory(FewbitError, MemoryError, ValueError):
    """Not enough memory. The message says what would fit."""


class DeviceError(FewbitError, RuntimeError):
    """A GPU reported an error. What ran there is lost."""


class TokenizerError(FewbitError, ValueError):
    """An invalid vocabulary, an unknown token, or text that cannot be tokenized."""


class TemplateError(FewbitError, ValueError):
    """A chat template is invalid, or rejects the messages."""


class RequestError(FewbitError, ValueError):
    """An invalid request: an empty prompt, or an option out of range."""


class ImageError(RequestError):
    """An image that cannot be read, or is too large."""


class TooLong(RequestError):
    """A text does not fit into the context.

    Attributes:
        tokens: Number of tokens of the text, or None.
        limit: Number of tokens that fit, or None.
        is_exact: Whether `tokens` is exact; otherwise there are at least so many.
    """

    def __init__(
        self, message: str, tokens: int | None = None, limit: int | None = None, is_exact: bool = True
    ) -> None:
        super().__init__(message)
        self.tokens, self.limit, self.is_exact = tokens, limit, is_exact

    def __reduce__(self) -> tuple[type[TooLong], tuple[str, int | None, int | None, bool]]:
        return TooLong, (str(self), self.tokens, self.limit, self.is_exact)


class ToolsIgnored(RequestError):
    """The chat template ignores tools, so the model would not know of them."""


class QueueFull(FewbitError, RuntimeError):
    """Too many requests wait for the model.

    Attributes:
        of_client: Whether the limit is that of one client; others may still send requests.
    """

    def __init__(self, message: str, of_client: bool = False) -> None:
        super().__init__(message)
        self.of_client = of_client

    def __reduce__(self) -> tuple[type[QueueFull], tuple[str, bool]]:
        return QueueFull, (str(self), self.of_client)

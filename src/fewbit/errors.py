"""What can go wrong, by kind. Every error of fewbit is a FewbitError; each is also the built-in kind that fits."""

from __future__ import annotations

from collections.abc import Sequence


class FewbitError(Exception):
    """Any error that fewbit raises on purpose."""


class ArgumentError(FewbitError, ValueError):
    """An argument with a value that it cannot take."""


class FormatError(FewbitError, ValueError):
    """An unknown format, or one that cannot do what was asked."""


class ShapeError(FewbitError, ValueError):
    """A shape or a number of bytes that does not fit."""


class DtypeError(FewbitError, TypeError):
    """An array of a type that is not understood."""


class DataError(FewbitError, ValueError):
    """Numbers that cannot be packed: NaN or infinity."""


class LogitsError(DataError):
    """Rows of logits that nothing can be sampled from. `rows`: their numbers; the other rows are good."""

    def __init__(self, message: str, rows: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.rows = list(rows)

    def __reduce__(self) -> tuple[type[LogitsError], tuple[str, list[int]]]:
        return LogitsError, (str(self), self.rows)


class LayoutError(FewbitError, BufferError, ValueError):
    """Memory that cannot be used as it is: read-only, overlapping or not contiguous."""


class FileError(FewbitError, ValueError):
    """A file whose contents are damaged, or that is of a kind or version that is not read."""


class FileChanged(FileError):
    """A file that was truncated or written to while a model used it. What the model computes is lost."""


class PathError(FewbitError, OSError):
    """A file that is not there, or cannot be opened or written."""


class FetchError(FewbitError, OSError):
    """A model that could not be fetched: no network, not on the server, or not what was expected."""


class ExtraError(FewbitError, ImportError):
    """A package that is needed for what was asked, and is not installed."""


class MissingError(FewbitError, KeyError):
    """A name that is not there."""

    __str__ = Exception.__str__  # a KeyError would put its text in quotes


class UnknownId(FewbitError, LookupError):
    """An id of a sequence or a pin that is not there: never given out, or given back already."""


class PositionError(FewbitError, IndexError):
    """A position past the end of a sequence, or a number of tokens that it does not have."""


class OutOfPages(FewbitError, MemoryError):
    """The KV cache has too few pages left. Nothing was changed; free a sequence and try again."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(needed, free)
        self.needed = needed
        self.free = free

    def __str__(self) -> str:
        return f"the KV cache is full: pages needed: {self.needed}, free or evictable: {self.free}"


class OutOfMemory(FewbitError, MemoryError, ValueError):
    """More memory was asked for than there is. The message says what would fit."""


class DeviceError(FewbitError, RuntimeError):
    """A GPU that reports an error. What was running there is lost."""


class TokenizerError(FewbitError, ValueError):
    """A vocabulary that cannot be used, a token that it does not hold, or text that has no tokens."""


class TemplateError(FewbitError, ValueError):
    """A chat template that cannot be read, or that refuses what it was given."""


class RequestError(FewbitError, ValueError):
    """Something asked of a model that it cannot do: a prompt that is empty or too long, a number out of its range."""


class TooLong(RequestError):
    """A text that does not fit into the context."""


class QueueFull(FewbitError, RuntimeError):
    """More requests than a model takes at once. `of_client`: of this client; others can still ask."""

    def __init__(self, message: str, of_client: bool = False) -> None:
        super().__init__(message)
        self.of_client = of_client

    def __reduce__(self) -> tuple[type[QueueFull], tuple[str, bool]]:
        return QueueFull, (str(self), self.of_client)

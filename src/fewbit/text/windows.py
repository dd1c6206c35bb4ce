"""A text in windows of tokens, and which tokens of each are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from ..errors import DataError, DtypeError, PathError, RequestError
from ..validation import to_size
from .tokenizer import Tokenizer

Text = str | PathLike[str] | Sequence[int]

DEFAULT_WINDOW = 512  # tokens


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that run on their own. Those from `skip` on are scored, each by the tokens before it."""

    tokens: list[int]
    skip: int
    start: int = 0  # where it begins in the text

    @property
    def scored(self) -> int:
        """Number of tokens that are scored."""
        return len(self.tokens) - self.skip


def read_tokens(text: Text, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a text, of a file, or as they were given."""
    if isinstance(text, PathLike):
        path = Path(text)
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except OSError as error:
            raise PathError(f"{path}: cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 text (byte {error.start})") from None
    if isinstance(text, str):
        return tokenizer.encode(text, add_special=True)
    if not isinstance(text, Sequence) or isinstance(text, bytes):
        raise DtypeError(f"text must be a str, a path or a list of token ids, not {type(text).__name__}")
    return [int(token) for token in text]


def leading_token(tokenizer: Tokenizer) -> int | None:
    """The token that the model expects before every text."""
    special = tokenizer.encode("", add_special=True)
    return special[0] if special and special[0] == tokenizer.bos_id else None


def cut_windows(
    tokens: Sequence[int],
    size: int = DEFAULT_WINDOW,
    *,
    stride: int | None = None,
    skip: int | None = None,
    first: int | None = None,
) -> list[Window]:
    """Windows over a text. The rest of the text that fills no window is left out, unless it is all there is.

    Args:
        tokens: The text.
        size: Tokens of a window.
        stride: Tokens between the starts of two windows. The last `stride` tokens of each are scored. Default: windows
            follow each other, and the second half of each is scored, as llama-perplexity does.
        skip: Number of tokens at the start of each window that are not scored.
        first: The token that the first of each window is replaced by.

    >>> [(window.tokens, window.skip) for window in cut_windows(range(9), 4, first=0)]
    [([0, 1, 2, 3], 3), ([0, 5, 6, 7], 3)]
    >>> [(window.start, window.skip) for window in cut_windows(range(8), 4, stride=2)]
    [(0, 2), (2, 2), (4, 2)]
    """
    size = to_size(size, "ctx", 2, error=RequestError)
    step = size if stride is None else to_size(stride, "stride", error=RequestError)
    if step > size:
        raise RequestError(f"stride must be at most ctx={size} tokens, got {stride}: tokens between windows are lost")
    if len(tokens) < 2:
        raise RequestError(f"the text has {len(tokens)} tokens: at least two are needed to score one")
    size = min(size, len(tokens))
    usual = min(size // 2 + 1, size - 1) if stride is None else max(1, size - step)
    left_out = usual if skip is None else to_size(skip, "skip", 0, error=RequestError)
    if left_out >= size:
        raise RequestError(f"skip must be less than the {size} tokens of a window, got {left_out}: no token is scored")
    starts = range(0, len(tokens) - size + 1, step)
    return [_window(tokens[start : start + size], max(1, left_out), start, first) for start in starts]


def _window(tokens: Sequence[int], skip: int, start: int, first: int | None) -> Window:
    own = list(tokens)
    if first is not None:
        own[0] = first
    return Window(own, skip, start)

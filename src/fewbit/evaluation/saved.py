"""Saved logits: the likeliest tokens of a model at each scored position of a text, in a GGUF file.

For each window N there are `N.window` (its tokens), `N.tokens` (the likeliest tokens of each row, 16 bits where the
vocabulary allows), `N.codes` (how much less likely than the first each of them is, in 16 bits) and `N.scales`: for each
row the log-probability of the first token, the step of the codes, the log of what all other tokens sum up to, and the
log-probability of the token that came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Ints
from ..errors import FileError
from ..files.gguf import GGUF, Deferred, read_gguf, write_gguf
from .logprobs import CODES, RANGE, TopLogprobs
from .windows import Window

Shorts = npt.NDArray[np.int16]

KIND = "logits"  # general.type
PARTS = {"tokens": "i32", "codes": "i16", "scales": "f32"}  # and their formats


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows of a window as they are saved."""

    tokens: Ints | Shorts
    codes: Shorts
    scales: Floats


def pack(top: TopLogprobs, vocab: int) -> PackedRows:
    """Log-probabilities in 16 bits."""
    highest = top.logprobs[:, :1]
    below = np.minimum(highest - top.logprobs, np.float32(RANGE))
    step = np.maximum(below.max(axis=1, keepdims=True) / np.float32(CODES), np.float32(1e-12))
    codes = np.rint(below / step).astype(np.uint16).view(np.int16)
    scales = np.stack([highest[:, 0], step[:, 0], top.rest, top.targets], axis=1)
    tokens = top.tokens.astype(np.uint16).view(np.int16) if vocab <= 1 << 16 else top.tokens
    return PackedRows(tokens, codes, scales)


def unpack(rows: PackedRows) -> TopLogprobs:
    """The inverse of `pack`."""
    tokens = rows.tokens.view(np.uint16) if rows.tokens.dtype == np.int16 else rows.tokens
    below = rows.codes.view(np.uint16).astype(np.float32) * rows.scales[:, 1:2]
    return TopLogprobs(tokens.astype(np.int32), rows.scales[:, :1] - below, rows.scales[:, 2], rows.scales[:, 3])


def save_logits(
    path: str | PathLike[str],
    model: str,
    windows: Sequence[Window],
    vocab: int,
    top: int,
    rows: Iterator[tuple[int, TopLogprobs | None]],
) -> None:
    """Write saved logits while they are computed. The file appears when it is complete.

    Args:
        path: The file.
        model: Name of the model.
        windows: The windows of the text.
        vocab: Number of tokens of the model.
        top: How many tokens to save of each row.
        rows: All rows of each window, window by window.
    """
    packed: dict[int, PackedRows] = {}

    def part(window: int, name: str) -> Any:
        while window not in packed:
            number, found = next(rows)
            assert found is not None  # rows are saved
            packed.pop(number - 1, None)
            packed[number] = pack(found, vocab)
        return getattr(packed[window], name)

    count = min(top, vocab)
    metadata = {
        "general.type": KIND, "fewbit.logits.version": 1, "fewbit.logits.model": model, "fewbit.logits.vocab": vocab,
        "fewbit.logits.skips": np.array([window.skip for window in windows], np.int32),
        "fewbit.logits.starts": np.array([window.start for window in windows], np.int64),
    }  # fmt: skip
    tensors: dict[str, Any] = {}
    for n, window in enumerate(windows):
        tensors[f"{n}.window"] = np.array(window.tokens, np.int32)
        for name, fmt in PARTS.items():
            width = 4 if name == "scales" else count
            kind = "i16" if name == "tokens" and vocab <= 1 << 16 else fmt
            tensors[f"{n}.{name}"] = Deferred((window.scored, width), kind, lambda n=n, name=name: part(n, name))  # type: ignore[misc]
    write_gguf(path, metadata, tensors)


@dataclass(frozen=True)
class SavedLogits:
    """Logits of a reference model, read window by window.

    Args:
        path: The file.
        model: Name of the model that they are of.
        vocab: Number of its tokens.
        windows: The windows of the text.
        tensors: The open file.
    """

    path: Path
    model: str
    vocab: int
    windows: list[Window]
    tensors: GGUF = field(repr=False)

    def rows(self, window: int) -> TopLogprobs:
        """All rows of a window."""
        parts = [self._array(window, name) for name in PARTS]
        top = unpack(PackedRows(*parts))
        if not np.isfinite(top.logprobs).all() or not 0 <= top.tokens.min() <= top.tokens.max() < self.vocab:
            raise FileError(f"{self.path}: window {window} is damaged: log-probabilities or tokens that cannot be")
        return top

    def _array(self, window: int, name: str) -> Any:
        tensor = self.tensors.tensors[f"{window}.{name}"]
        dtype = {"i32": np.int32, "i16": np.int16, "f32": np.float32}[tensor.format.name]
        return np.frombuffer(tensor.to_bytes(), dtype).reshape(tensor.shape)


def read_logits(path: str | PathLike[str]) -> SavedLogits:
    """Open saved logits.

    Args:
        path: A file that `evaluate` wrote.
    """
    file = read_gguf(path)
    facts = file.metadata
    if facts.get("general.type") != KIND or facts.get("fewbit.logits.version") != 1:
        raise FileError(f"{file.path}: not saved logits; `fewbit eval --save` writes them")
    skips, starts = (_numbers(file, f"fewbit.logits.{key}") for key in ("skips", "starts"))
    vocab, model = facts.get("fewbit.logits.vocab"), facts.get("fewbit.logits.model")
    if not isinstance(vocab, int) or not isinstance(model, str) or len(skips) != len(starts) or not len(skips):
        raise FileError(f"{file.path}: the metadata of saved logits is damaged")
    pairs = zip(skips.tolist(), starts.tolist(), strict=True)
    windows = [_window(file, n, skip, start) for n, (skip, start) in enumerate(pairs)]
    return SavedLogits(file.path, model, vocab, windows, file)


def _numbers(file: GGUF, key: str) -> np.ndarray[Any, Any]:
    value = file.metadata.get(key)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
        raise FileError(f"{file.path}: {key} must be a list of whole numbers")
    return value


def _window(file: GGUF, number: int, skip: int, start: int) -> Window:
    """A window of the file, whose tensors have the right shapes."""
    infos: Mapping[str, Any] = file.infos
    names = [f"{number}.{part}" for part in ("window", *PARTS)]
    if missing := [name for name in names if name not in infos]:
        raise FileError(f"{file.path}: tensor {missing[0]} is missing")
    shapes = [infos[name].shape for name in names]
    kinds = [infos[name].format.name for name in names]
    length = shapes[0][0] if len(shapes[0]) == 1 else 0
    fits = 1 <= skip < length and shapes[1] == shapes[2] and shapes[3] == (length - skip, 4)
    if not fits or len(shapes[1]) != 2 or shapes[1][0] != length - skip:
        raise FileError(f"{file.path}: the tensors of window {number} have shapes that do not fit: {shapes}")
    if kinds[0] != "i32" or kinds[1] not in ("i16", "i32") or kinds[2:] != ["i16", "f32"]:
        raise FileError(f"{file.path}: the tensors of window {number} have formats that do not fit: {kinds}")
    tokens = np.frombuffer(file.tensors[names[0]].to_bytes(), np.int32).tolist()
    return Window(tokens, skip, start)

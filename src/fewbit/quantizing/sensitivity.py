"""How much the output of a model changes when one of its matrices does."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from .. import devices
from ..arrays import Doubles
from ..cache.groups import PAGE_TOKENS
from ..devices.batch import Row
from ..errors import RequestError
from ..files.model import ModelFile
from ..load_options import LoadOptions
from ..loading import Loaded, place
from ..models import load_model
from ..tensor import QuantTensor
from ..text.tokenizer import Tokenizer
from ..text.windows import Text, Window, cut_windows, leading_token, read_tokens

WINDOW, SKIP = 64, 8  # tokens of a window, and those at its start that are not compared
WINDOWS = 2


@dataclass(frozen=True)
class ReplacedTensor:
    """A model file in which one tensor is another one."""

    file: ModelFile
    name: str
    tensor: QuantTensor

    @property
    def tensors(self) -> Mapping[str, QuantTensor]:
        return ChainMap({self.name: self.tensor}, cast(dict[str, QuantTensor], self.file.tensors))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class OutputChanges:
    """Compares a model with itself when one matrix is replaced, over a few short windows of a text.

    Args:
        file: The model.
        text: The text.
        threads: Number of threads.
    """

    def __init__(self, file: ModelFile, text: Text, threads: int | None) -> None:
        self._file = file
        self._windows = spaced_windows(text, Tokenizer.from_metadata(file.tokenizer()))
        options = LoadOptions(threads=threads, activations="int16", max_batched_tokens=WINDOW)
        self._device = devices.get("cpu", options)
        self._reference = self._logprobs(file)

    def divergence(self, name: str, tensor: QuantTensor) -> float:
        """The KL divergence, in nats a token, of the model with another tensor from the model as it is."""
        changed = self._logprobs(cast(ModelFile, ReplacedTensor(self._file, name, tensor)))
        total = [np.sum(np.exp(p) * (p - q), axis=1) for p, q in zip(self._reference, changed, strict=True)]
        return float(np.concatenate(total).mean())

    def _logprobs(self, file: ModelFile) -> list[Doubles]:
        """Log-probabilities of the compared tokens of each window, (tokens, vocabulary)."""
        model = load_model(file)
        if model.is_encoder:
            raise RequestError(
                f"{file.path}: an encoder writes no text, so formats cannot be chosen by what they change"
            )
        longest = max(len(window.tokens) for window in self._windows)
        loaded = place(model, self._device, "f16", longest, longest + PAGE_TOKENS)
        return [_window_logprobs(loaded, window) for window in self._windows]


def spaced_windows(text: Text, tokenizer: Tokenizer) -> list[Window]:
    """A few windows, evenly spaced over a text."""
    tokens = read_tokens(text, tokenizer)
    skip = SKIP if len(tokens) > SKIP else None
    windows = cut_windows(tokens, WINDOW, skip=skip, first=leading_token(tokenizer))
    count = min(WINDOWS, len(windows))
    return [windows[(2 * number + 1) * len(windows) // (2 * count)] for number in range(count)]


def _window_logprobs(loaded: Loaded, window: Window) -> Doubles:
    sequence = loaded.cache.new()
    row = Row(sequence, window.tokens[:-1], len(window.tokens) - window.skip)
    logits = loaded.forward([row]).astype(np.float64)
    loaded.cache.free(sequence)
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))

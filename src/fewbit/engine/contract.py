"""What the engine asks of a runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..cache.kv import KVCache

Floats = npt.NDArray[np.float32]


@dataclass(slots=True)
class Chunk:
    """The next tokens of a sequence."""

    sequence: int
    tokens: Sequence[int]
    wanted: int  # of how many of the last of them logits are wanted


class Runner(Protocol):
    """A model with its cache."""

    cache: KVCache
    vocab: int
    ctx: int  # the longest sequence, in tokens
    most_tokens: int  # that one call takes, over all chunks
    most_wanted: int  # rows of logits that one call gives

    def forward(self, chunks: Sequence[Chunk]) -> Floats:
        """Run the model and commit the tokens: logits (wanted rows, vocab), valid until the next call.

        If it raises, no sequence was changed.
        """
        ...

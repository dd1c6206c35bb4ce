"""Pooling: the hidden rows of a text become one vector, its embedding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ..arrays import Floats
from ..engine.adapters import Adapter
from ..engine.engine import Engine
from ..engine.request import Embedding
from ..errors import DtypeError, RequestError

Pooling = Literal["mean", "cls", "last"]  # those that give one vector
POOLINGS = ("none", "mean", "cls", "last")  # numbered so in GGUF files
RANK = 4  # there too: a score for two texts
SMALLEST = np.float32(1e-12)  # a row of zeros stays one


class Pooler:
    """Makes requests for texts, and a vector of what each gave, in the order of the texts.

    Args:
        engine: Makes the requests.
        texts: Token ids of each text.
        pooling: One of `POOLINGS`.
        normalize: Scale vectors to length 1.
        adapter: Name of an adapter, or names with weights.
    """

    def __init__(
        self, engine: Engine, texts: Sequence[Iterable[int]], pooling: str, normalize: bool, adapter: Adapter = None
    ) -> None:
        self._pooling, self._normalize = pooling, normalize
        made = [engine.embedding(tokens, last_only=pooling == "last", adapter=adapter) for tokens in texts]
        self._indices = {request: index for index, request in enumerate(made)}
        self._rows: list[Floats | None] = [None] * len(made)
        self.requests = sorted(made, key=lambda request: -len(request.tokens))  # similar lengths fill steps well

    def take(self, request: Embedding) -> None:
        """Pool what a request gave, and let go of it."""
        if request.hidden is None:
            raise RequestError(f"a text was not embedded: {request.finish_reason}")
        rows = pool(request.hidden, self._pooling)
        self._rows[self._indices[request]] = normalized(rows) if self._normalize else rows
        request.hidden = None

    def result(self, several: bool) -> Floats | list[Floats]:
        """The vector of the one text, or of several the rows of a matrix; with pooling "none" a list of arrays."""
        rows = [row for row in self._rows if row is not None]
        if not several:
            return rows[0]
        return rows if self._pooling == "none" else np.stack(rows)


def pool(rows: Floats, pooling: str) -> Floats:
    """One vector of the rows of a text's tokens; "none": all of them.

    >>> rows = np.array([[1, 2], [3, 4], [5, 9]], np.float32)
    >>> pool(rows, "mean").tolist(), pool(rows, "cls").tolist(), pool(rows, "last").tolist()
    ([3.0, 5.0], [1.0, 2.0], [5.0, 9.0])
    """
    if pooling == "mean":
        return np.asarray(rows.mean(axis=0, dtype=np.float64), np.float32)
    if pooling == "none":
        return rows
    return np.array(rows[0 if pooling == "cls" else -1])


def normalized(rows: Floats) -> Floats:
    """Rows of length 1.

    >>> normalized(np.array([[0, 3], [0, 0]], np.float32)).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), SMALLEST), np.float32)


def file_pooling(config: Mapping[str, Any], is_encoder: bool) -> str:
    """The pooling that a file names. Defaults to the mean for encoders, and to the last token for other models.

    >>> file_pooling({"pooling_type": 2}, True), file_pooling({}, False)
    ('cls', 'last')
    """
    kind = config.get("pooling_type")
    if isinstance(kind, int) and not isinstance(kind, bool):
        if kind == RANK:
            return "rank"
        if 0 <= kind < len(POOLINGS):
            return POOLINGS[kind]
    return "mean" if is_encoder else "last"


def check_pooling(pooling: str | None, default: str) -> str:
    """The pooling that was requested, or the default.

    >>> check_pooling("max", "mean")
    Traceback (most recent call last):
        ...
    fewbit.errors.RequestError: there is no pooling 'max'; there are: none, mean, cls, last
    """
    if pooling is None:
        if default == "rank":
            raise RequestError("the model is a reranker: it scores two texts and is not made for embeddings")
        return default
    if not isinstance(pooling, str):
        raise DtypeError(f"pooling must be a str, not {type(pooling).__name__}")
    if pooling not in POOLINGS:
        raise RequestError(f"there is no pooling {pooling!r}; there are: {', '.join(POOLINGS)}")
    return pooling

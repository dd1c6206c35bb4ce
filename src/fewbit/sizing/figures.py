"""What one replica needs for a step, and how much it holds: all that the simulation knows of a model and a machine."""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, PathError

Points = list[tuple[int, float]]  # counts and seconds, by count


@dataclass(frozen=True)
class ReplicaFigures:
    """Measured figures of one replica. Times are in seconds.

    Args:
        model: The name of the model.
        decode: Steps in which so many sequences write a token each, with short contexts.
        prefill: Steps that run so many tokens of one prompt, with an empty cache.
        context_seconds: For each token of context that a written token attends to.
        pair_seconds: For each pair of a prompt token and a token before it.
        request_seconds: For each prompt that is admitted.
        max_seqs: Sequences of a step.
        max_batched_tokens: Tokens of a step.
        pages: Pages of the KV cache.
        page_tokens: Tokens of a page.
        token_bytes: Bytes of the KV cache for a token.
    """

    model: str
    decode: Points
    prefill: Points
    context_seconds: float
    pair_seconds: float
    request_seconds: float
    max_seqs: int
    max_batched_tokens: int
    pages: int
    page_tokens: int
    token_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("decode", "prefill"):
            points = getattr(self, name)
            if not points or any(count < 1 or seconds <= 0 for count, seconds in points):
                raise ArgumentError(f"{name} must have counts of at least 1 with seconds above 0, got {points}")
        for name in ("max_seqs", "max_batched_tokens", "pages", "page_tokens"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1, got {getattr(self, name)}")

    @cached_property
    def decode_seconds(self) -> list[float]:
        """By the number of sequences, from 0 on."""
        return interpolated(self.decode, self.max_seqs)

    @cached_property
    def prefill_seconds(self) -> list[float]:
        """By the number of tokens, from 0 on."""
        return interpolated(self.prefill, self.max_batched_tokens + self.max_seqs)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


def interpolated(points: Points, most: int) -> list[float]:
    """Seconds for each count from 0 to `most`, along lines between points; none for a count of 0.

    >>> interpolated([(1, 1.0), (3, 2.0)], 4)
    [0.0, 1.0, 1.5, 2.0, 2.5]
    """
    points = sorted(points)
    if len(points) == 1:
        points = [points[0], (points[0][0] + 1, points[0][1])]
    counts = [count for count, _ in points]
    found = [0.0]
    for count in range(1, most + 1):
        place = min(max(bisect_left(counts, count), 1), len(points) - 1)
        (left, low), (right, high) = points[place - 1], points[place]
        found.append(max(low + (high - low) * (count - left) / (right - left), 1e-9))
    return found


def read_figures(path: Path) -> ReplicaFigures:
    """Figures that were saved."""
    try:
        data: Any = json.loads(path.read_text())
        names = {one.name for one in fields(ReplicaFigures)}
        if not isinstance(data, dict) or not set(data) <= names:
            raise ValueError(f"it must be an object with {', '.join(sorted(names))}")
        for name in ("decode", "prefill"):
            data[name] = [(int(count), float(seconds)) for count, seconds in data[name]]
        return ReplicaFigures(**data)
    except OSError as error:
        raise PathError(f"{path}: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ArgumentError(f"{path} has no figures of a replica: {error}") from None

"""Rows with gaps between them in a GPU's memory, and steps around them, for tests of single operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fewbit.arrays import Floats, Ints
from fewbit.errors import FewbitError
from fewbit.ops import cuda
from fewbit.ops import numpy as reference
from fewbit.ops.cuda.values import Launcher, Rows, StepInputs

rng = np.random.default_rng(0)


def open_gpu() -> cuda.Session:
    try:
        return cuda.shared_session()
    except FewbitError as error:
        pytest.skip(str(error))


def floats(*shape: int) -> Floats:
    return rng.standard_normal(shape, np.float32)


@dataclass
class Inputs:
    """The integers of a step on the host and on the GPU; the arrays there live as long as this."""

    device: cuda.Session
    host: reference.Step
    step: StepInputs
    held: list[Any]

    def launcher(self) -> Launcher:
        return Launcher(self.device, self.device.stream)

    def pointer(self, values: Any) -> int:
        """Where a copy of an array is on the GPU; that of None is 0."""
        if values is None:
            return 0
        self.held.append(self.device.array(np.ascontiguousarray(values)))
        return int(self.held[-1].pointer)

    def rows(self, values: Floats, gap: int = 0, first: int = 0) -> Rows:
        """A copy of rows among NaN: `gap` floats between them, `first` before the first."""
        tokens, width = values.shape
        around = np.full((tokens, first + width + gap), np.nan, np.float32)
        around[:, first : first + width] = values
        return Rows(self.pointer(around) + 4 * first, width, around.shape[1])

    def call(
        self, function: Callable[..., None], columns: int, /, *rows: Rows, tokens: int, gap: int = 0, **rest: Any
    ) -> Floats:
        """What an operation writes into memory full of NaN; nothing else there may change."""
        out = self.device.empty((tokens + 1, columns + gap))
        self.device.fill(out.pointer, 0xFF, out.nbytes)
        run = self.launcher()
        function(run, self.step, Rows(out.pointer, columns, columns + gap), *rows, tokens=tokens, **rest)
        found = out.numpy()
        assert np.isnan(found[tokens:]).all()
        assert np.isnan(found[:, columns:]).all()
        assert not np.isnan(found[:tokens, :columns]).any()
        return found[:tokens, :columns]


def make_step(
    device: cuda.Session, tokens: Ints, positions: Ints, logits: Ints, previous: Ints | None = None, **more: Any
) -> Inputs:
    """A step whose host side has the ids that `previous` stands for."""
    ids = tokens if previous is None else np.where(tokens < 0, previous[np.maximum(-1 - tokens, 0)], tokens)
    host = reference.NumpyStep(ids, positions, logits, more.get("cache"), [0])  # type: ignore[arg-type]
    zero = np.zeros(1, np.int32)
    arrays = [tokens, zero if previous is None else previous, positions, zero, zero, zero, logits]
    arrays += [more.get("reads", zero), more.get("writes", zero)]
    arrays[4], arrays[5] = more.get("q_starts", zero), more.get("lengths", zero)
    held = [device.array(np.asarray(x, np.int32)) for x in arrays]
    counts = (len(tokens), more.get("num_sequences", 1), len(logits), more.get("max_q", len(tokens)), 0)
    return Inputs(device, host, StepInputs(*(x.pointer for x in held), (), *counts), held)


def plain_step(device: cuda.Session, tokens: int) -> Inputs:
    return make_step(device, *(rng.integers(0, 40, tokens).astype(np.int32) for _ in range(2)), np.zeros(0, np.int32))

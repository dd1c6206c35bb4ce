"""Plans of a step: which kernels are launched, by a GPU that only counts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fewbit.devices.cuda_executor import CudaExecutor
from fewbit.models import open_model
from fewbit.ops.cuda import device
from fewbit.ops.cuda.inputs import InputLayout
from fewbit.ops.cuda.kernels import Entry
from fewbit.ops.cuda.launch import LaunchList
from fewbit.ops.cuda.values import Launcher

from ..loading import load
from .emulator.device import EmulatedGpu, EmulatedSession

ZOO = Path(__file__).parents[1] / "zoo"


class CountingGpu(EmulatedGpu):
    takes_panels = True

    def session(self) -> CountingSession:
        return CountingSession(self)

    def compile(self, entries: Sequence[Entry]) -> None:
        pass


class CountingSession(EmulatedSession):
    """Runs nothing."""

    def _open(self) -> None:
        super()._open()
        self.names: list[str] = []

    def add(
        self, launches: LaunchList, entry: Entry, grid: int | tuple[int, ...], threads: int, args: Sequence[Any],
        dependent: bool,
    ) -> None:  # fmt: skip
        sizes = grid if isinstance(grid, tuple) else (grid,)
        assert all(size > 0 for size in sizes), f"{entry.name}: a grid of {grid}"
        launches.add(entry, 1, grid, threads, dependent, args)

    def launch_list(self, launches: LaunchList, stream: Any = None, begin: int = 0, end: int | None = None) -> None:
        self.names += launches.names[begin:end]


@pytest.fixture
def executor() -> Iterator[CudaExecutor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "_opened", cache(CountingGpu))
        options: dict[str, Any] = {"kv": "f16", "max_batched_tokens": 300, "cache_bytes": 1 << 22, "max_seqs": 8}
        loaded = load(open_model(ZOO / "llama" / "model.gguf"), device="cuda", **options)
        assert isinstance(loaded.executor, CudaExecutor)
        yield loaded.executor


def launched(executor: CudaExecutor, tokens: int, sequences: int, logits: int) -> list[str]:
    """The kernels of a step."""
    layout = InputLayout(tokens, sequences, logits, (4 * sequences,), -(-tokens // sequences), 128)
    device: Any = executor.device
    device.names.clear()
    executor.plans["logits"].launch(Launcher(device, device.stream), layout.inputs(1 << 20, 1 << 20))
    return list(device.names)


@pytest.mark.parametrize("tokens", [1, 8, 40, 100, 300])
def test_a_piece_of_a_prompt_that_wants_no_logits_makes_none(executor: CudaExecutor, tokens: int) -> None:
    some, none = launched(executor, tokens, 1, 1), launched(executor, tokens, 1, 0)
    assert len(none) < len(some)
    assert any(name.startswith("gather_rows") for name in some)
    assert not any(name.startswith("gather_rows") for name in none)


def test_residuals_are_added_in_place(executor: CudaExecutor) -> None:
    """Else they would be copied first, where cuBLAS multiplies."""
    names = launched(executor, 300, 1, 1)
    assert any(name.startswith("decode_") for name in names)
    assert "begin_rows" not in names

"""Rows that several GPUs make together: `all_reduce` and `all_gather`.

Each rank writes its part into a buffer that has room for those of all, the group exchanges them, and each rank makes
its result of all parts. So a sum is added in the order of ranks, whatever exchanged the parts: NCCL between GPUs
(`nccl.py`), or `LocalGroup` for several ranks on one. Of many rows each rank adds up some, and then all get the sums:
that moves fewer bytes, and gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from threading import Barrier, BrokenBarrierError
from typing import Any, Protocol

from ...errors import FewbitError, ShapeError
from ..collective import FAILED, Group
from . import row_maths
from .kernels_rows import THREADS, sum_parts
from .session import Session
from .values import Collector, Launcher, Rows, StepInputs

BUFFER_BYTES = 16 << 20  # of the parts of all ranks; more rows are exchanged a piece at a time
SCATTER_BYTES = 256 << 10  # of a part, from which on each rank adds up some rows

Scatter = Callable[[int, int, int, int], None]  # of a rank: from where, to where, floats for each rank


class CudaGroup(Group, Protocol):
    """What exchanges parts."""

    ranks: int
    can_be_captured: bool

    def begin(self, rank: int) -> int:
        """The buffer for the next exchange, on the GPU of a rank, once all have read what was there."""
        ...

    def exchange(self, rank: int, buffer: int, counts: Sequence[int]) -> None:
        """The rank's own part is in its place; what is launched next finds all parts there, so many floats each."""
        ...

    @property
    def scatter(self) -> Scatter | None:
        """Sends so many floats to each rank and receives as many from each, if the group can."""
        ...


def all_reduce(
    run: Launcher, step: StepInputs, out: Rows, x: Rows, *, tokens: int, group: CudaGroup, rank: int
) -> None:
    """The sum of the rows of all ranks."""
    if group.scatter is not None and group.ranks > 2 and 4 * tokens * x.width >= SCATTER_BYTES:
        _reduce_many(run, step, out, x, tokens, group, rank)
        return
    for first, count in _pieces(tokens, group.ranks * x.width):
        size = count * x.width
        buffer = _exchange(run, step, _from(x, first), count, group, rank, [size] * group.ranks)
        rows = _from(out, first)
        grid = count, -(-x.width // THREADS)
        run.launch(sum_parts(), grid, THREADS, buffer, group.ranks, count, x.width, *rows.at)


def all_gather(
    run: Launcher, step: StepInputs, out: Rows, x: Rows, *, tokens: int, group: CudaGroup, rank: int,
    bounds: Sequence[int],
) -> None:  # fmt: skip
    """The columns of all ranks side by side: those of rank r from bounds[r] on."""
    widths = [end - first for first, end in pairwise(bounds)]
    for first, count in _pieces(tokens, out.width):
        part = _exchange(run, step, _from(x, first), count, group, rank, [count * width for width in widths])
        for start, width in zip(bounds, widths, strict=False):
            target = _from(out, first).columns(start, width)
            row_maths.columns(run, step, target, Rows(part, width, width), tokens=count, start=0, width=width)
            part += 4 * count * width


def _reduce_many(run: Launcher, step: StepInputs, out: Rows, x: Rows, tokens: int, group: CudaGroup, rank: int) -> None:
    """Each rank adds up its share of the rows, and all get the sums."""
    assert group.scatter is not None
    is_run = not isinstance(run, Collector)
    for first, count in _pieces(tokens, 2 * x.width, group.ranks):
        share = -(-count // group.ranks)
        size = share * x.width
        buffer = group.begin(rank) if is_run else 0
        received = buffer + 4 * group.ranks * size
        rows, own = Rows(buffer, x.width, x.width), Rows(buffer + 4 * rank * size, x.width, x.width)
        row_maths.columns(run, step, rows, _from(x, first), tokens=count, start=0, width=x.width)
        if is_run:
            group.scatter(rank, buffer, received, size)
            run.is_first = True
        grid = share, -(-x.width // THREADS)
        run.launch(sum_parts(), grid, THREADS, received, group.ranks, share, x.width, *own.at)
        if is_run:
            group.exchange(rank, buffer, [size] * group.ranks)
            run.is_first = True
        row_maths.columns(run, step, _from(out, first), rows, tokens=count, start=0, width=x.width)


def _exchange(
    run: Launcher, step: StepInputs, x: Rows, count: int, group: CudaGroup, rank: int, sizes: Sequence[int]
) -> int:
    """The buffer with the parts of all ranks."""
    is_run = not isinstance(run, Collector)
    buffer = group.begin(rank) if is_run else 0
    run.is_first = run.is_first or not group.can_be_captured  # the stream may wait for others here
    own = Rows(buffer + 4 * sum(sizes[:rank]), x.width, x.width)
    row_maths.columns(run, step, own, x, tokens=count, start=0, width=x.width)
    if is_run:
        group.exchange(rank, buffer, sizes)
        run.is_first = True  # nothing may begin before what exchanges has ended
    return buffer


def _pieces(tokens: int, width: int, multiple: int = 1) -> list[tuple[int, int]]:
    """The first row and the number of rows of pieces that fit the buffer; a multiple of some, but for the last one."""
    most = BUFFER_BYTES // (4 * width) // multiple * multiple
    if not most:
        raise ShapeError(f"rows of {width} values of all ranks do not fit a buffer of {BUFFER_BYTES} bytes")
    return [(first, min(most, tokens - first)) for first in range(0, tokens, most)]


def _from(rows: Rows, first: int) -> Rows:
    return rows._replace(pointer=rows.pointer + 4 * rows.stride * first)


class LocalGroup:
    """Ranks on one GPU, each with a session and a thread of its own. Streams wait for each other by events.

    There are two buffers, in turns: who is two exchanges ahead knows that all have launched what reads the first one.
    """

    can_be_captured = False  # the host takes part
    scatter = None

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.ranks, self._sessions = len(sessions), sessions
        self._buffers = [sessions[0].allocate(BUFFER_BYTES) for _ in range(2)]
        sessions[0].sync()
        self._barrier = Barrier(self.ranks)
        self._turns = [0] * self.ranks
        self._written: list[Any] = [None] * self.ranks
        self._read: list[list[Any]] = [[None] * self.ranks for _ in range(2)]

    def begin(self, rank: int) -> int:
        turn = self._turns[rank] % 2
        self._wait(rank, self._read[turn])
        return int(self._buffers[turn].handle)

    def exchange(self, rank: int, buffer: int, counts: Sequence[int]) -> None:
        turn = self._turns[rank] % 2
        self._read[1 - turn][rank] = self._written[rank] = self._sessions[rank].stream.record()
        self._turns[rank] += 1
        self._meet()
        self._wait(rank, self._written)
        self._meet()  # nobody records anew what another has not waited for

    def abort(self) -> None:
        self._barrier.abort()

    def reset(self) -> None:
        self._turns = [0] * self.ranks
        for session in self._sessions:
            session.sync()
        self._barrier.reset()

    def _wait(self, rank: int, events: Sequence[Any]) -> None:
        for number, event in enumerate(events):
            if event is not None and number != rank:
                self._sessions[rank].stream.wait(event)

    def _meet(self) -> None:
        try:
            self._barrier.wait()
        except BrokenBarrierError:
            raise FewbitError(FAILED) from None

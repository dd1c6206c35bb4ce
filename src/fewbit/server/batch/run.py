"""One batch of a server, from its input file to its output and error files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path

from starlette.applications import Starlette

from ..errors import ApiError
from ..files import FileStore
from ..state import State
from .in_process import Submitter, answer
from .journal import Journal
from .lines import InputLine, LineError, Record, Scan, decode_line, read_lines, scan, unanswered
from .records import BatchError, BatchRecord, RequestCounts
from .runner import in_flight

LINES_IN_FLIGHT = 64
NOT_RUN = {"cancelled": "the batch was cancelled before this request was run",
           "expired": "the batch expired before this request was run"}  # fmt: skip


class InvalidInput(Exception):
    """The input has lines that are no requests."""

    def __init__(self, errors: list[BatchError]) -> None:
        super().__init__(errors[0].message)
        self.errors = errors


class BatchRun:
    """Runs what remains of a batch.

    Args:
        app: The server.
        files: Its files.
        record: The batch. Its status and counts are kept up to date.
        submitter: On whose behalf it runs.
        save: Keeps the record on the disk.
    """

    def __init__(
        self,
        app: Starlette,
        files: FileStore,
        record: BatchRecord,
        submitter: Submitter,
        save: Callable[[BatchRecord], None],
    ) -> None:
        self._app, self._files, self._record, self._submitter, self._save = app, files, record, submitter, save
        self._source = files.path(record.batch.input_file_id)
        self._is_ending = record.ending != "completed"

    def end(self) -> None:
        """Begin no more requests."""
        self._is_ending = True

    async def complete(self) -> None:
        """All of it; InvalidInput if the input has wrong lines."""
        self._check_time()
        found = await asyncio.to_thread(scan, self._source, self._record.batch.endpoint)
        if errors := _errors(found):
            raise InvalidInput(errors)
        journal = await asyncio.to_thread(self._open, found)
        try:
            if self._record.batch.status == "validating":
                self._move("in_progress")
            self._count(journal, found.num_lines)
            await self._answer(journal, found)
            await asyncio.to_thread(self._finish, journal, found)
        except BaseException:
            journal.close()
            raise
        journal.remove()

    async def _answer(self, journal: Journal, found: Scan) -> None:
        created, state = self._record.batch.created_at, self._state

        async def answer_line(line: InputLine) -> Record:
            return await answer(self._app, line, found.repeated, self._submitter, created)

        async with aclosing(in_flight(self._remaining(journal), answer_line, self._num_in_flight())) as records:
            async for record in records:
                await asyncio.to_thread(journal.add, record)
                self._count(journal, found.num_lines)
                self._check_time()
                if journal.nbytes > state.settings.max_files_bytes:
                    raise ApiError(413, f"the answers have more than {state.settings.max_files_bytes} bytes")

    @property
    def _state(self) -> State:
        state: State = self._app.state.fewbit
        return state

    def _num_in_flight(self) -> int:
        """A step of the largest model's; the queue of the server has room for them beside other requests."""
        state = self._state
        seqs = [backend.facts.max_seqs for _, backend in state.pool.loaded()]
        return min(max(seqs, default=LINES_IN_FLIGHT), max(1, state.settings.max_queue // 2))

    def _remaining(self, journal: Journal) -> Iterator[InputLine]:
        with self._source.open("rb") as file:
            for line in read_lines(file):
                if self._is_ending:
                    return
                if line.index not in journal:
                    yield line

    def _open(self, found: Scan) -> Journal:
        batch = self._record.batch
        return Journal(journal_path(self._files, batch.id), {"input": found.digest, "created": batch.created_at})

    def _check_time(self) -> None:
        if self._record.ending == "completed" and time.time() > self._record.batch.expires_at:
            self._record.ending, self._is_ending = "expired", True
            self._save(self._record)

    def _count(self, journal: Journal, num_lines: int) -> None:
        totals = journal.totals
        self._record.batch.request_counts = RequestCounts(num_lines, totals.completed, totals.failed)

    def _finish(self, journal: Journal, found: Scan) -> None:
        """Write the files, twice if the server ends meanwhile: their names are known before."""
        record, batch = self._record, self._record.batch
        if record.ending == "completed":
            self._move("finalizing")
        else:
            self._refuse_rest(journal, found)
        self._count(journal, found.num_lines)
        if journal.totals.completed:
            batch.output_file_id = self._keep(journal, record.output_name, found.num_lines, True)
        if journal.totals.failed:
            batch.error_file_id = self._keep(journal, record.error_name, found.num_lines, False)
        self._move(record.ending)

    def _keep(self, journal: Journal, name: str, num_lines: int, succeeded: bool) -> str:
        path = self._files.path(name)
        journal.write(path, num_lines, lambda record: (record.status == 200) == succeeded)
        kind = "output" if succeeded else "error"
        title = f"{self._record.batch.id}_{kind}.jsonl"
        return self._files.adopt(name, self._record.owner, title, "batch_output").id

    def _refuse_rest(self, journal: Journal, found: Scan) -> None:
        ending = self._record.ending
        with self._source.open("rb") as file:
            for line in read_lines(file):
                if line.index not in journal:
                    custom_id = decode_line(line, found.repeated).custom_id
                    journal.add(unanswered(line, custom_id, f"batch_{ending}", NOT_RUN[ending]))

    def _move(self, status: str) -> None:
        batch = self._record.batch
        setattr(batch, f"{status}_at", int(time.time()))
        batch.status = status  # type: ignore[assignment]
        self._save(self._record)


def journal_path(files: FileStore, batch_id: str) -> Path:
    return files.folder / f"{batch_id}.partial"


def _errors(found: Scan) -> list[BatchError]:
    errors = [_error(number, error) for number, error in found.errors]
    if not found.num_lines:
        errors = [BatchError("empty_file", "the input file has no requests")]
    return errors


def _error(number: int, error: LineError) -> BatchError:
    return BatchError(error.code, error.message, error.param, number)

"""The batches of a server: run beside other requests, after them where both want the model, and kept on the disk.

A batch that was not over when the server ended goes on when it starts again. Each API key has one that runs, the
others wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from starlette.applications import Starlette

from ...engine.scheduling import MAX_PRIORITY
from ...errors import PathError
from ..errors import ApiError
from ..files import FileStore, new_file_id, write_record
from ..log import log
from .in_process import ShuttingDown, Submitter
from .records import BATCH_ID, OVER, BatchError, BatchErrors, BatchObject, BatchRecord, new_batch_id, no_batch
from .run import BatchRun, InvalidInput, journal_path

if TYPE_CHECKING:
    from ..state import State

MAX_RUNNING = 4
MAX_KEPT = 1000  # batches of an API key that are over
WINDOW_SECONDS = 24 * 3600


class Batches:
    """Batches by id.

    Args:
        app: The server.
        files: Its files. Records of batches are in the same folder.
    """

    def __init__(self, app: Starlette, files: FileStore) -> None:
        self._app, self.files = app, files
        self._records = {record.batch.id: record for record in _records(files.folder)}
        self._runs: dict[str, BatchRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # of each owner
        self._places = asyncio.Semaphore(MAX_RUNNING)

    def start(self) -> None:
        """Go on with those that are not over."""
        for record in sorted(self._records.values(), key=lambda one: one.batch.created_at):
            if record.is_over:
                journal_path(self.files, record.batch.id).unlink(missing_ok=True)
            else:
                self._begin(record)

    async def stop(self) -> None:
        """Stop them; what is done is kept."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def create(self, owner: str, endpoint: str, input_file_id: str, metadata: dict[str, str] | None) -> BatchObject:
        self.files.get(input_file_id, owner)
        unfinished = sum(not one.is_over for one in self._records.values() if one.owner == owner)
        most = self._state.settings.max_batches
        if unfinished >= most:
            raise ApiError(429, f"{unfinished} batches wait or run already, which is all that a key may have",
                           code="too_many_batches", retry_after=60)  # fmt: skip
        now = int(time.time())
        batch = BatchObject(
            new_batch_id(), endpoint, input_file_id, "24h", now, now + WINDOW_SECONDS, metadata=metadata
        )  # fmt: skip
        record = BatchRecord(owner, batch, new_file_id(), new_file_id())
        self._forget_oldest(owner)
        self._records[batch.id] = record
        self._save(record)
        self._begin(record)
        return batch

    def get(self, name: str, owner: str) -> BatchObject:
        return self._find(name, owner).batch

    def owned_by(self, owner: str) -> list[BatchObject]:
        """All batches of an owner, the oldest first."""
        found = [one.batch for one in self._records.values() if one.owner == owner]
        return sorted(found, key=lambda batch: batch.created_at)

    def is_reading(self, file_id: str) -> bool:
        """Whether a batch that is not over has this input."""
        return any(one.batch.input_file_id == file_id and not one.is_over for one in self._records.values())

    def cancel(self, name: str, owner: str) -> BatchObject:
        """Begin no more requests of a batch; those that run are finished."""
        record = self._find(name, owner)
        if record.batch.status in ("validating", "in_progress"):
            record.ending, record.batch.status = "cancelled", "cancelling"
            record.batch.cancelling_at = int(time.time())
            self._save(record)
            if record.batch.id in self._runs:
                self._runs[record.batch.id].end()
        elif record.batch.status not in ("cancelling", "cancelled"):
            raise ApiError(409, f"the batch is {record.batch.status} and cannot be cancelled", "batch_id",
                           "batch_not_running")  # fmt: skip
        return record.batch

    @property
    def _state(self) -> State:
        state: State = self._app.state.fewbit
        return state

    def _find(self, name: str, owner: str) -> BatchRecord:
        record = self._records.get(name)
        if record is None or record.owner != owner:
            raise no_batch(name)
        return record

    def _save(self, record: BatchRecord) -> None:
        write_record(self._path(record.batch.id), record)

    def _forget_oldest(self, owner: str) -> None:
        over = [batch for batch in self.owned_by(owner) if batch.status in OVER]
        for batch in over[: -MAX_KEPT or None]:
            del self._records[batch.id]
            self._path(batch.id).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.files.folder / f"{name}.json"

    def _begin(self, record: BatchRecord) -> None:
        task = asyncio.create_task(self._run(record))
        self._tasks[record.batch.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(record.batch.id, None))

    async def _run(self, record: BatchRecord) -> None:
        try:
            async with self._turns[record.owner], self._places:
                run = BatchRun(self._app, self.files, record, self._submitter(record.owner), self._save)
                self._runs[record.batch.id] = run
                await run.complete()
                log("batch", id=record.batch.id, status=record.batch.status)
        except ShuttingDown:
            pass
        except InvalidInput as error:
            self._fail(record, error.errors)
        except (ApiError, PathError, OSError) as error:
            log("batch failed", id=record.batch.id, reason=str(error))
            message = error.message if isinstance(error, ApiError) else "its files cannot be read or written"
            self._fail(record, [BatchError("batch_failed", message)])
        finally:
            self._runs.pop(record.batch.id, None)

    def _fail(self, record: BatchRecord, errors: list[BatchError]) -> None:
        batch = record.batch
        batch.status, batch.failed_at, batch.errors = "failed", int(time.time()), BatchErrors(errors)
        self._save(record)
        journal_path(self.files, batch.id).unlink(missing_ok=True)

    def _submitter(self, owner: str) -> Submitter:
        """The rights of a key, as they are now."""
        key = next((key for key in self._state.settings.keys if key.id == owner), None)
        if key is None and (owner or self._state.settings.keys):
            raise ApiError(403, "the API key that made this batch may no longer use this server", code="key_removed")
        models = None if key is None else key.models
        return Submitter(owner, self._state.quotas.get(owner), models, -MAX_PRIORITY)


def _records(folder: Path) -> list[BatchRecord]:
    found = []
    for path in folder.glob("batch_*.json"):
        if BATCH_ID.fullmatch(path.stem):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=BatchRecord))
            except msgspec.DecodeError:
                log("batch is damaged", id=path.stem)
    return found

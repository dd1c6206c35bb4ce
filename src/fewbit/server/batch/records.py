"""Batches as OpenAI's clients see them, and as they are kept on the disk."""

from __future__ import annotations

import re
from typing import Literal
from uuid import uuid4

import msgspec

from ..errors import ApiError

BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")

Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]  # fmt: skip
OVER = frozenset(("failed", "completed", "expired", "cancelled"))


class BatchError(msgspec.Struct):
    """What is wrong with the input, and in which line."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrors(msgspec.Struct):
    data: list[BatchError]
    object: Literal["list"] = "list"


class RequestCounts(msgspec.Struct):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchObject(msgspec.Struct):
    """Times are in seconds since 1970."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: Status = "validating"
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    metadata: dict[str, str] | None = None
    object: Literal["batch"] = "batch"


class BatchRecord(msgspec.Struct):
    """A batch, whose it is, and the names that its files will have.

    Args:
        ending: What becomes of it when the requests in flight are done: requests that did not run get this status.
    """

    owner: str
    batch: BatchObject
    output_name: str
    error_name: str
    ending: Literal["completed", "expired", "cancelled"] = "completed"

    @property
    def is_over(self) -> bool:
        return self.batch.status in OVER


def new_batch_id() -> str:
    return f"batch_{uuid4().hex}"


def no_batch(name: str) -> ApiError:
    return ApiError(404, f"there is no batch {name[:100]!r}", "batch_id", "batch_not_found")

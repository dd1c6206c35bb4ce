"""What a frontend and an engine send each other: pickles, between the processes of one Ray cluster."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

from ..errors import FewbitError
from ..server.jobs import Job, RunEvent


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job, and whose it is."""

    job: Job
    client: str
    nbytes: int  # of the request's body


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """`call(llm, *given)`."""

    call: Any
    given: tuple[Any, ...]
    client: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The last of a job's events."""

    error: BaseException | None = None


JobEvent = RunEvent | JobEnded


@dataclass(frozen=True, slots=True)
class Batch:
    """Events of several jobs of one frontend, by the numbers of the jobs.

    Args:
        events: In the order in which they came.
        others: Outputs that the engine runs for other frontends.
    """

    events: list[tuple[int, JobEvent]] = field(default_factory=list)
    others: int = 0


def dumps(value: object) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def loads(data: bytes) -> Any:
    return pickle.loads(data)


def portable(error: BaseException) -> BaseException:
    """An error that another process can read.

    >>> portable(ValueError("no"))
    ValueError('no')
    """
    try:
        loads(dumps(error))
    except Exception:
        return FewbitError(str(error) or type(error).__name__)
    return error

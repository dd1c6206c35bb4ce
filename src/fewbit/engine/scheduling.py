"""When a request is run: its priority, its client and its deadline."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from numbers import Real
from typing import TypedDict

from ..errors import DtypeError, RequestError
from ..validation import check_type, to_size
from .request import Request

MAX_PRIORITY = 100


class SchedulingOptions(TypedDict, total=False):
    """Options of a request that change when it runs, but not its results."""

    priority: int  # 0; higher ones come first, from -100 to 100
    client: str  # ""; clients that compete get the same number of tokens
    deadline: float | None  # seconds; a request that runs longer ends with the reason "deadline"


def set_scheduling(requests: Iterable[Request], options: SchedulingOptions) -> None:
    """Check scheduling options, and set them on requests."""
    priority = to_size(options.get("priority", 0), "priority", -MAX_PRIORITY, MAX_PRIORITY, RequestError)
    client, deadline = options.get("client", ""), check_seconds(options.get("deadline"), "deadline")
    check_type(client, str, "client")
    for request in requests:
        request.priority, request.client, request.deadline = priority, client, deadline


def check_seconds(value: float | None, what: str) -> float | None:
    """
    >>> check_seconds(0, "deadline")
    Traceback (most recent call last):
        ...
    fewbit.errors.RequestError: deadline must be a number of seconds greater than 0, got 0
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise DtypeError(f"{what} must be a number of seconds, not {type(value).__name__}")
    if not (isfinite(value) and value > 0):
        raise RequestError(f"{what} must be a number of seconds greater than 0, got {value}")
    return float(value)

"""When a request is run: its priority, whose it is and its deadline; and how many are taken at once."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from numbers import Real
from typing import TypedDict

from ..errors import DtypeError, RequestError
from ..validation import check_type, to_size
from .limits import Limits
from .request import Request
from .validation import check_count

MAX_PRIORITY = 100


class Terms(TypedDict, total=False):
    """Options of a request that change when it is run, and nothing of what it gives until then."""

    priority: int  # 0; higher ones come first, from -100 to 100
    client: str  # who asks, "" unless given: clients get the same number of tokens if they wait for each other
    deadline: float | None  # seconds; what has not ended by then ends with the reason "deadline"


def set_terms(requests: Iterable[Request], terms: Terms) -> None:
    """Write checked terms to requests."""
    priority = to_size(terms.get("priority", 0), "priority", -MAX_PRIORITY, MAX_PRIORITY, RequestError)
    client, deadline = terms.get("client", ""), check_seconds(terms.get("deadline"), "deadline")
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


def make_limits(max_seqs: int, max_waiting: int | None, max_per_client: int | None) -> Limits:
    """Limits of an engine that runs so many requests at once."""
    waiting = None if max_waiting is None else to_size(max_waiting, "max_waiting", error=RequestError)
    return Limits(
        None if waiting is None else max_seqs + waiting,
        None if max_per_client is None else check_count(max_per_client, "max_per_client"),
    )
